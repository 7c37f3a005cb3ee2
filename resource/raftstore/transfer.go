// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource"
)

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
		tries = append(tries, s.transferTo(node))
	}
	return s.transfer(ctx, tries)
}

// TransferLeadershipTo hands leadership to that voter and no other, once its log is level. It blocks for a few round trips, at
// most an election timeout, and until this server knows who leads. An error says so if another does. Only the leader can:
// resource.ErrNotLeader.
func (s *Store) TransferLeadershipTo(ctx context.Context, node string) error {
	voters, err := s.Peers()
	switch {
	case err != nil:
		return fmt.Errorf("transfer leadership: %w", err)
	case s.raft.State() != raft.Leader:
		return fmt.Errorf("transfer leadership: %w", resource.ErrNotLeader)
	case node == s.cfg.Node:
		return fmt.Errorf("transfer leadership: %s leads already", node)
	case !slices.Contains(voters, node):
		return fmt.Errorf("transfer leadership: %s is no voter; the voters are %v", node, voters)
	}
	if err := s.transfer(ctx, []func() raft.Future{s.transferTo(node)}); err != nil {
		return err
	}
	return s.wentTo(ctx, node)
}

// wentTo waits until a leader is known, for a few elections at most: an error unless it is node. For Raft a transfer has succeeded when
// this server leads no more, whatever the reason.
func (s *Store) wentTo(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*s.cfg.Heartbeat)
	defer cancel()
	for {
		_, changed := s.current()
		switch _, id := s.raft.LeaderWithID(); string(id) {
		case node:
			return nil
		case "":
		default:
			return fmt.Errorf("transfer leadership: %s was elected meanwhile, not %s; ask that one to hand it over", id, node)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("transfer leadership: given up, and who leads now is not known yet: %w", ctx.Err())
		case <-s.donec:
			return fmt.Errorf("transfer leadership: %w", resource.ErrClosed)
		}
	}
}

func (s *Store) transferTo(node string) func() raft.Future {
	srv := server(node)
	return func() raft.Future { return s.raft.LeadershipTransferToServer(srv.ID, srv.Address) }
}

// transfer does one of tries after the other until one succeeds.
func (s *Store) transfer(ctx context.Context, tries []func() raft.Future) (err error) {
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
