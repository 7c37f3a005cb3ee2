// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

// State is the state machine: resources, type indexes and watches. All methods
// may be called from any goroutine. Apply and Restore run one at a time.
type State struct {
	writeMu sync.Mutex // held during Apply and Restore; taken before mu
	own     *tables    // tables of the writer; guarded by writeMu

	published atomic.Pointer[tables] // tables of readers; replaced with mu held
	closed    atomic.Pointer[error]  // reason of the first Close or Fail, set with mu held; nil before
	epoch     atomic.Uint64          // number of restores; changed with mu held
	retained  atomic.Int64           // bytes of events that topics retain for slow watches
	limits    limits

	moved broadcast.Broadcast // notified by commits, restores and Close

	mu    sync.Mutex // makes a commit and its events one step; held briefly
	index uint64     // index of the last commit that changed something
	types map[string]*watchedType
}

// NewState returns an empty state with index 1.
func NewState() *State {
	s := &State{
		own: newTables(), index: 1, types: make(map[string]*watchedType),
		limits: limits{maxTopicEvents, maxTopicBytes, maxRetained},
	}
	s.published.Store(s.own.copy())
	return s
}

// Index returns the index of the last entry that changed something, or of a
// snapshot that was restored later.
func (s *State) Index() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// Close closes the state with resource.ErrClosed. Close is idempotent.
func (s *State) Close() { s.Fail(resource.ErrClosed) }

// Fail ends watches and waits with err, and makes later calls return err. Fail
// has no effect on a state that is closed.
func (s *State) Fail(err error) {
	s.mu.Lock()
	if !s.closed.CompareAndSwap(nil, &err) {
		s.mu.Unlock()
		return
	}
	s.moved.Notify()
	ended := s.endTopicsLocked()
	s.mu.Unlock()
	wakeAll(ended)
}

// Err returns the reason why the state is closed, or nil if it is not.
func (s *State) Err() error {
	if reason := s.closed.Load(); reason != nil {
		return *reason
	}
	return nil
}

// Read implements the eventual Read of resource.Backend.
func (s *State) Read(ctx context.Context, id *pb.ID) (*pb.Resource, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	r := s.published.Load().find(id)
	if r == nil {
		return nil, fmt.Errorf("%s: %w", resource.IDString(id), resource.ErrNotFound)
	}
	if uid := id.GetUid(); uid != "" && uid != r.Id.Uid {
		return nil, fmt.Errorf("%s: %w: it has uid %s, not %s", resource.IDString(id), resource.ErrNotFound,
			r.Id.Uid, uid)
	}
	if !sameVersion(id, r.Id) {
		return nil, &resource.GroupVersionError{Requested: id.GetType(), Stored: r}
	}
	return r, nil
}

// List implements the eventual List of resource.Backend.
func (s *State) List(ctx context.Context, q resource.Query) ([]*pb.Resource, uint64, error) {
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	sel, err := newSelection(q)
	if err != nil {
		return nil, 0, err
	}
	return sel.list(s.published.Load(), q.MaxBytes)
}

// ListByOwner implements resource.Backend. The id of the owner must have a uid.
func (s *State) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if owner.GetUid() == "" {
		return nil, fmt.Errorf("%w owner %s: it has no uid", resource.ErrInvalid, resource.IDString(owner))
	}
	return slices.Collect(s.published.Load().ownedBy(owner.GetUid())), nil
}

// Apply applies each entry as one write, and sets the result of the entry. The
// entries must be sorted by index, and the index of each entry must be higher
// than the index of the state. Otherwise Apply rejects the entry. If an op
// fails, the entry has the error of the op and changes nothing. Readers and
// watches see the effect of all entries at once. Apply keeps the resources in
// the ops, so the caller must not use these resources again.
func (s *State) Apply(entries ...*Entry) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	last := s.Index()
	b := batch{tables: s.own}
	for _, e := range entries {
		if e.Index <= last {
			e.Err = fmt.Errorf("apply entry %d: the state already has index %d", e.Index, last)
			continue
		}
		n := len(b.events)
		if e.Resources, e.Err = b.apply(e); e.Err == nil && len(b.events) > n {
			last = e.Index
		}
	}
	woken, err := s.commit(&b, last)
	wakeAll(woken)
	if err != nil {
		for _, e := range entries {
			e.Resources, e.Err = nil, err
		}
	}
}

// commit publishes the tables and the events of b in one step. It returns the
// items whose followers the caller must wake.
func (s *State) commit(b *batch, index uint64) (woken []*item, err error) {
	for _, ev := range b.events {
		r := resourceOf(ev)
		info := b.tables.typeInfo(typeKey(r.Id.Type))
		if info.index == r.ModifyIndex {
			continue
		}
		next := *info
		next.index = r.ModifyIndex
		if !sameType(next.typ, r.Id.Type) {
			next.typ = r.Id.Type
		}
		b.tables.putType(&next)
	}
	b.dropDeletions()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(b.events) == 0 {
		return nil, nil
	}
	s.published.Store(b.tables.copy())
	s.index = index
	s.moved.Notify()
	return s.publishLocked(b.events), nil
}

func (s *State) usable(ctx context.Context) error { return cmp.Or(ctx.Err(), s.Err()) }

// Wait implements resource.Backend.
func (s *State) Wait(ctx context.Context, q resource.Query, after uint64) error {
	sel, err := newSelection(q)
	if err != nil {
		return err
	}
	sel.version = "" // an index covers all versions
	for {
		err := s.waitOnce(ctx, sel, after)
		switch {
		case errors.Is(err, resource.ErrWatchReset): // check again: the restored state may have the change
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("wait for %s above index %d: %w", resource.TypeString(q.Type), after, err)
		default:
			return err
		}
	}
}

// waitOnce waits with one watch until a resource of sel has changed after the
// index. It fails if the watch ends early.
func (s *State) waitOnce(ctx context.Context, sel selection, after uint64) error {
	w, view, err := s.follow(sel)
	if err != nil {
		return err
	}
	defer w.Close()
	if view.index > after && sel.changed(view.tables, after) {
		return nil
	}
	for {
		ev, at, err := w.take()
		switch {
		case err != nil:
			return err
		case ev != nil && resourceOf(ev).ModifyIndex > after:
			return nil
		case ev == nil:
			if err := w.sleep(ctx, at); err != nil {
				return err
			}
		}
	}
}

// WaitIndex waits until Index returns at least index. If ctx ends first,
// WaitIndex returns the error of ctx.
func (s *State) WaitIndex(ctx context.Context, index uint64) error {
	for {
		moved := s.moved.Wait()
		at := s.Index()
		if err := s.Err(); err != nil || at >= index {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for index %d, at %d: %w", index, at, ctx.Err())
		}
	}
}
