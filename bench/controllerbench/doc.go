// SPDX-License-Identifier: MPL-2.0

// Controllerbench compares package controller with sigs.k8s.io/controller-runtime.
// Both read from a store in the memory of the same process, without a network.
//
//	go run ./controllerbench -n 100000 -rounds 3
//
// Each of n items refers to one of n/1000 classes. The controller of items
// reads the item and its class from the cache. A change of a class reconciles
// the items that refer to it, by an index. Both use two workers. Each run is a
// process of its own, and the contenders take turns.
//
// Rows:
//
//   - start: time from the start of the runtime to the first reconcile, which
//     waits for all caches
//   - start/all: time until all items are reconciled
//   - reconciles: reconciles per second after the first one
//   - memory: bytes of heap per cached resource, without the store. The caches
//     have their own copies, as after a network connection.
//   - change/first, change/last: median time from the write of a class to the
//     start of the first and of the last of the 1000 reconciles
//   - lookup: time of an index lookup of 1000 items
//   - scan: time to find the same items in a list of all, as a mapper without
//     an index does
//
// The cache of controller-runtime is set to return shared objects, as that of
// package controller does (DefaultUnsafeDisableDeepCopy).
package main
