// SPDX-License-Identifier: MPL-2.0

// Package kv is the key-value store of a datacenter. Each entry is a resource
// of type kv/v1/Entry whose name is the key.
//
// Package resource stores the resources. Package httpapi serves the keys by
// HTTP.
//
// # Flow
//
// A Store reads from a Backend and writes through a resource.Service, so that
// every write is validated and authorized. A write is one commit. A transaction
// is one commit too: the commit expects what the transaction has read, and the
// transaction starts again if that has changed.
//
// # Example
//
//	s, err := kv.New(service, backend)
//	...
//	done, err := s.Put(ctx, kv.Entry{Key: "app/color", Value: []byte("blue")}, kv.IfIndex(0))
//	e, index, err := s.Get(ctx, resource.Strong, "app/color")
//	err = s.WaitKey(ctx, "app/color", index) // until it changes
//
// # Indexes
//
// A read returns the index of its key or prefix: the store index of the last
// write to that key, or to a key with that prefix, deletions included. A key
// that does not exist has an index too. WaitKey and WaitPrefix block until the
// index is above a given one. The indexes of another datacenter are unrelated.
//
// # Limits
//
// A key has 1 to 512 bytes of UTF-8 without NUL. A value has at most MaxValue
// bytes. DeleteTree is one commit for up to DeleteTreeBatch keys, and several
// commits above.
//
// The package starts no goroutine. All methods may be called from any
// goroutine. They block only in the Backend, and return when their context
// ends.
package kv
