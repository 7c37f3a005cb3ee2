// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource"
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
	f := s.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("voters: %w", readError(err))
	}
	var voters []string
	for _, srv := range f.Configuration().Servers {
		if srv.Suffrage == raft.Voter {
			voters = append(voters, string(srv.ID))
		}
	}
	slices.Sort(voters)
	return voters, nil
}

// AddVoter makes node, whose store is open and has no state or is behind, a voter. It blocks until the group has agreed.
// Only the leader can; errors are those of Commit. One that is a voter is left alone.
func (s *Store) AddVoter(ctx context.Context, node string) error {
	if err := tlsutil.CheckLabel(node); err != nil {
		return fmt.Errorf("add voter: %w", err)
	}
	return s.changeGroup(ctx, "add voter", node, true, func() raft.Future {
		srv := server(node)
		return s.raft.AddVoter(srv.ID, srv.Address, 0, untilDeadline(ctx))
	})
}

// RemoveServer takes node out of the group. It blocks until the group has agreed. Only the leader can, also of itself;
// errors are those of Commit. One that is no voter is left alone.
func (s *Store) RemoveServer(ctx context.Context, node string) error {
	return s.changeGroup(ctx, "remove server", node, false, func() raft.Future {
		return s.raft.RemoveServer(raft.ServerID(node), 0, untilDeadline(ctx))
	})
}

func (s *Store) changeGroup(ctx context.Context, what, node string, want bool, start func() raft.Future) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := s.leadTerm(ctx); err != nil { // else "is a voter already" might be old news
		return fmt.Errorf("%s %s: %w", what, node, err)
	}
	voters, err := s.Peers()
	if err != nil || slices.Contains(voters, node) == want {
		return err
	}
	_, err = s.call(ctx, start)
	s.trans.patience.release() // nobody waits for one that has left
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, node, commitError(err))
	}
	s.log.Info("raft group changed", "change", what, "peer", node)
	return nil
}

// TransferLeadership hands leadership to another voter, before this server stops: to the one whose log is furthest, or, if
// that one does not answer, to the next. It blocks for a few round trips, at most an election timeout for each voter. Only
// the leader can: resource.ErrNotLeader.
func (s *Store) TransferLeadership(ctx context.Context) error {
	voters, err := s.Peers()
	if err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	others := slices.DeleteFunc(voters, func(node string) bool { return node == s.cfg.Node })
	if len(others) == 0 {
		return errors.New("transfer leadership: there is no other voter")
	}
	tries := []func() raft.Future{func() raft.Future { return s.raft.LeadershipTransfer() }}
	for _, node := range others {
		srv := server(node)
		tries = append(tries, func() raft.Future { return s.raft.LeadershipTransferToServer(srv.ID, srv.Address) })
	}
	defer s.trans.patience.rush()()
	for len(tries) > 0 {
		_, err = s.call(ctx, tries[0])
		switch {
		case err == nil:
			return nil
		case errors.Is(err, raft.ErrLeadershipTransferInProgress): // of another caller, or the end of our own last try
			if err = sleep(ctx, barrierRetry); err == nil {
				continue
			}
		}
		if err = readError(err); ctx.Err() != nil || errors.Is(err, resource.ErrNotLeader) {
			break
		}
		tries = tries[1:]
	}
	return fmt.Errorf("transfer leadership: %w", err)
}
