// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// ErrHasState is returned by Bootstrap on a server that has a log, or that
// voted for a server which bootstrapped first. Such a server is a follower or a
// leader.
var ErrHasState = errors.New("this server has Raft state already")

// electionNudge is the time by which callElection shortens the heartbeat
// timeout.
const electionNudge = time.Millisecond

// membership manages the servers of the Raft group.
type membership struct {
	*calls
	leadership *leadership
	node       string
	heartbeat  time.Duration
	raft       *raft.Raft
	trans      *transport
	logger     *slog.Logger
}

func voter(node string) raft.Server {
	return raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(node), Address: raft.ServerAddress(node)}
}

// HasState reports whether this server has ever been part of a group. If not,
// it waits for Bootstrap or for a leader.
func (m *membership) HasState() bool {
	return m.raft.LastIndex() > 0 || m.raft.CurrentTerm() > 0
}

// Bootstrap forms the first group from nodes, which must include this server.
// If Bootstrap is called on several servers, the list must be the same. On a
// server with state it has no effect and returns ErrHasState.
func (m *membership) Bootstrap(nodes []string) error {
	nodes = slices.Sorted(slices.Values(nodes))
	if err := m.checkNodes(nodes); err != nil {
		return fmt.Errorf("bootstrap %v: %w", nodes, err)
	}
	var conf raft.Configuration
	for _, node := range nodes {
		conf.Servers = append(conf.Servers, voter(node))
	}
	ctx, cancel := context.WithTimeout(context.Background(), rpcTimeout)
	defer cancel()
	_, err := m.do(ctx, func() raft.Future { return m.raft.BootstrapCluster(conf) })
	if errors.Is(err, raft.ErrCantBootstrap) {
		err = ErrHasState
	}
	if err != nil {
		return fmt.Errorf("bootstrap %v: %w", nodes, err)
	}
	m.logger.Info("raft group bootstrapped", "nodes", nodes)
	if nodes[0] == m.node {
		m.callElection() // only one server calls an election, so that the vote is not split
	}
	return nil
}

// checkNodes checks the sorted nodes of a new group.
func (m *membership) checkNodes(nodes []string) error {
	for i, node := range nodes {
		if err := tlsutil.CheckLabel(node); err != nil {
			return err
		}
		if i > 0 && node == nodes[i-1] {
			return fmt.Errorf("node %q is listed twice", node)
		}
	}
	if !slices.Contains(nodes, m.node) {
		return fmt.Errorf("this node, %q, is not listed", m.node)
	}
	return nil
}

// callElection makes a follower that has no leader call an election now. Raft
// looks at its timeout again when the timeout becomes shorter.
func (m *membership) callElection() {
	rc := m.raft.ReloadableConfig()
	for _, t := range []time.Duration{m.heartbeat + electionNudge, m.heartbeat} {
		rc.HeartbeatTimeout = t
		if err := m.raft.ReloadConfig(rc); err != nil {
			m.logger.Warn("cannot change raft timeouts", "err", err)
		}
	}
}

// isOnlyVoter reports whether this server is the only voter.
func (m *membership) isOnlyVoter() bool {
	voters, err := m.Peers()
	return err == nil && len(voters) == 1 && voters[0] == m.node
}

// leadsMember reports whether this server leads a group that has id as a voter,
// in that term.
func (m *membership) leadsMember(id raft.ServerID, term uint64) bool {
	voters, err := m.Peers()
	return err == nil && slices.Contains(voters, string(id)) &&
		m.raft.State() == raft.Leader && m.raft.CurrentTerm() == term
}

// Peers returns the sorted voters of the group, including this server if it is
// a voter. The list is empty until this server is in a group.
func (m *membership) Peers() ([]string, error) {
	servers, err := m.servers()
	if err != nil {
		return nil, err
	}
	var voters []string
	for _, srv := range servers {
		if srv.Suffrage == raft.Voter {
			voters = append(voters, string(srv.ID))
		}
	}
	slices.Sort(voters)
	return voters, nil
}

// servers returns the latest configuration that this server has.
func (m *membership) servers() ([]raft.Server, error) {
	f := m.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("servers of the Raft group: %w", readError(err))
	}
	return f.Configuration().Servers, nil
}

