// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource"
)

// view is what the store knows of leadership.
type view struct {
	leader string // node of the known leader, "" if none is known
	term   uint64 // in which this server leads and has applied all that earlier terms committed; 0 if it does not
	state  uint64 // counts the snapshots that became the state; kept by anew
}

// same says whether what runs while leading can go on from one view to the other.
func (v view) same(w view) bool { return v.term == w.term && v.state == w.state }

// current returns the view, and a channel that is closed when it changes.
func (s *Store) current() (view, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view, s.changed
}

func (s *Store) setView(v view) {
	s.mu.Lock()
	old := s.view
	v.state = old.state
	if old != v {
		s.view = v
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.mu.Unlock()
	if old.leader != v.leader && v.leader != "" {
		s.log.Info("leader elected", "leader", v.leader)
	}
}

// anew says that the state is now that of a snapshot.
func (s *Store) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.state++
	close(s.changed)
	s.changed = make(chan struct{})
}

// barrierRetry is how long to wait for a transfer of leadership that is under way, before the next try.
const barrierRetry = 20 * time.Millisecond

// followLeadership keeps the view true until the store closes or fails. Raft's channels only say that something may have changed; what is so is
// asked each time, so that nothing depends on seeing every change.
func (s *Store) followLeadership() {
	ctx, cancel := context.WithCancel(context.Background())
	var barriers sync.WaitGroup
	defer barriers.Wait()
	defer cancel()

	news := make(chan raft.Observation, 1)
	observer := raft.NewObserver(news, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	s.raft.RegisterObserver(observer)
	defer s.raft.DeregisterObserver(observer)

	var ready, asked uint64 // terms: leading, barrier under way
	passed := make(chan uint64, 1)
	for {
		_, id := s.raft.LeaderWithID()
		term, leads := s.raft.CurrentTerm(), s.raft.State() == raft.Leader
		if !leads || term != ready {
			ready = 0
			s.trans.patience.release() // what waits in an earlier term
		}
		s.setView(view{leader: string(id), term: ready})
		if leads && ready == 0 && asked == 0 {
			asked = term
			barriers.Go(func() { passed <- s.barrier(ctx, term) })
		}
		select {
		case <-news:
		case <-s.raft.LeaderCh():
		case <-s.disk.told:
			s.aloneAhead()
		case ready = <-passed:
			asked = 0
			if ready != 0 && s.unproven.at.Load() != nil { // the barrier was committed, and so what is before it
				if err := s.unproven.settle(); err != nil {
					s.fail(err)
				}
			}
		case <-s.failedc:
			s.setView(view{})
			s.drain() // Raft drops answers when it stops
			s.awaitRestore()
			s.stop()
			s.trans.Close() // else the others wait for answers
			return
		case <-s.donec:
			s.setView(view{})
			return
		}
	}
}

// barrier returns term when everything that was committed before is applied here, or 0 if that is not to be said.
func (s *Store) barrier(ctx context.Context, term uint64) uint64 {
	_, err := s.call(ctx, func() raft.Future { return s.raft.Barrier(0) })
	if err == nil {
		return term
	}
	if s.raft.State() == raft.Leader { // a transfer of leadership is under way, perhaps in vain
		_ = sleep(ctx, barrierRetry)
	}
	return 0
}

// sleep waits for d, or until ctx ends: its error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leader returns the node that leads, if one is known. It may be wrong by the time it takes to notice a loss.
func (s *Store) Leader() (node string, ok bool) {
	v, _ := s.current()
	return v.leader, v.leader != ""
}

// IsLeader says whether this server leads and has applied everything that earlier leaders committed. Another may have been
// elected without this one knowing: only a strong read or a commit proves it.
func (s *Store) IsLeader() bool {
	v, _ := s.current()
	return v.term != 0 && s.raft.State() == raft.Leader && s.raft.CurrentTerm() == v.term
}

// LeaderChanged returns a channel that is closed when what Leader or IsLeader says changes. Take it before asking them, and
// take a new one each time.
func (s *Store) LeaderChanged() <-chan struct{} {
	_, changed := s.current()
	return changed
}

// RunWhileLeader calls fn each time this server begins to lead, as IsLeader has it. fn's context ends when the term does, or
// when a snapshot is restored, and what fn knows of the state may be wrong: then it is called again, for the same term. The
// next call comes after fn has returned, so that no two run at once. What fn returns after that is not an error; nor is, at
// any time, resource.ErrNotLeader, ErrReadOnly or ErrUnknownOutcome: it is called again, if this server still leads. If fn returns nil
// earlier it has done its work for this term.
//
// It blocks until ctx ends (nil), fn fails (its error), or the store closes or fails (that error).
func (s *Store) RunWhileLeader(ctx context.Context, fn func(context.Context) error) error {
	var done view // the term and state that fn has finished with
	for {
		v, changed := s.current()
		if err := s.Err(); err != nil && ctx.Err() == nil {
			return err
		}
		if v.term != 0 && !v.same(done) && ctx.Err() == nil {
			finished, err := s.runTerm(ctx, v, fn)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if finished {
				done = v
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-s.failedc:
			return s.Err()
		case <-s.donec:
			return s.Err()
		}
	}
}

// runTerm calls fn once. finished is false if it should be called again, though the term may be the same.
func (s *Store) runTerm(ctx context.Context, term view, fn func(context.Context) error) (finished bool, err error) {
	termCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		s.untilLost(termCtx, term)
	})
	err = fn(termCtx)
	lost := termCtx.Err() != nil
	cancel()
	wg.Wait()
	switch {
	case err == nil || lost:
		return true, nil
	case errors.Is(err, resource.ErrNotLeader), errors.Is(err, resource.ErrUnknownOutcome), errors.Is(err, resource.ErrReadOnly):
		// The loss shows before the view says so; or a transfer of leadership was under way, in vain.
		s.pause(ctx, term)
		return false, nil
	}
	return true, err
}

// untilLost returns when the term is no longer this server's, the store fails, or ctx ends.
func (s *Store) untilLost(ctx context.Context, term view) {
	for {
		v, changed := s.current()
		if !v.same(term) {
			return
		}
		select {
		case <-changed:
		case <-s.failedc:
			return
		case <-ctx.Done():
			return
		}
	}
}

// retryPause is how long RunWhileLeader waits before it calls again what found no leader while this server led.
const retryPause = 50 * time.Millisecond

// pause waits for the term to end, but not long.
func (s *Store) pause(ctx context.Context, term view) {
	ctx, cancel := context.WithTimeout(ctx, retryPause)
	defer cancel()
	s.untilLost(ctx, term)
}
