// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// State is the state machine: resources, type indexes and watches. Its methods may be called from any goroutine; Apply and
// Restore run one at a time.
type State struct {
	writeMu sync.Mutex // held by Apply and Restore throughout; taken before mu
	graves  int        // guarded by writeMu

	db     atomic.Pointer[memdb.MemDB] // replaced by Restore, with mu held
	closed atomic.Bool                 // set with mu held
	epoch  atomic.Uint64               // counts restores; changed with mu held
	kept   atomic.Int64                // bytes that topics keep for who lags
	limits limits

	mu    sync.Mutex // held shortly: makes a commit and its events one step
	index uint64     // of the last commit that changed something
	kinds map[string]*kind
	moved wakeup // at the next commit, restore or close
}

// NewState returns an empty state with index 1.
func NewState() *State {
	s := &State{index: 1, kinds: make(map[string]*kind), limits: limits{keepEvents, keepBytes, keepTotal}}
	s.db.Store(newDB())
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
	r := find(s.db.Load().Txn(false), id)
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
	all, index := sel.list(s.db.Load().Txn(false))
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
	return ownedBy(s.db.Load().Txn(false), owner.GetUid()), nil
}

// Apply does all ops, in order, as the write with that store index, which must be above all before. If one fails it does
// none, returns its error, and the state is as it was. It keeps the resources in ops; the caller must not touch them again.
func (s *State) Apply(index uint64, ops []*pb.Op) ([]*pb.Resource, error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if last := s.Index(); index <= last {
		return nil, fmt.Errorf("apply with index %d: the state is at %d already", index, last)
	}
	return s.apply(index, ops)
}

// applyNext is Apply with the next index.
func (s *State) applyNext(ops []*pb.Op) ([]*pb.Resource, error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	return s.apply(s.Index()+1, ops)
}

// apply needs writeMu.
func (s *State) apply(index uint64, ops []*pb.Op) ([]*pb.Resource, error) {
	if err := resource.CheckOps(ops); err != nil {
		return nil, err
	}
	b := batch{txn: s.db.Load().Txn(true), index: index, cascade: resource.MaxCascade, graves: s.graves}
	defer b.txn.Abort()
	out := make([]*pb.Resource, len(ops))
	for i, op := range ops {
		r, err := b.do(op)
		if err != nil {
			return nil, err
		}
		out[i] = r
	}
	return out, s.commit(&b)
}

// commit makes the batch visible and publishes its events, in one step.
func (s *State) commit(b *batch) error {
	for key, t := range b.types {
		row := *typeRow(b.txn, key)
		row.typ, row.index = t.typ, b.index
		if err := b.txn.Insert(tableIndex, &row); err != nil {
			return fmt.Errorf("index of type %q: %w", key, err)
		}
	}
	b.forget()
	woken, err := s.publish(b)
	wakeAll(woken)
	return err
}

// publish returns the items to wake.
func (s *State) publish(b *batch) (woken []*item, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, resource.ErrClosed
	}
	if len(b.types) == 0 {
		return nil, nil
	}
	b.txn.Commit()
	s.index, s.graves = b.index, b.graves
	s.moved.wakeLocked()
	for key, t := range b.types {
		woken = append(woken, s.kindLocked(key).publishLocked(b.index, t.events)...)
	}
	return woken, nil
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

// find returns the stored resource with the id's group, kind, tenancy and name, or nil.
func find(txn *memdb.Txn, id *pb.ID) *pb.Resource {
	row := must(txn.First(tableResource, indexID, idKey(id)))
	if row == nil {
		return nil
	}
	return row.(*pb.Resource)
}

// ownedBy returns what the resource with that uid owns, in order of type, tenancy and name.
func ownedBy(txn *memdb.Txn, uid string) []*pb.Resource {
	it := must(txn.Get(tableResource, indexOwner, endKey(uid)))
	var all []*pb.Resource
	for row := it.Next(); row != nil; row = it.Next() {
		all = append(all, row.(*pb.Resource))
	}
	return all
}

// withIndex returns a copy of r, which is shared, that has index as ModifyIndex.
func withIndex(r *pb.Resource, index uint64) *pb.Resource {
	c := proto.CloneOf(r)
	c.ModifyIndex = index
	return c
}
