// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/tlsutil"
)

// ErrHasState says that Bootstrap is not for a server that has a log, or that voted for another one which bootstrapped first.
// It will hear from a leader, or be one.
var ErrHasState = errors.New("this server has Raft state already")

// nudge is what hurry shortens the heartbeat timeout by, and restores.
const nudge = time.Millisecond

// HasState says whether this server has ever been part of a group. If not, it waits for Bootstrap or a leader.
func (s *Store) HasState() bool {
	return s.raft.LastIndex() > 0 || s.raft.CurrentTerm() > 0
}

// Bootstrap makes nodes, this one among them, the first group. Called on several of them it must be with the same list. On
// a server with state it does nothing and returns ErrHasState.
func (s *Store) Bootstrap(nodes []string) error {
	nodes = slices.Sorted(slices.Values(nodes))
	if err := s.checkGroup(nodes); err != nil {
		return fmt.Errorf("bootstrap %v: %w", nodes, err)
	}
	var group raft.Configuration
	for _, node := range nodes {
		group.Servers = append(group.Servers, server(node))
	}
	ctx, cancel := context.WithTimeout(context.Background(), rpcTimeout)
	defer cancel()
	_, err := s.call(ctx, func() raft.Future { return s.raft.BootstrapCluster(group) })
	if errors.Is(err, raft.ErrCantBootstrap) {
		err = ErrHasState
	}
	if err != nil {
		return fmt.Errorf("bootstrap %v: %w", nodes, err)
	}
	s.log.Info("raft group bootstrapped", "nodes", nodes)
	if nodes[0] == s.cfg.Node {
		s.hurry() // one of them alone, so that they do not split the vote
	}
	return nil
}

// checkGroup wants nodes sorted.
func (s *Store) checkGroup(nodes []string) error {
	for i, node := range nodes {
		if err := tlsutil.CheckLabel(node); err != nil {
			return err
		}
		if i > 0 && node == nodes[i-1] {
			return fmt.Errorf("node %q is listed twice", node)
		}
	}
	if !slices.Contains(nodes, s.cfg.Node) {
		return fmt.Errorf("this node, %q, is not listed", s.cfg.Node)
	}
	return nil
}

func server(node string) raft.Server {
	return raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(node), Address: raft.ServerAddress(node)}
}

// hurry makes a follower call an election now. Raft looks at its timeout again when it becomes shorter; whether to call one
// it decides as ever, so that a follower that hears from a leader does not.
func (s *Store) hurry() {
	rc := s.raft.ReloadableConfig()
	for _, t := range []time.Duration{s.cfg.Heartbeat + nudge, s.cfg.Heartbeat} {
		rc.HeartbeatTimeout = t
		if err := s.raft.ReloadConfig(rc); err != nil {
			s.log.Warn("raft timeouts not changed", "err", err)
		}
	}
}

// alone says whether this server is the only voter.
func (s *Store) alone() bool {
	voters, err := s.Peers()
	return err == nil && len(voters) == 1 && voters[0] == s.cfg.Node
}

// Peers returns the voters of the group, sorted, this server among them if it is one; none before it is in a group.
func (s *Store) Peers() ([]string, error) {
	servers, err := s.servers()
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
func (s *Store) servers() ([]raft.Server, error) {
	f := s.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("servers of the Raft group: %w", readError(err))
	}
	return f.Configuration().Servers, nil
}

// AddVoter makes node, whose store is open and has no state or is behind, a voter. It blocks until the group has agreed.
// Only the leader can; errors are those of Commit. One that is a voter is left alone.
func (s *Store) AddVoter(ctx context.Context, node string) error {
	if err := tlsutil.CheckLabel(node); err != nil {
		return fmt.Errorf("add voter: %w", err)
	}
	done := func(srv raft.Server, in bool) bool { return in && srv.Suffrage == raft.Voter }
	return s.changeGroup(ctx, "add voter", node, done, func() raft.Future {
		srv := server(node)
		return s.raft.AddVoter(srv.ID, srv.Address, 0, untilDeadline(ctx))
	})
}

// AddNonvoter lets node, whose store is open and has no state or is behind, follow without a vote, until AddVoter. It blocks
// until the group has agreed. Only the leader can; errors are those of Commit. One that is in the group is left alone.
func (s *Store) AddNonvoter(ctx context.Context, node string) error {
	if err := tlsutil.CheckLabel(node); err != nil {
		return fmt.Errorf("add nonvoter: %w", err)
	}
	done := func(_ raft.Server, in bool) bool { return in }
	return s.changeGroup(ctx, "add nonvoter", node, done, func() raft.Future {
		srv := server(node)
		return s.raft.AddNonvoter(srv.ID, srv.Address, 0, untilDeadline(ctx))
	})
}

// RemoveServer takes node out of the group. It blocks until the group has agreed. Only the leader can, also of itself;
// errors are those of Commit. One that is not in the group is left alone.
func (s *Store) RemoveServer(ctx context.Context, node string) error {
	done := func(_ raft.Server, in bool) bool { return !in }
	return s.changeGroup(ctx, "remove server", node, done, func() raft.Future {
		return s.raft.RemoveServer(raft.ServerID(node), 0, untilDeadline(ctx))
	})
}

// changeGroup asks of Raft what start does, unless done says of the node, which is in the group or not, that it is so.
func (s *Store) changeGroup(ctx context.Context, what, node string, done func(srv raft.Server, in bool) bool, start func() raft.Future) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := s.leadTerm(ctx); err != nil { // else what is in the group might be old news
		return fmt.Errorf("%s %s: %w", what, node, err)
	}
	servers, err := s.servers()
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
	_, err = s.call(ctx, start)
	s.trans.patience.release() // nobody waits for one that has left
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, node, commitError(err))
	}
	s.log.Info("raft group changed", "change", what, "peer", node)
	return nil
}
