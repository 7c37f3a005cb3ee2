// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// Rules of who is in the Raft group; the leader applies them.
//
// A server of the LAN pool that is not in the group is added without a vote, and gets one once it has been alive and level for
// stableFor. One that has been down for a time (dead_server_after) is removed, whether it has a vote or not; a voter
// only if that leaves a group that works, see mayRemove. One that stopped cleanly comes back, as far as anybody knows, and
// stays; unless the pool forgets it (after 72 h), or nobody has heard of it since all others started anew.
const (
	// stableFor is how long a new server must be alive and level before it has a vote.
	stableFor = 10 * time.Second
	// A server is level if the leader has heard of it within levelContact, and it lacks at most levelTrail log entries.
	levelContact = 2 * time.Second
	levelTrail   = 250
	// lookAtNew is how often a server that has no vote yet is looked at: how far it is, is no event.
	lookAtNew = 500 * time.Millisecond
	// lookAgain is how often the rules are applied if nothing happens: what an operator removed is no event either.
	lookAgain = time.Minute
	// holdFor is how long a server that an operator removed is not added again, if it runs all the while.
	holdFor = 10 * time.Minute
	// changeTimeout bounds one change of the group.
	changeTimeout = 15 * time.Second
)

// change is one step that the rules ask for.
type change struct {
	do   string // one of the constants below
	node string
	why  string // of a removal
}

const (
	addServer = "add"
	giveVote  = "give a vote"
	remove    = "remove"
)

// membership is what a leader remembers between two looks. It reads no clock and changes nothing but itself.
type membership struct {
	self      string
	expect    int
	deadAfter time.Duration

	down   map[string]time.Time // servers of the group that are down, and since when
	level  map[string]time.Time // those without a vote that are alive and level, and since when
	stuck  map[string]bool      // dead voters that may not be removed
	warned []string             // news: texts for the operator, each once
}

func newMembership(self string, expect int, deadAfter time.Duration) *membership {
	return &membership{
		self: self, expect: expect, deadAfter: deadAfter,
		down: map[string]time.Time{}, level: map[string]time.Time{}, stuck: map[string]bool{},
	}
}

// plan returns what to do now, and how long until there may be more if nothing happens. Servers are those of the group, with
// the leader's last index; held are those that must not be added.
func (m *membership) plan(now time.Time, servers []raftstore.Member, last uint64, members []gossip.Member, held func(gossip.Member) bool) (todo []change, again time.Duration) {
	again = lookAgain
	in := map[string]bool{}
	for _, s := range servers {
		in[s.Node] = true
	}
	for _, p := range members {
		if p.Alive() && !in[p.Name] && !held(p) {
			todo = append(todo, change{do: addServer, node: p.Name})
		}
	}
	for _, s := range servers {
		if s.Voter || s.Node == m.self {
			continue
		}
		if wait := m.untilVote(now, s, last, find(members, s.Node)); wait == 0 {
			todo = append(todo, change{do: giveVote, node: s.Node})
		} else {
			again = min(again, wait)
		}
	}
	dead, wait := m.dead(now, servers, members)
	again = min(again, wait)
	for _, s := range dead {
		if err := m.mayRemove(s, servers, members); err != nil {
			if !m.stuck[s.Node] {
				m.warned = append(m.warned, fmt.Sprintf("%s: %v", s.Node, err))
			}
			m.stuck[s.Node] = true
			continue
		}
		why := fmt.Sprintf("down for %v", now.Sub(m.down[s.Node]).Round(time.Second))
		return append(todo, change{do: remove, node: s.Node, why: why}), again // one at a time
	}
	return todo, again
}

// untilVote returns how long a server without a vote has still to be watched; 0: it has passed.
func (m *membership) untilVote(now time.Time, s raftstore.Member, last uint64, p *gossip.Member) time.Duration {
	level := p != nil && p.Alive() && s.LastContact >= 0 && s.LastContact < levelContact && s.LastIndex > 0 && s.LastIndex+levelTrail >= last
	if !level {
		delete(m.level, s.Node)
		return lookAtNew
	}
	since, ok := m.level[s.Node]
	if !ok {
		m.level[s.Node] = now
		return min(lookAtNew, stableFor)
	}
	return min(max(0, stableFor-now.Sub(since)), lookAtNew)
}

// dead returns the servers that have been down long enough, the longest first, and how long until the next one's time.
func (m *membership) dead(now time.Time, servers []raftstore.Member, members []gossip.Member) (dead []raftstore.Member, wait time.Duration) {
	wait = lookAgain
	down := map[string]time.Time{}
	for _, s := range servers {
		p := find(members, s.Node)
		if s.Node == m.self || p != nil && p.Status != gossip.StatusFailed {
			continue
		}
		since, ok := m.down[s.Node]
		if !ok {
			since = now
		}
		if s.LastContact >= 0 && now.Add(-s.LastContact).After(since) { // the pool may err
			since = now.Add(-s.LastContact)
		}
		down[s.Node] = since
		if left := m.deadAfter - now.Sub(since); left > 0 {
			wait = min(wait, left)
		} else {
			dead = append(dead, s)
		}
	}
	for node := range m.stuck {
		if _, ok := down[node]; !ok {
			delete(m.stuck, node)
		}
	}
	m.down = down
	slices.SortFunc(dead, func(a, b raftstore.Member) int {
		if c := down[a.Node].Compare(down[b.Node]); c != 0 {
			return c
		}
		return strings.Compare(a.Node, b.Node)
	})
	return dead, wait
}

// mayRemove says why a dead server must stay: never is more than a minority of the voters given up, the voters that remain are
// a majority of what the datacenter was set up for, and those of them that are up are a majority of those that remain.
func (m *membership) mayRemove(s raftstore.Member, servers []raftstore.Member, members []gossip.Member) error {
	if !s.Voter {
		return nil
	}
	voters, up := 0, 0
	for _, v := range servers {
		if !v.Voter {
			continue
		}
		voters++
		if p := find(members, v.Node); v.Node == m.self || p != nil && p.Alive() {
			up++
		}
	}
	expect := m.expect
	for _, p := range members {
		if n, err := strconv.Atoi(p.Tags[tagExpect]); err == nil && p.Alive() {
			expect = max(expect, n)
		}
	}
	switch rest := voters - 1; {
	case voters-up > (voters-1)/2:
		return fmt.Errorf("%d of %d voters are down: more than a minority", voters-up, voters)
	case rest < expect/2+1:
		return fmt.Errorf("%d voters would remain, and %d servers (bootstrap_expect) need %d", rest, expect, expect/2+1)
	case up < rest/2+1:
		return fmt.Errorf("only %d of the %d voters that would remain are up", up, rest)
	}
	return nil
}

func find(members []gossip.Member, node string) *gossip.Member {
	i := slices.IndexFunc(members, func(p gossip.Member) bool { return p.Name == node })
	if i < 0 {
		return nil
	}
	return &members[i]
}
