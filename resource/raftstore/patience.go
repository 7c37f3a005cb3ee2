// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// patience holds back what a leader learns of a call that failed until the called server is heard of again.
//
// Raft calls a server that does not answer again and again, after pauses that grow to ten seconds, and so finds one that
// comes back as late as that, though its heartbeats, in a goroutine of their own, reach it within half a heartbeat timeout.
// Held back, it counts one failure for an outage of any length, and pauses for some milliseconds after it.
//
// A call is held only while this server leads in the call's term, the called server belongs to the group, and no transfer of
// leadership is under way: for these, Raft needs the goroutine that would wait.
type patience struct {
	leads func(id raft.ServerID, term uint64) bool // set by start: whether this server, in term, leads a group that has id

	mu      sync.Mutex
	waiting map[raft.ServerID]chan struct{} // closed when those that wait for the server are to go on
	rushed  int                             // transfers under way
	ended   bool
}

// start is called once, when leads can be answered. Before, nothing is held.
func (p *patience) start(leads func(id raft.ServerID, term uint64) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leads = leads
	p.waiting = make(map[raft.ServerID]chan struct{})
}

// wait returns when id is heard of, and whenever the call must not be held.
func (p *patience) wait(id raft.ServerID, term uint64) {
	p.mu.Lock()
	leads := p.leads
	if leads == nil || p.ended || p.rushed > 0 {
		p.mu.Unlock()
		return
	}
	heard := p.waiting[id]
	if heard == nil {
		heard = make(chan struct{})
		p.waiting[id] = heard
	}
	p.mu.Unlock()
	if !leads(id, term) { // asked after heard is in the map: what ends it after this calls release, which finds it
		p.heard(id)
	}
	<-heard
}

// heard lets go on those that wait for id.
func (p *patience) heard(id raft.ServerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.waiting[id]; c != nil {
		close(c)
		delete(p.waiting, id)
	}
}

// release lets all go on, to see whether they still must wait: leadership was lost, or a server left the group.
func (p *patience) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseLocked()
}

func (p *patience) releaseLocked() {
	for id, c := range p.waiting {
		close(c)
		delete(p.waiting, id)
	}
}

// rush lets all go on, and holds nothing until calm is called.
func (p *patience) rush() (calm func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rushed++
	p.releaseLocked()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rushed--
	}
}

// end lets all go on, for ever.
func (p *patience) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.releaseLocked()
}
