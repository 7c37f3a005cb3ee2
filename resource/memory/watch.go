// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// watch is one subscription: a snapshot that is read as it is asked for, and a follower of a topic.
type watch struct {
	s     *State
	t     *topic
	sel   selection
	epoch uint64 // of the state

	mu   sync.Mutex // never held while it waits
	rest *cursor[row]
	read int   // resources of rest
	at   *item // where it stands
	pos  int   // of the next event of at
	err  error // what Next returns from now on; it stands nowhere then

	seen   int       // what read was
	seenAt time.Time // at the last look that found that it had changed

	donec  chan struct{} // closed by Close
	pushed *push         // what Push works with
}

var _ resource.PushedWatch = (*watch)(nil)

var endOfSnapshot = &pb.WatchEvent{Event: &pb.WatchEvent_EndOfSnapshot_{EndOfSnapshot: &pb.WatchEvent_EndOfSnapshot{}}}

// Watch is resource.Backend's.
func (s *State) Watch(q resource.Query) (resource.PushedWatch, error) {
	sel, err := newSelection(q)
	if err != nil {
		return nil, err
	}
	w, v, err := s.follow(sel)
	if err != nil {
		return nil, err
	}
	w.rest = sel.rows(v.db)
	s.snapshots.add(w)
	return w, nil
}

// view is the state at the moment a watch began.
type view struct {
	db    *db
	index uint64 // of the type
}

// follow begins a watch without its snapshot.
func (s *State) follow(sel selection) (*watch, view, error) {
	w := &watch{s: s, sel: sel, donec: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, view{}, resource.ErrClosed
	}
	w.t, w.epoch = s.topicLocked(sel.typ, sel.reads), s.epoch.Load()
	w.at = w.t.join()
	w.pos = len(w.at.events)
	return w, view{s.db.Load(), s.kinds[sel.typ].index}, nil
}

// Next is resource.Watch's.
func (w *watch) Next(ctx context.Context) (*pb.WatchEvent, error) {
	for {
		p, at, err := w.take()
		switch {
		case err != nil:
			return nil, err
		case p != nil:
			return p.WatchEvent, nil
		}
		if err := w.sleep(ctx, at); err != nil {
			return nil, err
		}
	}
}

func (w *watch) sleep(ctx context.Context, at *item) error {
	select {
	case <-at.ready:
	case <-w.donec:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take returns the next event, or the item after which there will be one.
func (w *watch) take() (p *published, at *item, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return nil, nil, w.err
	case w.s.closed.Load():
		return nil, nil, w.failLocked(resource.ErrClosed)
	case w.epoch != w.s.epoch.Load(), w.at.next.Load() == lost:
		return nil, nil, w.failLocked(resource.ErrWatchReset)
	}
	if w.rest != nil {
		return w.snapshotLocked(), nil, nil
	}
	for {
		for w.pos < len(w.at.events) {
			p := w.at.events[w.pos]
			w.pos++
			if w.sel.matches(resourceOf(p.WatchEvent).GetId()) {
				return p, nil, nil
			}
		}
		switch next := w.t.step(w.at); next {
		case nil:
			return nil, w.at, nil
		case lost:
			w.at = nil
			return nil, nil, w.failLocked(resource.ErrWatchReset)
		default:
			w.at, w.pos = next, 0
		}
	}
}

// snapshotLocked returns what comes next of the snapshot, and at last its end.
func (w *watch) snapshotLocked() *published {
	for stored, ok := w.rest.next(); ok; stored, ok = w.rest.next() {
		if w.sel.ofVersion(stored.c.typ) && w.sel.coversRow(stored) {
			w.read++
			return &published{WatchEvent: &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: stored.resource()}}}}
		}
	}
	w.rest = nil
	w.s.snapshots.remove(w)
	return &published{WatchEvent: endOfSnapshot}
}

// failLocked ends the watch, and lets go of all that it keeps alive.
func (w *watch) failLocked(err error) error {
	if w.err != nil {
		return w.err
	}
	w.err, w.rest = err, nil
	w.s.snapshots.remove(w)
	if w.at != nil {
		w.t.stepOff(w.at)
		w.at = nil
	}
	w.s.mu.Lock()
	w.s.leaveLocked(w.sel.typ, w.t)
	w.s.mu.Unlock()
	return err
}

// Close may be called while Next or Push waits.
func (w *watch) Close() {
	if p := w.close(); p != nil {
		p.end()
	}
}

// close returns what sleeps perhaps, and is to end.
func (w *watch) close() *push {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.donec:
		return nil
	default:
		close(w.donec)
	}
	w.failLocked(resource.ErrClosed)
	w.err = resource.ErrClosed
	return w.pushed
}
