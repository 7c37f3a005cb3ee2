// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
)

// Stats is what an operator asks of a store.
type Stats struct {
	Node   string
	State  string // "follower", "candidate", "leader" or "stopped"
	Leader string // node; "" if none is known
	Term   uint64
	// LastIndex is the last entry in the log, CommitIndex the last known to be on a majority, AppliedIndex the last handed
	// to the state machine, StoreIndex the last that changed a resource.
	LastIndex, CommitIndex, AppliedIndex, StoreIndex uint64
	// LastContact is how long ago the leader was heard of: 0 on the leader, -1 if it never was.
	LastContact time.Duration
	Voters      []string
}

var stateNames = map[raft.RaftState]string{
	raft.Follower: "follower", raft.Candidate: "candidate", raft.Leader: "leader", raft.Shutdown: "stopped",
}

// Stats returns a view of the store. Its numbers are read one after the other.
func (s *Store) Stats() Stats {
	leader, _ := s.Leader()
	voters, _ := s.Peers() // none if the store is closed
	return Stats{
		Node:         s.cfg.Node,
		State:        stateNames[s.raft.State()],
		Leader:       leader,
		Term:         s.raft.CurrentTerm(),
		LastIndex:    s.raft.LastIndex(),
		CommitIndex:  s.raft.CommitIndex(),
		AppliedIndex: s.raft.AppliedIndex(),
		StoreIndex:   s.state.Index(),
		LastContact:  s.LastContact(),
		Voters:       voters,
	}
}

// LastContact is that of Stats.
func (s *Store) LastContact() time.Duration {
	switch last := s.raft.LastContact(); {
	case s.raft.State() == raft.Leader:
		return 0
	case !last.IsZero():
		return time.Since(last)
	}
	return -1
}

// LastIndex returns the index of the last entry in this server's log.
func (s *Store) LastIndex() uint64 { return s.raft.LastIndex() }
