// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	// The end of a hold sends no notification.
	planInterval = time.Minute
	// holdTime is the duration of a hold. During a hold, a running server that
	// an operator has removed is not added again.
	holdTime = 10 * time.Minute
	// joiningTime is the time for which a voter must be known as not admitted
	// before it is removed. The servers of a first group are known as admitted
	// after about 2.5 seconds.
	joiningTime = 5 * time.Second
	// runningContact limits the time since the last response of a voter that is
	// removed because its data directory is new. The LAN pool knows this from a
	// tag, and keeps the tag of a server that has just ended.
	runningContact = 2 * time.Second
	// changeTimeout bounds one change of the group.
	changeTimeout = 15 * time.Second
	// retryDelay is the pause after a change of the group failed.
	retryDelay = time.Second
)

// setHold sets the end of the hold of a server. A time that is not in the
// future removes the hold. Only the leader that removed a server has its hold.
func (s *Service) setHold(node string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[node] = until
}

// activeHolds returns the ends of all holds, by node. It removes holds that
// have ended, and holds of servers that are not alive.
func (s *Service) activeHolds(now time.Time, members []gossip.Member) map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.holds, func(node string, until time.Time) bool {
		return !now.Before(until) || !alive(members, node)
	})
	return maps.Clone(s.holds)
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
	holds := s.activeHolds(now, members)
	changes, wait := m.plan(now, servers, s.Store.LastIndex(), members, func(p gossip.Member) bool {
		return !holds[p.Name].IsZero() || s.formedOwnGroup(p, m)
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

// formedOwnGroup reports whether the server p and this server were each started
// to form a group of one server. It logs each such server once.
func (s *Service) formedOwnGroup(p gossip.Member, m *membership) bool {
	if s.Expect != 1 || p.Tags[TagExpect] != "1" {
		return false
	}
	if !m.rejected[p.Name] {
		s.Logger.Error(
			"server not added to the Raft group: this server and the peer were each started to form a group alone; "+
				"restart the peer with an empty data directory and --retry-join", "peer", p.Name)
	}
	m.rejected[p.Name] = true
	return true
}

func (s *Service) apply(ctx context.Context, c change) (err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	message := ""
	switch c.kind {
	case addServer:
		message, err = "server added to the Raft group without a vote", s.Store.AddNonvoter(ctx, c.node)
	case giveVote:
		message, err = "server has a vote in the Raft group", s.Store.AddVoter(ctx, c.node)
	case removeServer:
		message, err = "server removed from the Raft group", s.Store.RemoveServer(ctx, c.node)
	}
	if err == nil {
		s.Logger.Info(message, "peer", c.node, "reason", c.reason)
	}
	return err
}

// change is one change of the Raft group that the rules require.
type change struct {
	kind   changeKind
	node   string
	reason string
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
	self      string // the leader
	expect    int
	deadAfter time.Duration

	down     map[string]time.Time // servers of the group that are down, with the start of the outage
	upToDate map[string]time.Time // up-to-date servers without a vote, with the start of that state
	joining  map[string]time.Time // voters with a new data directory, with the start of that state
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
// call. The argument servers has the members of the Raft group, last is the
// last index of the leader, and members has the members of the LAN pool.
// exclude reports whether a server must not be added.
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
			changes = append(changes, change{addServer, p.Name, "alive in the LAN pool"})
		}
	}
	for _, s := range servers {
		if s.Voter || s.Node == m.self {
			continue
		}
		if remaining := m.untilVote(now, s, last, members); remaining == 0 {
			changes = append(changes, change{giveVote, s.Node, "up to date"})
		} else {
			wait = min(wait, remaining)
		}
	}
	renewed, untilRenewed := m.renewed(now, servers, members)
	if renewed != "" {
		return append(changes, change{removeServer, renewed,
			"its data directory is new; it joins again without a vote"}), 0
	}
	dead, untilDead := m.dead(now, servers, members)
	wait = min(wait, untilRenewed, untilDead)
	for _, s := range dead {
		if err := m.mayRemove(s, servers, members); err != nil {
			if !m.stuck[s.Node] {
				m.warnings = append(m.warnings, warning{s.Node, err.Error()})
			}
			m.stuck[s.Node] = true
			continue
		}
		reason := fmt.Sprintf("down for %v", now.Sub(m.down[s.Node]).Round(time.Second))
		return append(changes, change{removeServer, s.Node, reason}), wait // at most one removal
	}
	return changes, wait
}

// untilVote returns the time until the next check of a server without a vote,
// or 0 if the server may have a vote now.
func (m *membership) untilVote(now time.Time, s raftstore.Member, last uint64, members []gossip.Member) time.Duration {
	upToDate := alive(members, s.Node) && s.LastContact >= 0 && s.LastContact < recentContact &&
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

// renewed returns a voter that has a new data directory and may be removed now,
// or "". The other voters must have a quorum. wait is the maximum time until
// the next call.
func (m *membership) renewed(
	now time.Time, servers []raftstore.Member, members []gossip.Member,
) (node string, wait time.Duration) {
	wait = planInterval
	joining := map[string]time.Time{}
	for _, s := range servers {
		p := find(members, s.Node)
		running := p != nil && p.Alive() && s.LastContact >= 0 && s.LastContact < runningContact
		if !s.Voter || s.Node == m.self || !running || p.Tags[TagJoining] == "" {
			continue
		}
		since, ok := m.joining[s.Node]
		if !ok {
			since = now
		}
		joining[s.Node] = since
		if remaining := joiningTime - now.Sub(since); remaining > 0 {
			wait = min(wait, remaining)
		} else if rest, up := otherVoters(s.Node, m.self, servers, members); up >= rest/2+1 {
			node = s.Node
		}
	}
	m.joining = joining
	return node, wait
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
		if remaining := m.deadAfter - now.Sub(since); remaining > 0 {
			wait = min(wait, remaining)
		} else {
			dead = append(dead, s)
		}
	}
	maps.DeleteFunc(m.stuck, func(node string, _ bool) bool { return down[node].IsZero() })
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
	rest, up := otherVoters(s.Node, m.self, servers, members)
	expect := m.expect
	for _, p := range members {
		if n, err := strconv.Atoi(p.Tags[TagExpect]); err == nil && p.Alive() {
			expect = max(expect, n)
		}
	}
	switch down := rest + 1 - up; {
	case down > rest/2:
		return fmt.Errorf("%d of %d voters are down: more than a minority", down, rest+1)
	case rest < expect/2+1:
		return fmt.Errorf("%d voters would remain, and %d servers (bootstrap_expect) need %d", rest, expect, expect/2+1)
	case up < rest/2+1:
		return fmt.Errorf("only %d of the %d voters that would remain are up", up, rest)
	}
	return nil
}

// otherVoters returns the number of voters other than node, and the number of
// those that are up. The leader is up.
func otherVoters(node, leader string, servers []raftstore.Member, members []gossip.Member) (voters, up int) {
	for _, v := range servers {
		if !v.Voter || v.Node == node {
			continue
		}
		voters++
		if v.Node == leader || alive(members, v.Node) {
			up++
		}
	}
	return voters, up
}

// find returns the member of the LAN pool with the name node, or nil.
func find(members []gossip.Member, node string) *gossip.Member {
	i := slices.IndexFunc(members, func(p gossip.Member) bool { return p.Name == node })
	if i < 0 {
		return nil
	}
	return &members[i]
}

func alive(members []gossip.Member, node string) bool {
	p := find(members, node)
	return p != nil && p.Alive()
}
