// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

const (
	// barrierRetry is the pause before the next attempt during a leadership
	// transfer.
	barrierRetry = 20 * time.Millisecond
	// runRetry is the pause before RunWhileLeader calls its function again in
	// the same term.
	runRetry = 50 * time.Millisecond
)

// leadership tracks the leader, and runs functions while this server leads.
type leadership struct {
	*calls
	raft   *raft.Raft   // set before follow is called
	onLost func()       // called when this server stops leading a term
	onLead func() error // called when this server leads a new term; an error stops the store

	changed broadcast.Broadcast // notified after view has changed

	mu   sync.Mutex
	view view
}

// view is the leadership as this server observes it.
type view struct {
	leader string // node name of the leader; "" if none is known
	// term is the term in which this server leads, after it has applied the
	// entries of all earlier terms. term is 0 while this server does not lead.
	term     uint64
	restores uint64 // number of snapshots that became the state
}

// sameTerm reports whether a function of RunWhileLeader that began in view v
// can continue in view w.
func (v view) sameTerm(w view) bool { return v.term == w.term && v.restores == w.restores }

// current returns the view and a channel that is closed when the view changes.
func (l *leadership) current() (view, <-chan struct{}) {
	changed := l.changed.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view, changed
}

func (l *leadership) setView(leader string, term uint64) {
	l.mu.Lock()
	old := l.view
	v := view{leader: leader, term: term, restores: old.restores}
	l.view = v
	l.mu.Unlock()
	if old != v {
		l.changed.Notify()
	}
	if old.leader != v.leader && v.leader != "" {
		l.logger.Info("leader elected", "leader", v.leader)
	}
}

// restored records that a snapshot became the state.
func (l *leadership) restored() {
	l.mu.Lock()
	l.view.restores++
	l.mu.Unlock()
	l.changed.Notify()
}

// follow updates the view until the store closes or fails. The channels of Raft
// only signal a possible change. follow reads the state after each signal, so
// it misses no change.
func (l *leadership) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	var barriers sync.WaitGroup
	defer barriers.Wait()
	defer cancel()

	observations := make(chan raft.Observation, 1)
	observer := raft.NewObserver(observations, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	l.raft.RegisterObserver(observer)
	defer l.raft.DeregisterObserver(observer)
	defer l.setView("", 0)

	var ready uint64     // term in which this server leads and the barrier has passed; 0: none
	var requested uint64 // term for which a barrier is in progress; 0: none
	passed := make(chan uint64, 1)
	for {
		_, id := l.raft.LeaderWithID()
		term, leads := l.raft.CurrentTerm(), l.raft.State() == raft.Leader
		if !leads || term != ready {
			ready = 0
			l.onLost()
		}
		l.setView(string(id), ready)
		if leads && ready == 0 && requested == 0 {
			requested = term
			barriers.Go(func() { passed <- l.barrier(ctx, term) })
		}
		select {
		case <-observations:
		case <-l.raft.LeaderCh():
		case ready = <-passed:
			requested = 0
			if ready != 0 {
				if err := l.onLead(); err != nil {
					l.fail(err)
				}
			}
		case <-l.failedc:
			return
		case <-l.donec:
			return
		}
	}
}

// barrier waits until this server has applied everything that was committed
// before term, and returns term. If the barrier fails, it returns 0.
func (l *leadership) barrier(ctx context.Context, term uint64) uint64 {
	_, err := l.do(ctx, func() raft.Future { return l.raft.Barrier(0) })
	if err == nil {
		return term
	}
	if l.raft.State() == raft.Leader { // a leadership transfer is in progress and may fail
		backoff.Sleep(ctx, barrierRetry, nil)
	}
	return 0
}

// leaderTerm returns the term in which this server leads. If this server was
// elected but has not applied the entries of all earlier terms, leaderTerm
// waits.
func (l *leadership) leaderTerm(ctx context.Context) (uint64, error) {
	for {
		v, changed := l.current()
		if v.term != 0 {
			return v.term, nil
		}
		if err := l.Err(); err != nil {
			return 0, err
		}
		if l.raft.State() != raft.Leader {
			return 0, resource.ErrNotLeader
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-l.donec:
			return 0, resource.ErrClosed
		}
	}
}

// Leader returns the node name of the leader. ok is false if no leader is
// known. After the loss of a leader, the result is outdated until Raft detects
// the loss.
func (l *leadership) Leader() (node string, ok bool) {
	v, _ := l.current()
	return v.leader, v.leader != ""
}

// IsLeader reports whether this server leads and has applied everything that
// earlier leaders committed. Another server may already be elected: only a
// strong read or a commit proves leadership.
func (l *leadership) IsLeader() bool {
	v, _ := l.current()
	return v.term != 0 && l.raft.State() == raft.Leader && l.raft.CurrentTerm() == v.term
}

// LeaderChanged returns a channel that is closed when the result of Leader or
// IsLeader changes. Call LeaderChanged before each call of Leader or IsLeader.
func (l *leadership) LeaderChanged() <-chan struct{} {
	_, changed := l.current()
	return changed
}

// RunWhileLeader calls fn each time this server begins to lead, as IsLeader
// defines it. The context of fn ends when the term ends. The context also ends
// when a snapshot is restored, because data that fn has read may be outdated.
// fn is then called again in the same term. Two calls of fn never overlap.
//
// If fn returns nil, its work for this term is complete. RunWhileLeader ignores
// an error that fn returns after its context ended. After
// resource.ErrNotLeader, ErrReadOnly or ErrUnknownOutcome, it calls fn again if
// this server still leads.
//
// RunWhileLeader returns nil when ctx ends, another error of fn when fn fails,
// and the error of the store when the store closes or fails.
func (l *leadership) RunWhileLeader(ctx context.Context, fn func(context.Context) error) error {
	var done view // view in which fn completed its work
	for {
		v, changed := l.current()
		if err := l.Err(); err != nil && ctx.Err() == nil {
			return err
		}
		if v.term != 0 && !v.sameTerm(done) && ctx.Err() == nil {
			finished, err := l.runTerm(ctx, v, fn)
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
		case <-l.failedc:
			return l.Err()
		case <-l.donec:
			return l.Err()
		}
	}
}

// runTerm calls fn once. finished is false if fn must be called again while
// this server leads, even in the same term.
func (l *leadership) runTerm(
	ctx context.Context, term view, fn func(context.Context) error,
) (finished bool, err error) {
	termCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		l.waitTermEnd(termCtx, term)
	})
	err = fn(termCtx)
	lost := termCtx.Err() != nil
	cancel()
	wg.Wait()
	switch {
	case err == nil || lost:
		return true, nil
	case errors.Is(err, resource.ErrNotLeader), errors.Is(err, resource.ErrUnknownOutcome),
		errors.Is(err, resource.ErrReadOnly):
		// Either the term has ended and the view is outdated, or a leadership
		// transfer failed.
		ctx, cancel := context.WithTimeout(ctx, runRetry)
		defer cancel()
		l.waitTermEnd(ctx, term)
		return false, nil
	}
	return true, err
}

// waitTermEnd waits until this server no longer leads the term, the store
// fails, or ctx ends.
func (l *leadership) waitTermEnd(ctx context.Context, term view) {
	for {
		v, changed := l.current()
		if !v.sameTerm(term) {
			return
		}
		select {
		case <-changed:
		case <-l.failedc:
			return
		case <-ctx.Done():
			return
		}
	}
}
