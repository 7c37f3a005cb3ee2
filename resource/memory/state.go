// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// State is the state machine: resources, type indexes and watches. Its methods may be called from any goroutine; Apply and
// Restore run one at a time.
type State struct {
	writeMu sync.Mutex // held by Apply and Restore throughout; taken before mu
	commons commons    // guarded by writeMu

	db     atomic.Pointer[db] // replaced with mu held
	closed atomic.Bool        // set with mu held
	epoch  atomic.Uint64      // counts restores; changed with mu held
	kept   atomic.Int64       // bytes that topics keep for who lags
	limits limits

	snapshots snapshots

	mu    sync.Mutex // held shortly: makes a commit and its events one step
	index uint64     // of the last commit that changed something
	kinds map[string]*kind
	moved wakeup // at the next commit, restore or close
}

// NewState returns an empty state with index 1.
func NewState() *State {
	s := &State{index: 1, kinds: make(map[string]*kind), commons: make(commons), limits: limits{keepEvents, keepBytes, keepTotal}}
	s.db.Store(new(db))
	return s
}

// Index is the store index of the last Apply that changed something, or of the snapshot restored since.
func (s *State) Index() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// Close ends watches and waits with resource.ErrClosed, and makes Apply fail with it. It is idempotent.
func (s *State) Close() {
	s.mu.Lock()
	s.closed.Store(true)
	s.moved.wakeLocked()
	woken := s.endLocked()
	s.mu.Unlock()
	wakeAll(woken)
}

// Read is resource.Backend's eventual Read.
func (s *State) Read(ctx context.Context, id *pb.ID) (*pb.Resource, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	r := s.db.Load().find(id)
	if r == nil {
		return nil, fmt.Errorf("%s: %w", resource.IDString(id), resource.ErrNotFound)
	}
	if uid := id.GetUid(); uid != "" && uid != r.GetId().GetUid() {
		return nil, fmt.Errorf("%s: %w: it has uid %s, not %s", resource.IDString(id), resource.ErrNotFound, r.GetId().GetUid(), uid)
	}
	if !sameVersion(id, r.Id) {
		return nil, &resource.GroupVersionError{Requested: id.GetType(), Stored: r}
	}
	return r, nil
}

// List is resource.Backend's eventual List.
func (s *State) List(ctx context.Context, q resource.Query) ([]*pb.Resource, uint64, error) {
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	sel, err := newSelection(q)
	if err != nil {
		return nil, 0, err
	}
	d := s.db.Load()
	if q.MaxBytes > 0 && sel.exceeds(d, q.MaxBytes) {
		return nil, 0, resource.TooLargeError(q.MaxBytes)
	}
	all, index := sel.list(d)
	return all, index, nil
}

// ListByOwner is resource.Backend's. The owner's id must have a uid.
func (s *State) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if owner.GetUid() == "" {
		return nil, fmt.Errorf("%w owner %s: it has no uid", resource.ErrInvalid, resource.IDString(owner))
	}
	return s.db.Load().ownedBy(owner.GetUid()), nil
}

// Apply does all ops, in order, as the write with that store index, which must be above all before. If one fails it does
// none, returns its error, and the state is as it was. It keeps the resources in ops; the caller must not touch them again.
func (s *State) Apply(index uint64, ops []*pb.Op) ([]*pb.Resource, error) {
	e := Entry{Index: index, Ops: ops}
	s.ApplyAll([]*Entry{&e})
	return e.Resources, e.Err
}

// ApplyAll does the same for each entry, in order of their indexes, as if it were alone, and sets its result. Readers and watches
// see all of them at once.
func (s *State) ApplyAll(entries []*Entry) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.applyAll(entries, s.Index())
}

// applyNext is Apply with the next index.
func (s *State) applyNext(ops []*pb.Op) ([]*pb.Resource, error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	last := s.Index()
	e := Entry{Index: last + 1, Ops: ops}
	s.applyAll([]*Entry{&e}, last)
	return e.Resources, e.Err
}

// applyAll needs writeMu. last is the state's index.
func (s *State) applyAll(entries []*Entry, last uint64) {
	b := batch{db: *s.db.Load(), owner: new(owner), commons: s.commons}
	for _, e := range entries {
		if e.Index <= last {
			e.Err = fmt.Errorf("apply with index %d: the state is at %d already", e.Index, last)
			continue
		}
		n := len(b.events)
		if e.Resources, e.Err = b.apply(e); e.Err == nil && len(b.events) > n {
			last = e.Index
		}
	}
	woken, err := s.commit(&b, last)
	wakeAll(woken)
	s.snapshots.changed(len(b.events), s.limits.events)
	if err != nil {
		for _, e := range entries {
			e.Resources, e.Err = nil, err
		}
	}
}

// commit makes the batch visible, publishes its events, and returns the items to wake, in one step.
func (s *State) commit(b *batch, index uint64) (woken []*item, err error) {
	for _, ev := range b.events {
		r := resourceOf(ev)
		x := b.db.typeRow(typeKey(r.Id.Type))
		if x.index != r.ModifyIndex {
			b.db.putType(b.owner, &typeIndex{typ: r.Id.Type, index: r.ModifyIndex, floor: x.floor})
		}
	}
	b.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, resource.ErrClosed
	}
	if len(b.events) == 0 {
		return nil, nil
	}
	s.db.Store(&b.db)
	s.index = index
	s.moved.wakeLocked()
	return s.publishLocked(b.events), nil
}

func (s *State) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return resource.ErrClosed
	}
	return nil
}

// withIndex returns a copy of r, which is shared, that has index as ModifyIndex.
func withIndex(r *pb.Resource, index uint64) *pb.Resource {
	c := proto.CloneOf(r)
	c.ModifyIndex = index
	return c
}
