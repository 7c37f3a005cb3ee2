// SPDX-License-Identifier: MPL-2.0

// Package document has the type config/v1/Document: named JSON that operators share with all datacenters, for example settings
// that programs in each of them read beside their own server.
//
// It is an example of a federated type as well: a message (pb.Document), a registration, and nothing else. Reading, writing
// and watching, by HTTP, gRPC and on the command line, come with package resource, and the way to other datacenters with
// package replication.
//
// # Rules
//
// A document has content, any JSON value, of at most MaxSize bytes as it is encoded and MaxDepth levels. Its name is that
// of any resource; it lives in a partition and a namespace. Operators write it, in any datacenter; it is stored in the primary,
// and every datacenter has a copy. Numbers are 64-bit floating point, as in JavaScript: what must keep more than 15 digits
// belongs in a string.
//
// No goroutine is started here, and nothing blocks.
//
//	err := document.Register(registry)
//	r, err := document.New("limits", map[string]any{"rate": 100})
package document
