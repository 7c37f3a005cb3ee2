// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// StableTime is the time that a new server must be alive and up to date before
// it gets a vote.
const StableTime = 10 * time.Second

const (
	// A server is up to date if its last contact with the leader is within
	// recentContact, and it lacks at most maxTrailing log entries.
	recentContact = 2 * time.Second
	maxTrailing   = 250
	// nonvoterInterval is the time between two checks of a server without a
	// vote. Raft sends no notification about the progress of such a server.
	nonvoterInterval = 500 * time.Millisecond
	// planInterval is the maximum time between two applications of the rules.
	// It bounds the delay after the end of a hold, which sends no notification.
	planInterval = time.Minute
	// holdTime is the time for which a running server is not added again after
	// an operator has removed it.
	holdTime = 10 * time.Minute
	// changeTimeout bounds one change of the group.
	changeTimeout = 15 * time.Second
	// retryDelay is the pause after a change of the group failed.
	retryDelay = time.Second
)

// holds are the running servers that an operator has removed from the group.
// They are in the memory of the leader that removed the servers.
type holds struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (h *holds) add(node string, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil {
		h.until = map[string]time.Time{}
	}
	h.until[node] = until
}

func (h *holds) remove(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.until, node)
}

// active reports whether the server must not be added now.
func (h *holds) active(node string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.until[node])
}

// prune removes the holds of servers that are not alive.
func (h *holds) prune(members []gossip.Member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for node := range h.until {
		if p := find(members, node); p == nil || !p.Alive() {
			delete(h.until, node)
		}
	}
}

