// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// watch is one subscription to a topic.
type watch struct {
	s   *State
	t   *topic
	sel selection

	position uint64 // number of the next commit to take from the log
	epoch    uint64

	queue []*pb.WatchEvent // taken, not yet returned
	err   error            // what Next returns from now on

	donec     chan struct{} // closed by Close
	closeOnce sync.Once
	leaveOnce sync.Once
}

var endOfSnapshot = &pb.WatchEvent{Event: &pb.WatchEvent_EndOfSnapshot_{EndOfSnapshot: &pb.WatchEvent_EndOfSnapshot{}}}

// Watch is resource.Backend's.
func (s *State) Watch(q resource.Query) (resource.Watch, error) {
	sel, err := newSelection(q)
	if err != nil {
		return nil, err
	}
	w := &watch{s: s, sel: sel, donec: make(chan struct{})}

	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, resource.ErrClosed
	}
	txn := s.db.Load().Txn(false) // of this moment, as the position is
	w.t = s.topicLocked(sel.typ)
	w.position, w.epoch = w.t.joinLocked(), s.epoch
	s.mu.Unlock()

	all, _ := sel.list(txn)
	w.queue = make([]*pb.WatchEvent, 0, len(all)+1)
	for _, r := range all {
		w.queue = append(w.queue, &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: r}}})
	}
	w.queue = append(w.queue, endOfSnapshot)
	return w, nil
}

func (w *watch) Next(ctx context.Context) (*pb.WatchEvent, error) {
	for {
		select {
		case <-w.donec:
			w.queue, w.err = nil, resource.ErrClosed
		default:
		}
		if w.err != nil {
			return nil, w.err
		}
		if len(w.queue) > 0 {
			ev := w.queue[0]
			w.queue[0] = nil
			w.queue = w.queue[1:]
			return ev, nil
		}
		changed, err := w.fetch()
		if err != nil {
			w.err = err
			w.leave()
			return nil, err
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-w.donec:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// fetch queues the events since the last fetch that are selected. If there was no commit it returns a channel that is
// closed at the next.
func (w *watch) fetch() (<-chan struct{}, error) {
	w.s.mu.Lock()
	if w.s.closed {
		w.s.mu.Unlock()
		return nil, resource.ErrClosed
	}
	commits, ok := w.t.sinceLocked(w.position)
	if !ok || w.epoch != w.s.epoch {
		w.s.mu.Unlock()
		return nil, resource.ErrWatchReset
	}
	if len(commits) == 0 {
		defer w.s.mu.Unlock()
		return w.t.waitLocked(), nil
	}
	// Commits are immutable, but publish clears entries that leave the log.
	commits = append([][]*pb.WatchEvent(nil), commits...)
	w.s.mu.Unlock()

	w.position += uint64(len(commits))
	w.queue = nil
	for _, c := range commits {
		for _, ev := range c {
			if w.sel.matches(eventID(ev)) {
				w.queue = append(w.queue, ev)
			}
		}
	}
	return nil, nil
}

func eventID(ev *pb.WatchEvent) *pb.ID {
	if d := ev.GetDelete(); d != nil {
		return d.GetResource().GetId()
	}
	return ev.GetUpsert().GetResource().GetId()
}

// Close may be called while Next waits.
func (w *watch) Close() {
	w.closeOnce.Do(func() { close(w.donec) })
	w.leave()
}

// leave lets go of the topic's log.
func (w *watch) leave() {
	w.leaveOnce.Do(func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.t.leaveLocked()
	})
}
