// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// ErrHasState is returned by Bootstrap on a server that has a log or has voted.
var ErrHasState = errors.New("this server has Raft state already")

// timeoutStep is the time that callElection adds to the heartbeat timeout
// before it restores the timeout.
const timeoutStep = time.Millisecond

// membership manages the servers of the Raft group.
type membership struct {
	*calls
	leadership *leadership
	node       string
	heartbeat  time.Duration
	raft       *raft.Raft
	trans      *transport
	admission  *admission
}

func voter(node string) raft.Server {
	return raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(node), Address: raft.ServerAddress(node)}
}

// HasState reports whether this server has ever been part of a group. A server
// without state waits for Bootstrap or for a leader.
func (m *membership) HasState() bool {
	return m.raft.LastIndex() > 0 || m.raft.CurrentTerm() > 0
}

// Bootstrap forms the first group from nodes, which must include this server.
// All servers that call Bootstrap must pass the same nodes. On a server with
// state, Bootstrap has no effect and returns ErrHasState.
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
	if err == nil {
		err = m.admission.admit()
	}
	if err != nil {
		return fmt.Errorf("bootstrap %v: %w", nodes, err)
	}
	m.logger.Info("raft group bootstrapped", "nodes", nodes)
	if nodes[0] == m.node {
		m.callElection() // on one server only: two candidates would split the vote
	}
	return nil
}

// checkNodes checks the sorted node names of a new group.
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

// callElection makes a follower without a leader call an election immediately.
// Raft compares the time since the last heartbeat with the heartbeat timeout
// when the timeout becomes shorter. Therefore callElection first makes the
// timeout longer by timeoutStep, and then restores it.
func (m *membership) callElection() {
	rc := m.raft.ReloadableConfig()
	for _, t := range []time.Duration{m.heartbeat + timeoutStep, m.heartbeat} {
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

// leadsMember reports whether this server leads in that term, and id is a voter
// of its group.
func (m *membership) leadsMember(id raft.ServerID, term uint64) bool {
	voters, err := m.Peers()
	return err == nil && slices.Contains(voters, string(id)) &&
		m.raft.State() == raft.Leader && m.raft.CurrentTerm() == term
}

// Peers returns the sorted node names of the voters. The list includes this
// server if it is a voter, and is empty until this server is in a group.
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

// AddVoter makes node a voter. The store of node must be open, and must be
// empty or behind the leader. A store with a new directory votes only if it was
// a member without a vote before: see AddNonvoter. AddVoter succeeds only on
// the leader, blocks until the group has agreed, and returns the errors of
// Commit. Adding a voter again has no effect.
func (m *membership) AddVoter(ctx context.Context, node string) error {
	return m.change(ctx, "add voter", node, raft.Voter, func(srv raft.Server) raft.Future {
		return m.raft.AddVoter(srv.ID, srv.Address, 0, untilDeadline(ctx))
	})
}

// AddNonvoter makes node a member that receives the log and has no vote until
// AddVoter is called. Otherwise AddNonvoter is equivalent to AddVoter. Adding a
// member again has no effect.
func (m *membership) AddNonvoter(ctx context.Context, node string) error {
	return m.change(ctx, "add nonvoter", node, raft.Nonvoter, func(srv raft.Server) raft.Future {
		return m.raft.AddNonvoter(srv.ID, srv.Address, 0, untilDeadline(ctx))
	})
}

// RemoveServer removes node from the group. The node may be the leader.
// RemoveServer succeeds only on the leader, blocks until the group has agreed,
// and returns the errors of Commit. Removing an unknown server has no effect.
func (m *membership) RemoveServer(ctx context.Context, node string) error {
	return m.change(ctx, "remove server", node, notMember, func(srv raft.Server) raft.Future {
		return m.raft.RemoveServer(srv.ID, 0, untilDeadline(ctx))
	})
}

// notMember is the suffrage of a server that is not in the group.
const notMember raft.ServerSuffrage = -1

// change runs start, which changes the suffrage of node to suffrage. If node
// already has this suffrage, change does nothing. If node is a voter and
// suffrage is Nonvoter, change does nothing either, because Raft would take the
// vote away. The action describes the change in errors and logs.
func (m *membership) change(
	ctx context.Context, action, node string, suffrage raft.ServerSuffrage, start func(raft.Server) raft.Future,
) error {
	if err := tlsutil.CheckLabel(node); err != nil && suffrage != notMember {
		return fmt.Errorf("%s: %w", action, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// A server that does not lead may have an outdated configuration.
	if _, err := m.leadership.leaderTerm(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", action, node, err)
	}
	servers, err := m.servers()
	if err != nil {
		return err
	}
	current := notMember
	for _, srv := range servers {
		if string(srv.ID) == node {
			current = srv.Suffrage
		}
	}
	if current == suffrage || suffrage == raft.Nonvoter && current != notMember {
		return nil
	}
	_, err = m.do(ctx, func() raft.Future { return start(voter(node)) })
	m.trans.holdback.release() // calls to a removed server must not be held
	if err != nil {
		return fmt.Errorf("%s %s: %w", action, node, writeError(err))
	}
	m.logger.Info("raft group changed", "change", action, "peer", node)
	return nil
}

// TransferLeadership transfers leadership to another voter before this server
// stops. The voter with the longest log is the first candidate, then each other
// voter. TransferLeadership blocks for a few round trips, at most an election
// timeout per voter. On a follower it returns resource.ErrNotLeader.
func (m *membership) TransferLeadership(ctx context.Context) error {
	voters, err := m.Peers()
	if err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	others := slices.DeleteFunc(voters, func(node string) bool { return node == m.node })
	if len(others) == 0 {
		return errors.New("transfer leadership: this server is the only voter")
	}
	return m.transfer(ctx, append([]string{""}, others...))
}

// TransferLeadershipTo transfers leadership to node, which must be a voter,
// after the log of node is complete. It blocks for a few round trips, at most
// an election timeout, and then until this server receives a message of the new
// leader. It returns an error if another server was elected, and
// resource.ErrNotLeader on a follower.
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
	if err := m.transfer(ctx, []string{node}); err != nil {
		return err
	}
	return m.awaitLeader(ctx, node)
}

// awaitLeader waits until a leader is known, at most for a few election
// timeouts. It returns an error unless node leads. Raft reports a successful
// transfer whenever this server no longer leads, for any reason.
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
			return fmt.Errorf("transfer leadership: this server no longer leads, and no new leader is known: %w",
				ctx.Err())
		case <-m.donec:
			return fmt.Errorf("transfer leadership: %w", resource.ErrClosed)
		}
	}
}

