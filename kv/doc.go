// SPDX-License-Identifier: MPL-2.0

// Package kv is the key-value store of a datacenter. Each entry is a resource
// of type kv/v1/Entry whose name is the key.
//
// A Store reads from a resource.Backend and writes through a resource.Service,
// which validates and authorizes every write. A write is one commit. A
// transaction is also one commit. The commit fails if a concurrent write has
// changed a key that the transaction has read. The Store then runs the
// transaction again. Package httpapi serves the keys by HTTP.
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
// A read returns the index of its key or prefix. The index is the store index
// of the last write to the key, or to any key with the prefix. Deletions are
// writes. A key that does not exist also has an index. WaitKey and WaitPrefix
// block until the index exceeds a given index. Indexes of two datacenters are
// unrelated.
//
// # Limits
//
// A key has 1 to 512 bytes of UTF-8 without NUL. A value has at most MaxValue
// bytes. DeleteTree deletes at most DeleteTreeBatch keys in one commit, and
// needs several commits for more keys.
//
// The package starts no goroutine. All methods may be called from any
// goroutine. They block only in the Backend, and return when their context
// ends.
package kv
