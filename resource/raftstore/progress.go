// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// progress is what a leader's calls tell of the others: Raft itself knows it too, but does not say.
type progress struct {
	mu    sync.Mutex
	nodes map[raft.ServerID]followed
}

type followed struct {
	term    uint64    // of the leadership that match is of
	contact time.Time // of the last answer
	match   uint64    // up to this index its log is the leader's; 0 if that is not known yet
}

// heard takes note of an answer to a call of a term. match is 0 if the call said nothing of the log.
func (p *progress) heard(id raft.ServerID, term, match uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes == nil {
		p.nodes = make(map[raft.ServerID]followed)
	}
	f := p.nodes[id]
	if term > f.term {
		f = followed{term: term}
	}
	f.contact = time.Now()
	f.match = max(f.match, match)
	p.nodes[id] = f
}

// of returns what is known of a server in a term.
func (p *progress) of(id raft.ServerID, term uint64) followed {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.nodes[id]
	if f.term != term {
		f = followed{contact: f.contact}
	}
	return f
}

// Member is one server of the Raft group.
type Member struct {
	Node string
	// Voter is false for a server that gets the log but does not count for a majority.
	Voter bool
	// Leader says that it is the leader that is known.
	Leader bool
	// LastContact is how long ago it was heard of: by the leader, or, on a follower, the leader by this server. 0 for the
	// server asked, if that leads; -1 if it is not known.
	LastContact time.Duration
	// LastIndex is up to where its log is known to be the leader's. 0 if it is not known: on a follower, of all others.
	LastIndex uint64
}

// Members returns the servers of the group, by node; none before this server is in one. On the leader they have
// LastContact and LastIndex.
func (s *Store) Members() ([]Member, error) {
	servers, err := s.servers()
	if err != nil {
		return nil, err
	}
	_, leader := s.raft.LeaderWithID()
	term, leads, now := s.raft.CurrentTerm(), s.raft.State() == raft.Leader, time.Now()
	all := make([]Member, 0, len(servers))
	for _, srv := range servers {
		m := Member{Node: string(srv.ID), Voter: srv.Suffrage == raft.Voter, Leader: srv.ID == leader, LastContact: -1}
		var contact time.Time
		switch {
		case m.Node == s.cfg.Node:
			m.LastIndex = s.raft.LastIndex()
			if leads {
				contact = now
			}
		case leads:
			f := s.trans.progress.of(srv.ID, term)
			contact, m.LastIndex = f.contact, f.match
		case m.Leader:
			contact = s.raft.LastContact()
		}
		if !contact.IsZero() {
			m.LastContact = max(now.Sub(contact), 0)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}
