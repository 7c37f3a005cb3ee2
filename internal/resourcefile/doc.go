// SPDX-License-Identifier: MPL-2.0

// Package resourcefile reads resources from files in HCL, JSON or YAML.
//
//	docs, err := resourcefile.Read("web1.hcl", os.Stdin)
//	for _, d := range docs {
//		r, err := d.Resource(api.ParseResourceType)
//	}
//
// The extension of the file name selects the format: .hcl, .json, .yaml or
// .yml. With another extension, and for stdin, the content selects the format.
// Several resources in one file are blocks in HCL, a list or consecutive values
// in JSON, and documents in YAML.
//
// A resource has type, name and data, and optionally partition, namespace, uid,
// metadata, owner and version. The package also reads the JSON of the HTTP API,
// and ignores the fields that only the server sets. Unknown fields are errors.
// Errors name file and line. A file has at most 256 MiB, an HCL file 16 MiB.
package resourcefile
