// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// holdback delays the failure of a leader's call until the leader can reach the
// called server again.
//
// Raft retries a failed call after a backoff that grows to ten seconds. Nothing
// ends the backoff early. Heartbeats have their own goroutine and reach a
// returning server within half a heartbeat timeout. With the delay, an outage
// of any length is one failure for Raft, and the backoff is some milliseconds.
//
// A call is held only while this server leads in the term of the call, the
// called server belongs to the group, and no leadership transfer is in
// progress. In all other cases Raft needs the goroutine of the call.
type holdback struct {
	// leads reports whether this server leads in that term, and id is a voter
	// of its group. leads is nil until start is called. Without leads, no call
	// is held.
	leads func(id raft.ServerID, term uint64) bool

	mu        sync.Mutex
	waiting   map[raft.ServerID]chan struct{} // closing a channel releases the calls to that server
	transfers int                             // number of leadership transfers in progress
	stopped   bool
}

// start enables the holding of calls. It is called once.
func (h *holdback) start(leads func(id raft.ServerID, term uint64) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leads = leads
	h.waiting = make(map[raft.ServerID]chan struct{})
}

// wait holds a failed call to id. It returns when this server has reached id,
// or when the call must not be held.
func (h *holdback) wait(id raft.ServerID, term uint64) {
	h.mu.Lock()
	leads := h.leads
	if leads == nil || h.stopped || h.transfers > 0 {
		h.mu.Unlock()
		return
	}
	reached := h.waiting[id]
	if reached == nil {
		reached = make(chan struct{})
		h.waiting[id] = reached
	}
	h.mu.Unlock()
	// The channel must be in the map before leads is called. A later change of
	// leadership or membership calls release, which then finds the channel.
	if !leads(id, term) {
		h.reached(id)
	}
	<-reached
}

// reached releases the calls to id.
func (h *holdback) reached(id raft.ServerID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.waiting[id]; c != nil {
		close(c)
		delete(h.waiting, id)
	}
}

// release releases all calls. It is called after leadership was lost or a
// server left the group. A later call of Raft may be held again.
func (h *holdback) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releaseLocked()
}

func (h *holdback) releaseLocked() {
	for id, c := range h.waiting {
		close(c)
		delete(h.waiting, id)
	}
}

// suspend releases all calls, and holds none until resume is called.
func (h *holdback) suspend() (resume func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.transfers++
	h.releaseLocked()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.transfers--
	}
}

// stop releases all calls, and holds no later call.
func (h *holdback) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.releaseLocked()
}
