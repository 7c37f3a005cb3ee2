// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Commit is resource.Backend's. It blocks for a disk write and a round trip to a majority. Only the leader can:
// resource.ErrNotLeader elsewhere. Above 32 MiB, a batch is refused, and one that some server does not understand with resource.ErrUnsupported.
func (s *Store) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := resource.CheckOps(ops); err != nil {
		return nil, err
	}
	if err := resource.CheckSupported(ops, s.cfg.OpsVersion); err != nil {
		return nil, err
	}
	entry, err := proto.Marshal(&pb.Batch{Ops: ops})
	if err != nil {
		return nil, fmt.Errorf("encode batch: %w", err)
	}
	if len(entry) > maxEntry {
		return nil, fmt.Errorf("%w batch: %d ops of %d bytes are above %d; commit them in several", resource.ErrInvalid, len(ops), len(entry), maxEntry)
	}
	res, err := s.apply(ctx, entry)
	if err != nil {
		if why := s.failure(); why != nil && !errors.Is(err, errRefused) {
			err = errors.Join(why, err)
		}
		return nil, fmt.Errorf("commit: %w", commitError(err))
	}
	return res.resources, s.because(res.err)
}

// apply has Raft commit an entry, and returns what it did to the state; err is as call's.
func (s *Store) apply(ctx context.Context, entry []byte) (result, error) {
	s.mu.Lock()
	if err := s.errLocked(); err != nil {
		s.mu.Unlock()
		return result{}, fmt.Errorf("%w: %w", errRefused, err)
	}
	w, ask := s.answers.expect(entry)
	if ask {
		s.calls.Go(func() { s.answers.ask(s.closingc, s.failedc) })
	}
	s.mu.Unlock()
	if w == nil {
		f, err := s.call(ctx, func() raft.Future { return s.raft.Apply(entry, untilDeadline(ctx)) })
		if err != nil {
			return result{}, err
		}
		return f.(raft.ApplyFuture).Response().(result), nil
	}
	s.answers.given(w, s.raft.Apply(entry, untilDeadline(ctx)))
	select {
	case is := <-w.c:
		return is.result, is.raftErr
	case <-ctx.Done():
		return result{}, ctx.Err()
	case <-s.donec:
		return result{}, resource.ErrClosed
	}
}

// Understood is resource.ReplicatedBackend's.
func (s *Store) OpsVersion() (version int, node string) { return s.cfg.OpsVersion() }

// untilDeadline is how long Raft may take to accept a request; 0 is no bound.
func untilDeadline(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Nanosecond)
	}
	return 0
}

// commitError says in our errors what became of an entry.
func commitError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	case errors.Is(err, raft.ErrEnqueueTimeout): // Raft never took it
		return context.DeadlineExceeded
	case errors.Is(err, errRefused), errors.Is(err, resource.ErrReadOnly):
		return err
	default: // leadership lost, disk fault, shutdown or our own impatience: the entry may be in the log of some server
		return fmt.Errorf("%w: %w", resource.ErrUnknownOutcome, err)
	}
}

// errRefused marks errors of call that came before anything was asked of Raft.
var errRefused = errors.New("store takes no calls")

// call runs start, which asks something of Raft, and waits for the answer, ctx or Close. Raft's futures do not end with a
// context, so that each waits in a goroutine of its own. An error of ctx or Close says nothing of what Raft does.
func (s *Store) call(ctx context.Context, start func() raft.Future) (raft.Future, error) {
	s.mu.Lock()
	if err := s.errLocked(); err != nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	type answer struct {
		f   raft.Future
		err error
	}
	answerc := make(chan answer, 1)
	s.calls.Go(func() {
		f := start()
		answerc <- answer{f, f.Error()}
	})
	s.mu.Unlock()

	select {
	case a := <-answerc:
		return a.f, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.donec:
		return nil, resource.ErrClosed
	}
}
