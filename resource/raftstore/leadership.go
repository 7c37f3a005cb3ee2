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

	mu      sync.Mutex
	view    view
	endTerm context.CancelFunc // cancels view.leading; nil if view.leading is nil
}

// view is the leadership as this server observes it.
type view struct {
	leader string // node name of the leader; "" if none is known
	// term is the term in which this server leads, after it has applied the
	// entries of all earlier terms. term is 0 while this server does not lead.
	term uint64
	// leading is the context of RunWhileLeader. It ends when this server stops
	// leading the term, or when a snapshot becomes the state. It is nil while
	// term is 0.
	leading context.Context
}

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
	l.view.leader = leader
	if term != old.term {
		l.setTermLocked(term)
	}
	changed := l.view != old
	l.mu.Unlock()
	if changed {
		l.changed.Notify()
	}
	if old.leader != leader && leader != "" {
		l.logger.Info("leader elected", "leader", leader)
	}
}

// setTermLocked ends the context of the previous term and begins term.
func (l *leadership) setTermLocked(term uint64) {
	if l.endTerm != nil {
		l.endTerm()
	}
	l.view.term, l.view.leading, l.endTerm = term, nil, nil
	if term != 0 {
		l.view.leading, l.endTerm = context.WithCancel(context.Background())
	}
}

// restored is called after a snapshot became the state.
func (l *leadership) restored() {
	l.mu.Lock()
	l.setTermLocked(l.view.term)
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
	var done context.Context // view.leading when fn completed its work
	for {
		v, changed := l.current()
		if err := l.Err(); err != nil && ctx.Err() == nil {
			return err
		}
		if v.leading != nil && v.leading != done && ctx.Err() == nil {
			finished, err := l.runTerm(ctx, v.leading, fn)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if finished {
				done = v.leading
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

// runTerm calls fn once, with a context that ends with ctx and leading.
// finished is false if fn must be called again while this server leads, even in
// the same term.
func (l *leadership) runTerm(
	ctx, leading context.Context, fn func(context.Context) error,
) (finished bool, err error) {
	termCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(leading, cancel)()
	err = fn(termCtx)
	switch {
	case err == nil || termCtx.Err() != nil:
		return true, nil
	case errors.Is(err, resource.ErrNotLeader), errors.Is(err, resource.ErrUnknownOutcome),
		errors.Is(err, resource.ErrReadOnly):
		// Either the term has ended and the view is outdated, or a leadership
		// transfer failed.
		backoff.Sleep(ctx, runRetry, leading.Done())
		return false, nil
	}
	return true, err
}
