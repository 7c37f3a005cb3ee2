// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// stallTimeout is the interval of checkStalled. A watch keeps the tables of its
// snapshot in memory until it has read the snapshot to the end. A watch ends if
// it reads nothing for stallTimeout while the index of the state grows by more
// than maxTopicEvents. With fewer changes, old tables cost little memory.
const stallTimeout = 10 * time.Second

// watch implements resource.Watch. It returns a snapshot, which is read on
// demand, and then the changes of a topic.
type watch struct {
	s     *State
	topic *topic
	sel   selection
	epoch uint64 // State.epoch when the watch began

	mu       sync.Mutex      // never held while waiting
	snapshot *snapshotReader // nil after the snapshot was read to the end
	at       *item           // current item in the topic
	pos      int             // position of the next event in at
	err      error           // result of Next after the watch has ended; the watch then has no item

	donec chan struct{} // closed by Close
}

// snapshotReader reads the resources of a snapshot for a watch. watch.mu guards
// it.
type snapshotReader struct {
	next  btree.IterG[*pb.Resource] // iterator at the next resource
	more  bool                      // false after the last resource
	reads int                       // number of events read
	index uint64                    // least index of the query, which deletions have raised

	timer        *time.Timer // calls checkStalled
	progress     int         // value of reads when checkStalled last saw a change
	progressedAt uint64      // index of the state at that change
}

// Watch implements resource.Backend.
func (s *State) Watch(q resource.Query) (resource.Watch, error) {
	sel, err := newSelection(q)
	if err != nil {
		return nil, err
	}
	w, view, err := s.follow(sel)
	if err != nil {
		return nil, err
	}
	r := &snapshotReader{next: view.tables.resources.Iter(), progressedAt: s.Index(), index: sel.leastIndex(view.tables)}
	r.more = r.next.Seek(sel.first())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshot = r
	r.timer = time.AfterFunc(stallTimeout, w.checkStalled)
	return w, nil
}

// view is the state at the start of a watch.
type view struct {
	tables *tables
	index  uint64 // index of the type
}

// follow starts a watch without a snapshot.
func (s *State) follow(sel selection) (*watch, view, error) {
	w := &watch{s: s, sel: sel, donec: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Err(); err != nil {
		return nil, view{}, err
	}
	w.topic, w.epoch = s.joinTopicLocked(sel.typ, sel.key), s.epoch.Load()
	w.at = w.topic.join()
	w.pos = len(w.at.events)
	return w, view{s.published.Load(), s.types[sel.typ].index}, nil
}

func (w *watch) Next(ctx context.Context) (*pb.WatchEvent, error) {
	for {
		ev, at, err := w.take()
		if ev != nil || err != nil {
			return ev, err
		}
		if err := w.sleep(ctx, at); err != nil {
			return nil, err
		}
	}
}

// sleep waits until at has a successor, or the watch or ctx ends.
func (w *watch) sleep(ctx context.Context, at *item) error {
	select {
	case <-at.ready:
	case <-w.donec:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take returns the next event. If no event exists yet, take returns the current
// item, whose successor will have the event.
func (w *watch) take() (ev *pb.WatchEvent, at *item, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	closed := w.s.Err()
	switch {
	case w.err != nil:
		return nil, nil, w.err
	case closed != nil:
		return nil, nil, w.failLocked(closed)
	case w.epoch != w.s.epoch.Load(), w.at.next.Load() == cutOff:
		return nil, nil, w.failLocked(resource.ErrWatchReset)
	}
	if w.snapshot != nil {
		return w.takeSnapshotLocked(), nil, nil
	}
	for {
		for w.pos < len(w.at.events) {
			ev := w.at.events[w.pos]
			w.pos++
			if w.sel.matches(resourceOf(ev).Id) {
				return ev, nil, nil
			}
		}
		switch next := w.topic.step(w.at); next {
		case nil:
			return nil, w.at, nil
		case cutOff:
			w.at = nil
			return nil, nil, w.failLocked(resource.ErrWatchReset)
		default:
			w.at, w.pos = next, 0
		}
	}
}

// takeSnapshotLocked returns the next event of the snapshot. The last event is
// the end of the snapshot, with the index of the query.
func (w *watch) takeSnapshotLocked() *pb.WatchEvent {
	s := w.snapshot
	for s.more && w.sel.inRange(s.next.Item().Id) {
		r := s.next.Item()
		s.more = s.next.Next()
		if w.sel.covers(r.Id) {
			s.index = max(s.index, r.ModifyIndex)
		}
		if w.sel.matches(r.Id) {
			s.reads++
			return &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: r}}}
		}
	}
	w.endSnapshotLocked()
	return &pb.WatchEvent{
		Event: &pb.WatchEvent_EndOfSnapshot_{EndOfSnapshot: &pb.WatchEvent_EndOfSnapshot{Index: s.index}},
	}
}

// endSnapshotLocked releases the tables of the snapshot.
func (w *watch) endSnapshotLocked() {
	if w.snapshot != nil {
		w.snapshot.timer.Stop()
		w.snapshot = nil
	}
}

// checkStalled ends a watch that reads nothing (see stallTimeout). It also
// releases the snapshot of a watch that was cut off.
func (w *watch) checkStalled() {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.snapshot
	if s == nil {
		return
	}
	index := w.s.Index()
	if s.reads != s.progress {
		s.progress, s.progressedAt = s.reads, index
	}
	if w.at.next.Load() == cutOff || index > s.progressedAt+uint64(w.s.limits.events) {
		_ = w.failLocked(resource.ErrWatchReset) // Next will return the error
		return
	}
	s.timer.Reset(stallTimeout)
}

// failLocked ends the watch with err and releases the memory of the watch.
func (w *watch) failLocked(err error) error {
	if w.err != nil {
		return w.err
	}
	w.err = err
	w.endSnapshotLocked()
	if w.at != nil {
		w.topic.stepOff(w.at)
		w.at = nil
	}
	w.s.mu.Lock()
	w.s.leaveTopicLocked(w.sel.typ, w.topic)
	w.s.mu.Unlock()
	return err
}

// Close implements resource.Watch. It ends a pending call of Next.
func (w *watch) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.donec:
		return
	default:
		close(w.donec)
	}
	_ = w.failLocked(resource.ErrClosed)
	w.err = resource.ErrClosed
}
