// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"time"

	"github.com/hashicorp/raft"
)

// Stats describes a store for an operator.
type Stats struct {
	Node   string
	State  string // "follower", "candidate", "leader" or "stopped"
	Leader string // node; "" if none is known
	Term   uint64
	// LastIndex is the last entry in the log, CommitIndex the last one known to
	// be committed, AppliedIndex the last one passed to the state machine,
	// StoreIndex the last one that changed a resource.
	LastIndex, CommitIndex, AppliedIndex, StoreIndex uint64
	// LastContact is the time since the last contact with the leader: 0 on the
	// leader, -1 if there was none.
	LastContact time.Duration
	Voters      []string
}

var stateNames = map[raft.RaftState]string{
	raft.Follower: "follower", raft.Candidate: "candidate", raft.Leader: "leader", raft.Shutdown: "stopped",
}

// Stats returns the numbers of the store. They are read one after the other.
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
