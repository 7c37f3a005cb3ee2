// SPDX-License-Identifier: MPL-2.0

// Package limit bounds the work that a server does at a time for one peer. A
// stolen certificate therefore cannot exhaust the memory of the server.
//
// A [PerPeer] is a set of semaphores, one for each peer. A caller acquires a
// [Slot], does the work that needs memory, and releases the slot:
//
//	responses := limit.New(func(tlsutil.Peer) int64 { return 32 })
//	slot, err := responses.Acquire(ctx, peer)
//	if err != nil {
//		return err
//	}
//	defer slot.Release()
//
// A request that waits for a change needs no memory while it waits. Its handler
// puts the slot into the context of the request with [NewContext], and waits
// inside [Pause]. Pause releases the slot during the wait.
//
// The package starts no goroutine. All methods may be called from any
// goroutine. A PerPeer stores a semaphore only while a peer holds or awaits a
// slot.
package limit
