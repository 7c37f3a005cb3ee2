// SPDX-License-Identifier: MPL-2.0

// Package lease defines the resource type coordination/v1/Lease, and runs work
// in one of several processes.
//
//	elector, err := lease.NewElector(lease.ElectorConfig{
//		Client: lease.NewClient(cc), Name: "reports", Holder: hostname,
//	})
//	...
//	err = elector.Run(ctx, func(held *lease.Held) error {
//		for held.Err() == nil {
//			report(held, held.Token())
//		}
//		return nil
//	})
//
// # Flow
//
// A candidate acquires a free lease by one commit. The fencing token of the
// holder is the store index of this commit. The index of a store never
// decreases, so each later holder has a higher token, also after the lease was
// released, or deleted and created again, and after a change of the leader.
//
// The leader keeps the deadlines in memory. A renewal is a call to the leader,
// which other servers forward. It moves a deadline and writes nothing. When a
// deadline passes, the leader frees the lease by one commit, which frees up to
// 128 leases. A new leader gives each lease its full duration from its election.
//
// Renewals are merged into calls: a Client merges those of its leases, and a
// Forwarder those of all clients of a follower. The leader confirms its
// leadership for all renewals that wait. Each of these steps delays a renewal by
// up to 100 ms if others were made within the last 100 ms.
//
// An Elector is also an Elector of package controller: see RunWhileLeader.
//
// # Safety
//
// The leader acknowledges a renewal only after a majority has confirmed its
// leadership, by messages that were sent after the renewal arrived. A later
// leader is therefore elected after the holder has sent the renewal, and gives
// the lease a full duration from then on. The holder stops earlier: its work
// context ends when nine tenths of the duration have passed since it sent its
// last acknowledged renewal. Held describes what this cannot guarantee, and how
// the fencing token covers the rest.
//
// An operator who deletes a held lease takes it from its holder at once. The
// holder detects this by its next renewal, so two processes may work for up to
// a quarter of the duration.
//
// # Goroutines
//
// Service.Run and Deadlines.Run use three goroutines, and up to four more while
// leases expire. Elector.Run uses one more while it holds the lease. Run of each
// type joins its goroutines before it returns. Each call of a Client or a
// Forwarder with renewals has a goroutine, which ends with the call.
//
// # Limits
//
// A duration is MinDuration to MaxDuration. A holder has at most 512 bytes. A
// call renews at most 10000 leases.
package lease
