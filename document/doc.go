// SPDX-License-Identifier: MPL-2.0

// Package document has the type config/v1/Document: named JSON that operators
// share with all datacenters, for example settings for programs in each of them.
//
//	err := document.Register(registry)
//	r, err := document.New("limits", map[string]any{"rate": 100})
//
// It is also an example of a federated type. It consists of a message
// (pb.Document) and a registration. Package resource provides reads, writes and
// watches by HTTP, gRPC and command. Package replication provides the replicas.
//
// # Rules
//
// The content of a document is any JSON value of at most MaxSize encoded bytes and
// MaxDepth levels. A document lives in a partition and a namespace. Operators write
// it in any datacenter. The primary stores it, and every other datacenter has a
// replica. Numbers are 64-bit floating point, as in JavaScript: store a number with
// more than 15 digits as a string.
//
// The package starts no goroutine, and nothing in it blocks.
package document
