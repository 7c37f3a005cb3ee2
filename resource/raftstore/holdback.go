// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// holdback delays the failure of a leader's call until the called server can be
// reached again.
//
// Raft retries a failed call after a backoff that grows to ten seconds. Nothing
// ends the backoff early. The heartbeats have their own goroutine and reach a
// returning server within half a heartbeat timeout. With the delay, Raft sees
// an outage of any length as one failure, and its backoff is some milliseconds.
//
// A call is held only while this server leads in the term of the call, the
// called server belongs to the group, and no leadership transfer is in
// progress. In other cases Raft needs the goroutine that would wait.
type holdback struct {
	// leads reports whether this server leads a group that has id, in that
	// term. It is nil until start is called. While it is nil, no call is held.
	leads func(id raft.ServerID, term uint64) bool

	mu        sync.Mutex
	waiting   map[raft.ServerID]chan struct{} // closed to release the calls to a server
	transfers int                             // in progress
	stopped   bool
}

// start begins to hold calls. It is called once.
func (h *holdback) start(leads func(id raft.ServerID, term uint64) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leads = leads
	h.waiting = make(map[raft.ServerID]chan struct{})
}

// wait returns when id was reached, or when the call must not be held.
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
	// leads is called after the channel is in the map. Every later change is
	// followed by release, which finds the channel.
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

// release releases all calls. Raft's next call is held again if it must be. It
// is called after leadership was lost, or a server left the group.
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
