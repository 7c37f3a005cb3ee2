// SPDX-License-Identifier: MPL-2.0

// Package resourcefile reads resources from files in HCL, JSON or YAML.
//
//	docs, err := resourcefile.Read("web1.hcl", os.Stdin)
//	for _, d := range docs {
//		r, err := d.Resource(api.ParseResourceType)
//	}
//
// The extension of the file name selects the format: .hcl, .json, .yaml or .yml.
// Otherwise, and for stdin, the content selects it. A file has several resources
// as blocks in HCL, as a list or as consecutive values in JSON, and as documents
// in YAML.
//
// A resource has type, name and data, and optionally partition, namespace, uid,
// metadata, owner and version. The JSON of the HTTP API is accepted as well;
// fields that the server sets are ignored. Unknown fields are errors. Errors name
// file and line.
//
// Limits: a file has at most 256 MiB, and in HCL 16 MiB. The package starts no
// goroutine.
package resourcefile
