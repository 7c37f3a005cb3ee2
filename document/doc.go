// SPDX-License-Identifier: MPL-2.0

// Package document has the type config/v1/Document: named JSON that operators
// share with all datacenters, for example settings for programs in each of
// them.
//
//	err := document.Register(registry)
//	content, err := structpb.NewValue(map[string]any{"rate": 100})
//	r, err := resource.New(document.Type, "limits", &pb.Document{Content: content})
//
// The type is an example of a federated type. A federated type consists of a
// message (here pb.Document) and a registration. Packages resource and
// resourcehttp provide reads, writes and watches by gRPC and HTTP. Package
// replication provides the replicas in other datacenters.
//
// # Rules
//
// The content of a document is any JSON value of at most MaxSize encoded bytes
// and MaxDepth levels. A document belongs to a partition and a namespace.
// Operators may write a document in any datacenter. The primary datacenter
// stores the document, and every other datacenter has a replica. Numbers are
// 64-bit floating point, as in JavaScript: store a number with more than 15
// digits as a string.
//
// The package starts no goroutine, and no function blocks.
package document