// AddVoter makes node a voter. Its store must be open, and have no state or be
// behind. AddVoter blocks until the group has agreed. It succeeds only on the
// leader, and returns the errors of Commit. Adding a voter again has no effect.
func (m *membership) AddVoter(ctx context.Context, node string) error {
	done := func(srv raft.Server, member bool) bool { return member && srv.Suffrage == raft.Voter }
	return m.add(ctx, "add voter", node, done, m.raft.AddVoter)
}

// AddNonvoter makes node a member that receives the log and has no vote, until
// AddVoter. Its store must be open, and have no state or be behind. AddNonvoter
// blocks until the group has agreed. It succeeds only on the leader, and returns
// the errors of Commit. Adding a member again has no effect.
func (m *membership) AddNonvoter(ctx context.Context, node string) error {
	done := func(_ raft.Server, member bool) bool { return member }
	return m.add(ctx, "add nonvoter", node, done, m.raft.AddNonvoter)
}

// add calls change with a Raft method that adds a server.
func (m *membership) add(
	ctx context.Context, what, node string, done func(srv raft.Server, member bool) bool,
	method func(raft.ServerID, raft.ServerAddress, uint64, time.Duration) raft.IndexFuture,
) error {
	if err := tlsutil.CheckLabel(node); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return m.change(ctx, what, node, done, func() raft.Future {
		return method(raft.ServerID(node), raft.ServerAddress(node), 0, untilDeadline(ctx))
	})
}

// RemoveServer removes node from the group. The node may be the leader itself.
// It blocks until the group has agreed. It succeeds only on the leader, and
// returns the errors of Commit. Removing a server that is not a member has no
// effect.
func (m *membership) RemoveServer(ctx context.Context, node string) error {
	done := func(_ raft.Server, member bool) bool { return !member }
	return m.change(ctx, "remove server", node, done, func() raft.Future {
		return m.raft.RemoveServer(raft.ServerID(node), 0, untilDeadline(ctx))
	})
}

// change runs start, which changes the membership of node. It does not run
// start if done reports that the change is already made.
func (m *membership) change(
	ctx context.Context, what, node string,
	done func(srv raft.Server, member bool) bool, start func() raft.Future,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// A server that does not lead may have an old configuration.
	if _, err := m.leadership.leaderTerm(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", what, node, err)
	}
	servers, err := m.servers()
	if err != nil {
		return err
	}
	var srv raft.Server
	i := slices.IndexFunc(servers, func(srv raft.Server) bool { return srv.ID == raft.ServerID(node) })
	if i >= 0 {
		srv = servers[i]
	}
	if done(srv, i >= 0) {
		return nil
	}
	_, err = m.do(ctx, start)
	m.trans.holdback.release() // no call waits for a server that was removed
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, node, writeError(err))
	}
	m.logger.Info("raft group changed", "change", what, "peer", node)
	return nil
}

// TransferLeadership transfers leadership to another voter, before this server
// stops. It tries the voter with the longest log first, and then each other
// voter. It blocks for a few round trips, at most an election timeout for each
// voter. On another server than the leader, it fails with
// resource.ErrNotLeader.
func (m *membership) TransferLeadership(ctx context.Context) error {
	voters, err := m.Peers()
	if err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	others := slices.DeleteFunc(voters, func(node string) bool { return node == m.node })
	if len(others) == 0 {
		return errors.New("transfer leadership: this server is the only voter")
	}
	attempts := []func() raft.Future{func() raft.Future { return m.raft.LeadershipTransfer() }}
	for _, node := range others {
		attempts = append(attempts, m.transferTo(node))
	}
	return m.transfer(ctx, attempts)
}

// TransferLeadershipTo transfers leadership to node, which must be a voter, when
// the log of node is complete. It blocks for a few round trips, at most an election
// timeout, and until this server receives a message of the new leader. It fails if
// another server was elected, and with resource.ErrNotLeader on a follower.
func (m *membership) TransferLeadershipTo(ctx context.Context, node string) error {
	voters, err := m.Peers()
	switch {
	case err != nil:
		return fmt.Errorf("transfer leadership: %w", err)
	case m.raft.State() != raft.Leader:
		return fmt.Errorf("transfer leadership: %w", resource.ErrNotLeader)
	case node == m.node:
		return fmt.Errorf("transfer leadership: %s leads already", node)
	case !slices.Contains(voters, node):
		return fmt.Errorf("transfer leadership: %s is not a voter; the voters are %v", node, voters)
	}
	if err := m.transfer(ctx, []func() raft.Future{m.transferTo(node)}); err != nil {
		return err
	}
	return m.awaitLeader(ctx, node)
}