// transfer transfers leadership to the first of nodes that takes it. The node
// "" is the voter with the longest log.
func (m *membership) transfer(ctx context.Context, nodes []string) (err error) {
	defer m.trans.holdback.suspend()()
	for _, node := range nodes {
		start := func() raft.Future { return m.raft.LeadershipTransfer() }
		if srv := voter(node); node != "" {
			start = func() raft.Future { return m.raft.LeadershipTransferToServer(srv.ID, srv.Address) }
		}
		_, err = m.do(ctx, start)
		for errors.Is(err, raft.ErrLeadershipTransferInProgress) { // of another caller or of the last attempt
			backoff.Sleep(ctx, barrierRetry, nil)
			if err = ctx.Err(); err == nil {
				_, err = m.do(ctx, start)
			}
		}
		if err == nil {
			return nil
		}
		if err = readError(err); ctx.Err() != nil || errors.Is(err, resource.ErrNotLeader) {
			break
		}
	}
	return fmt.Errorf("transfer leadership: %w", err)
}

// Member is one server of the Raft group.
type Member struct {
	Node string
	// Voter is false for a server that receives the log and has no vote.
	Voter bool
	// Leader reports whether this member is the known leader.
	Leader bool
	// LastContact is the time since the last response of the member, measured
	// by the leader. A follower knows only the time since the last message of
	// the leader. LastContact is 0 for the leader, and -1 if unknown.
	LastContact time.Duration
	// LastIndex is the index of the last entry that the log of the member
	// shares with the log of the leader, or 0 if unknown. A follower knows only
	// its own index.
	LastIndex uint64
}

// Members returns the servers of the group, sorted by node name. The list is
// empty until this server is in a group.
func (m *membership) Members() ([]Member, error) {
	servers, err := m.servers()
	if err != nil {
		return nil, err
	}
	_, leader := m.raft.LeaderWithID()
	term, leads, now := m.raft.CurrentTerm(), m.raft.State() == raft.Leader, time.Now()
	all := make([]Member, 0, len(servers))
	for _, srv := range servers {
		member := Member{Node: string(srv.ID), Voter: srv.Suffrage == raft.Voter, Leader: srv.ID == leader,
			LastContact: -1}
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

// LastContact returns the time since the last message of the leader: 0 on the
// leader, -1 if there was no message.
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
