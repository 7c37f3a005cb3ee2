// SPDX-License-Identifier: MPL-2.0

// Package kv is a datacenter's store of keys and values: each entry is a resource of type kv/v1/Entry whose name is the key.
//
// It leaves to others: how resources are kept (package resource), and how people ask for them by HTTP (package httpapi).
//
// # Flow
//
// A Store reads through a Backend and writes through a resource.Service, so that every write is checked and authorized as any
// other of a resource. A write is one commit; so is a transaction, whatever it reads and writes: what it read is expected by the
// commit, and read again where that is not so.
//
// # Indexes
//
// A read returns the index of what it asked for: the store index of the last write to that key, or to any key with that prefix,
// deletions included. It is there for a key that does not exist too. Wait blocks until the index is above the one given.
// CreateIndex, ModifyIndex and the index that compare-and-swap takes are of the same store; another datacenter has its own.
//
// # Limits
//
// A key has 1 to 512 bytes of UTF-8 without NUL, a value at most MaxValue bytes. DeleteTree is one commit for up to TreeBatch
// keys, and several commits above.
//
// No goroutine is started. All methods may be called from any goroutine; they block only in the Backend, and end with their context.
package kv
