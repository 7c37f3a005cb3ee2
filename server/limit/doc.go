// SPDX-License-Identifier: MPL-2.0

// Package limit bounds what one peer may hold of a server at a time, so that a
// stolen certificate cannot exhaust the server.
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
// A request that waits for a change needs no memory while it waits. It puts its
// slot into its context with [NewContext], and waits inside [Pause], which
// releases the slot for that time.
//
// The package starts no goroutine. All methods may be called from any
// goroutine. Memory is needed only for peers that hold or await a slot.
package limit