// RunMembership applies the rules of the package documentation until ctx ends.
// Only the leader may run it.
func (s *Service) RunMembership(ctx context.Context) error {
	m := newMembership(s.Node, s.Expect)
	for {
		changed := s.LAN.Changed()
		backoff.Sleep(ctx, s.reconcile(ctx, m), changed)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// reconcile applies the rules once. It returns the maximum time until the next
// call.
func (s *Service) reconcile(ctx context.Context, m *membership) (wait time.Duration) {
	servers, err := s.Store.Members()
	if err != nil {
		s.Logger.Warn("cannot read the Raft group", "err", err)
		return retryDelay
	}
	members, now := s.LAN.Members(), time.Now()
	m.deadAfter = s.DeadAfter()
	s.holds.prune(members)
	changes, wait := m.plan(now, servers, s.Store.LastIndex(), members, func(p gossip.Member) bool {
		return s.holds.active(p.Name, now) || s.formedOwnGroup(p, m)
	})
	for _, w := range m.warnings {
		s.Logger.Warn("a server that is down stays in the Raft group", "peer", w.node, "reason", w.reason)
	}
	m.warnings = nil
	for _, c := range changes {
		if err := s.apply(ctx, c); err != nil && ctx.Err() == nil {
			s.Logger.Warn("cannot change the Raft group", "change", c.kind, "peer", c.node, "err", err)
			return retryDelay
		}
	}
	if len(changes) > 0 {
		return 0
	}
	return wait
}

// formedOwnGroup reports whether both the server p and this server were started
// to form a group of one server. It logs such a server once.
func (s *Service) formedOwnGroup(p gossip.Member, m *membership) bool {
	if s.Expect != 1 || p.Tags[TagExpect] != "1" {
		return false
	}
	if !m.rejected[p.Name] {
		s.Logger.Error("server not added to the Raft group: both it and this one were started to form one alone; "+
			"start it again with an empty data directory and --retry-join", "peer", p.Name)
	}
	m.rejected[p.Name] = true
	return true
}

func (s *Service) apply(ctx context.Context, c change) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var err error
	switch c.kind {
	case addServer:
		if err = s.Store.AddNonvoter(ctx, c.node); err == nil {
			s.Logger.Info("server added to the Raft group; it has no vote yet", "peer", c.node)
		}
	case giveVote:
		if err = s.Store.AddVoter(ctx, c.node); err == nil {
			s.Logger.Info("server has a vote in the Raft group", "peer", c.node)
		}
	case removeServer:
		if err = s.Store.RemoveServer(ctx, c.node); err == nil {
			s.Logger.Info("server removed from the Raft group", "peer", c.node, "reason", c.reason)
		}
	}
	return err
}

// change is one change of the Raft group that the rules require.
type change struct {
	kind   changeKind
	node   string
	reason string // reason of a removal
}

type changeKind string

const (
	addServer    changeKind = "add"
	giveVote     changeKind = "give a vote"
	removeServer changeKind = "remove"
)

// warning reports a dead voter that must stay in the group.
type warning struct{ node, reason string }

// membership is the state of a leader between two calls of plan. The methods
// read no clock and change only this state.
type membership struct {
	self      string
	expect    int
	deadAfter time.Duration

	down     map[string]time.Time // servers of the group that are down, with the start of the outage
	upToDate map[string]time.Time // servers without a vote, with the time at which they became up to date
	stuck    map[string]bool      // dead voters that must stay
	rejected map[string]bool      // logged servers that formed their own group
	warnings []warning            // warnings that are not logged yet
}

func newMembership(self string, expect int) *membership {
	return &membership{
		self: self, expect: expect, down: map[string]time.Time{},
		upToDate: map[string]time.Time{}, stuck: map[string]bool{}, rejected: map[string]bool{},
	}
}

// plan returns the changes to make now, and the maximum time until the next
// call. The servers are the members of the Raft group, and last is the last
// index of the leader. exclude reports whether a server must not be added.
func (m *membership) plan(
	now time.Time, servers []raftstore.Member, last uint64, members []gossip.Member, exclude func(gossip.Member) bool,
) (changes []change, wait time.Duration) {
	wait = planInterval
	inGroup := map[string]bool{}
	for _, s := range servers {
		inGroup[s.Node] = true
	}
	for _, p := range members {
		if p.Alive() && !inGroup[p.Name] && !exclude(p) {
			changes = append(changes, change{kind: addServer, node: p.Name})
		}
	}
	for _, s := range servers {
		if s.Voter || s.Node == m.self {
			continue
		}
		if left := m.untilVote(now, s, last, find(members, s.Node)); left == 0 {
			changes = append(changes, change{kind: giveVote, node: s.Node})
		} else {
			wait = min(wait, left)
		}
	}
	dead, left := m.dead(now, servers, members)
	wait = min(wait, left)
	for _, s := range dead {
		if err := m.mayRemove(s, servers, members); err != nil {
			if !m.stuck[s.Node] {
				m.warnings = append(m.warnings, warning{s.Node, err.Error()})
			}
			m.stuck[s.Node] = true
			continue
		}
		reason := fmt.Sprintf("down for %v", now.Sub(m.down[s.Node]).Round(time.Second))
		return append(changes, change{kind: removeServer, node: s.Node, reason: reason}), wait // at most one removal
	}
	return changes, wait
}

// untilVote returns the time until the next check of a server without a vote,
// or 0 if the server may have a vote now.
func (m *membership) untilVote(now time.Time, s raftstore.Member, last uint64, p *gossip.Member) time.Duration {
	upToDate := p != nil && p.Alive() && s.LastContact >= 0 && s.LastContact < recentContact &&
		s.LastIndex > 0 && s.LastIndex+maxTrailing >= last
	if !upToDate {
		delete(m.upToDate, s.Node)
		return nonvoterInterval
	}
	since, ok := m.upToDate[s.Node]
	if !ok {
		m.upToDate[s.Node] = now
		return nonvoterInterval
	}
	return min(max(0, StableTime-now.Sub(since)), nonvoterInterval)
}

// dead returns the servers that have been down for at least deadAfter, ordered
// by the start of the outage. wait is the maximum time until the next call.
func (m *membership) dead(
	now time.Time, servers []raftstore.Member, members []gossip.Member,
) (dead []raftstore.Member, wait time.Duration) {
	wait = planInterval
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
		// Raft may have had contact with the server after the pool marked the
		// server as failed.
		if contact := now.Add(-s.LastContact); s.LastContact >= 0 && contact.After(since) {
			since = contact
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
		return cmp.Or(down[a.Node].Compare(down[b.Node]), cmp.Compare(a.Node, b.Node))
	})
	return dead, wait
}

// mayRemove returns nil if a dead server may be removed, and otherwise the
// reason why it must stay. A server without a vote may always be removed. A
// voter may be removed only under these conditions:
//
//   - At most a minority of the voters is down.
//   - The remaining voters are a majority of the servers that the datacenter was
//     set up for (bootstrap_expect).
//   - A majority of the remaining voters is up.
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
		if n, err := strconv.Atoi(p.Tags[TagExpect]); err == nil && p.Alive() {
			expect = max(expect, n)
		}
	}
	switch rest := voters - 1; {
	case voters-up > rest/2:
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