// awaitLeader waits until a leader is known, for a few elections at most. It
// fails unless the leader is node. Raft reports success of a transfer when this
// server no longer leads, whatever the reason.
func (m *membership) awaitLeader(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*m.heartbeat)
	defer cancel()
	for {
		changed := m.leadership.LeaderChanged()
		switch _, id := m.raft.LeaderWithID(); string(id) {
		case node:
			return nil
		case "":
		default:
			return fmt.Errorf("transfer leadership: %s was elected, not %s; send the request to %s", id, node, id)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("transfer leadership: this server gave up leadership, and no new leader is known: %w", ctx.Err())
		case <-m.donec:
			return fmt.Errorf("transfer leadership: %w", resource.ErrClosed)
		}
	}
}

func (m *membership) transferTo(node string) func() raft.Future {
	srv := voter(node)
	return func() raft.Future { return m.raft.LeadershipTransferToServer(srv.ID, srv.Address) }
}

// transfer runs the attempts in order until one succeeds.
func (m *membership) transfer(ctx context.Context, attempts []func() raft.Future) (err error) {
	defer m.trans.holdback.suspend()()
	for len(attempts) > 0 {
		_, err = m.do(ctx, attempts[0])
		switch {
		case err == nil:
			return nil
		case errors.Is(err, raft.ErrLeadershipTransferInProgress): // another caller's, or the end of the last attempt
			backoff.Sleep(ctx, barrierRetry, nil)
			if err = ctx.Err(); err == nil {
				continue
			}
		}
		if err = readError(err); ctx.Err() != nil || errors.Is(err, resource.ErrNotLeader) {
			break
		}
		attempts = attempts[1:]
	}
	return fmt.Errorf("transfer leadership: %w", err)
}

// Member is one server of the Raft group.
type Member struct {
	Node string
	// Voter is false for a server that receives the log and has no vote.
	Voter bool
	// Leader reports whether this is the known leader.
	Leader bool
	// LastContact is, on the leader, the time since the last response of the
	// member. On a follower it is the time since the last message of the leader.
	// It is 0 for the leader itself, and -1 if it is unknown.
	LastContact time.Duration
	// LastIndex is the index of the last entry that the log of the member shares
	// with the log of the leader. It is 0 if unknown. A follower reports only its
	// own index.
	LastIndex uint64
}

// Members returns the servers of the group, sorted by node. The list is empty
// until this server is in a group.
func (m *membership) Members() ([]Member, error) {
	servers, err := m.servers()
	if err != nil {
		return nil, err
	}
	_, leader := m.raft.LeaderWithID()
	term, leads, now := m.raft.CurrentTerm(), m.raft.State() == raft.Leader, time.Now()
	all := make([]Member, 0, len(servers))
	for _, srv := range servers {
		member := Member{Node: string(srv.ID), Voter: srv.Suffrage == raft.Voter, Leader: srv.ID == leader, LastContact: -1}
		var contact time.Time
		switch {
		case member.Node == m.node:
			member.LastIndex = m.raft.LastIndex()
			if leads {
				contact = now
			}
		case leads:
			p := m.trans.progress.get(srv.ID, term)
			contact, member.LastIndex = p.contact, p.match
		case member.Leader:
			contact = m.raft.LastContact()
		}
		if !contact.IsZero() {
			member.LastContact = max(now.Sub(contact), 0)
		}
		all = append(all, member)
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	return all, nil
}

// LastContact returns the time since the last contact with the leader: 0 on the
// leader, -1 if there was none.
func (m *membership) LastContact() time.Duration {
	switch last := m.raft.LastContact(); {
	case m.raft.State() == raft.Leader:
		return 0
	case !last.IsZero():
		return time.Since(last)
	}
	return -1
}

// LastIndex returns the index of the last entry in this server's log.
func (m *membership) LastIndex() uint64 { return m.raft.LastIndex() }
