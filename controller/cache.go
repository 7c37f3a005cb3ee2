// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

// Cache has the resources of the types that the controllers of a runtime manage
// or watch. Its methods do not block on the network. Results are shared and
// read-only: clone a resource before changing it. A query of another type is an
// error. All methods may be called from any goroutine.
type Cache struct{ types map[typeKey]*typeCache } // the map is immutable

type typeKey struct{ group, version, kind string }

func typeKeyOf(t *pb.Type) typeKey { return typeKey{t.GetGroup(), t.GetGroupVersion(), t.GetKind()} }

// of returns the cache of a type.
func (c *Cache) of(t *pb.Type) (*typeCache, error) {
	tc := c.types[typeKeyOf(t)]
	if tc == nil {
		return nil, fmt.Errorf("type %s is not cached: add it to Controller.Watches", resource.TypeString(t))
	}
	return tc, nil
}

// Get returns the resource with the type, tenancy and name of id. If id has a
// uid, the resource must have the same uid. The error for an absent resource is
// a resource.ErrNotFound.
func (c *Cache) Get(id *pb.ID) (*pb.Resource, error) {
	tc, err := c.of(id.GetType())
	if err != nil {
		return nil, err
	}
	tc.mu.RLock()
	r, ok := tc.resources.Get(&entry{key: keyOf(id)})
	tc.mu.RUnlock()
	if !ok || id.GetUid() != "" && id.GetUid() != r.r.GetId().GetUid() {
		return nil, fmt.Errorf("%s: %w", resource.IDString(id), resource.ErrNotFound)
	}
	return r.r, nil
}

// List returns the resources of a type whose names begin with prefix, ordered
// by tenancy and name. Empty parts of the tenancy are the default. If tenancy
// is nil, List returns those of all tenancies.
func (c *Cache) List(t *pb.Type, tenancy *pb.Tenancy, prefix string) ([]*pb.Resource, error) {
	tc, err := c.of(t)
	if err != nil {
		return nil, err
	}
	from := key{name: prefix}
	if tenancy != nil {
		from = keyOf(&pb.ID{Tenancy: tenancy, Name: prefix})
	}
	tc.mu.RLock()
	defer tc.mu.RUnlock()
	var out []*pb.Resource
	if tenancy == nil && prefix == "" {
		out = make([]*pb.Resource, 0, tc.resources.Len())
	}
	tc.resources.Ascend(&entry{key: from}, func(e *entry) bool {
		same := tenancy == nil || e.key.partition == from.partition && e.key.namespace == from.namespace
		has := strings.HasPrefix(e.key.name, prefix)
		if same && has {
			out = append(out, e.r)
		}
		return same && (has || tenancy == nil)
	})
	return out, nil
}

// Lookup returns the resources that have a key in an index, ordered by tenancy
// and name.
func (c *Cache) Lookup(x *Index, k string) ([]*pb.Resource, error) {
	return c.lookup(x, x.Type, k, false)
}

// LookupPrefix returns the resources that have keys that begin with prefix,
// ordered by key. A resource with several such keys appears several times.
func (c *Cache) LookupPrefix(x *Index, prefix string) ([]*pb.Resource, error) {
	return c.lookup(x, x.Type, prefix, true)
}

// OwnedBy returns the resources of a type that owner owns. If owner has no uid,
// they may be owned by an earlier resource of its name.
func (c *Cache) OwnedBy(t *pb.Type, owner *pb.ID) ([]*pb.Resource, error) {
	if uid := owner.GetUid(); uid != "" {
		return c.lookup(ownerIndex, t, uid, false)
	}
	return c.lookup(ownerIndex, t, Key(owner), false)
}

// BoundTo returns the resources of a type that have id as a bound reference.
func (c *Cache) BoundTo(t *pb.Type, id *pb.ID) ([]*pb.Resource, error) {
	return c.lookup(boundIndex, t, Key(id), false)
}

func (c *Cache) lookup(x *Index, t *pb.Type, k string, prefix bool) ([]*pb.Resource, error) {
	tc, err := c.of(t)
	if err != nil {
		return nil, err
	}
	tc.mu.RLock()
	defer tc.mu.RUnlock()
	table, ok := tc.tables[x]
	if !ok {
		return nil, fmt.Errorf("index %q of %s is not maintained: add it to Controller.Indexes",
			x.Name, resource.TypeString(t))
	}
	var out []*pb.Resource
	table.Ascend(posting{value: k}, func(p posting) bool {
		found := p.value == k || prefix && strings.HasPrefix(p.value, k)
		if found {
			out = append(out, p.e.r)
		}
		return found
	})
	return out, nil
}

// entry is a cached resource. It is immutable.
type entry struct {
	key key
	r   *pb.Resource
}

// posting is an entry under one key of an index.
type posting struct {
	value string
	e     *entry // nil in a pivot, which precedes all entries of value
}

func postingLess(a, b posting) bool {
	if c := strings.Compare(a.value, b.value); c != 0 {
		return c < 0
	}
	return b.e != nil && (a.e == nil || a.e.key.compare(b.e.key) < 0)
}

func newTree[T any](less func(a, b T) bool) *btree.BTreeG[T] {
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

// change is a change of one cached resource. old is nil for a new resource, and
// next is nil for a deleted one.
type change struct{ old, next *pb.Resource }

// subscriber receives changes until done is closed.
type subscriber struct {
	changes chan change
	done    <-chan struct{}
}

// typeCache is the cache of one type. Its goroutine alone changes it.
type typeCache struct {
	typ    *pb.Type
	client pb.ResourceServiceClient
	log    *slog.Logger
	synced chan struct{} // closed after the first snapshot

	mu          sync.RWMutex
	resources   *btree.BTreeG[*entry]
	tables      map[*Index]*btree.BTreeG[posting] // the map is immutable while the cache runs
	subscribers []*subscriber                     // replaced, never changed in place
}

func newTypeCache(t *pb.Type, client pb.ResourceServiceClient, log *slog.Logger) *typeCache {
	tc := &typeCache{
		typ: t, client: client, log: log, synced: make(chan struct{}),
		resources: newTree(func(a, b *entry) bool { return a.key.compare(b.key) < 0 }),
		tables:    make(map[*Index]*btree.BTreeG[posting]),
	}
	tc.addIndex(ownerIndex)
	tc.addIndex(boundIndex)
	return tc
}

// addIndex adds an index to a cache that does not run yet.
func (tc *typeCache) addIndex(x *Index) {
	if tc.tables[x] == nil {
		tc.tables[x] = newTree(postingLess)
	}
}

// subscribe returns the present resources, and sends all later changes to s.
func (tc *typeCache) subscribe(s *subscriber) *btree.BTreeG[*entry] {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	tc.subscribers = append(slices.Clone(tc.subscribers), s)
	return tc.resources.Copy()
}

func (tc *typeCache) unsubscribe(s *subscriber) {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	tc.subscribers = slices.DeleteFunc(slices.Clone(tc.subscribers), func(o *subscriber) bool { return o == s })
}

// run follows the type until ctx ends.
func (tc *typeCache) run(ctx context.Context) {
	b := backoff.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second}
	for ctx.Err() == nil {
		err := resource.FromStatus(tc.follow(ctx, func() bool { b.Reset(); return true }))
		if ctx.Err() != nil {
			return
		}
		pause := b.Next()
		tc.log.Warn("watch ended", "type", resource.TypeString(tc.typ), "err", err, "duration", pause)
		backoff.Sleep(ctx, pause, nil)
	}
}

// follow applies the events of one watch. It calls synced after the snapshot,
// and returns nil if synced returns false.
func (tc *typeCache) follow(ctx context.Context, synced func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}
	stream, err := tc.client.WatchList(ctx, &pb.WatchListRequest{Type: tc.typ, Tenancy: all})
	if err != nil {
		return err
	}
	var seen map[key]bool // resources of the snapshot; nil if the cache is empty before it
	if tc.resources.Len() > 0 {
		seen = make(map[key]bool)
	}
	for live := false; ; {
		ev, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case ev.GetEndOfSnapshot() != nil:
			live = true
			tc.deleteExcept(ctx, seen)
			seen = nil
			if !broadcast.IsClosed(tc.synced) {
				close(tc.synced)
			}
			if !synced() {
				return nil
			}
		case ev.GetUpsert() != nil:
			r := ev.GetUpsert().GetResource()
			e := &entry{keyOf(r.GetId()), r}
			if !live && seen != nil {
				seen[e.key] = true
			}
			tc.upsert(ctx, e)
		case ev.GetDelete() != nil:
			tc.remove(ctx, keyOf(ev.GetDelete().GetResource().GetId()))
		}
	}
}

// deleteExcept deletes the resources that a later snapshot does not have.
func (tc *typeCache) deleteExcept(ctx context.Context, seen map[key]bool) {
	if seen == nil {
		return
	}
	var gone []key
	tc.resources.Scan(func(e *entry) bool {
		if !seen[e.key] {
			gone = append(gone, e.key)
		}
		return true
	})
	for _, k := range gone {
		tc.remove(ctx, k)
	}
}

func (tc *typeCache) upsert(ctx context.Context, e *entry) {
	old, ok := tc.resources.Get(e) // without the lock, because only this goroutine writes
	if ok && old.r.GetVersion() == e.r.GetVersion() && old.r.GetId().GetUid() == e.r.GetId().GetUid() {
		return // a new snapshot repeats what is cached
	}
	tc.replace(ctx, old, e)
}

func (tc *typeCache) remove(ctx context.Context, k key) {
	if old, ok := tc.resources.Get(&entry{key: k}); ok {
		tc.replace(ctx, old, nil)
	}
}

// replace replaces old by next, and sends the change to the subscribers. Either
// may be nil.
func (tc *typeCache) replace(ctx context.Context, old, next *entry) {
	type update struct {
		table       *btree.BTreeG[posting]
		before, now []string
	}
	updates := make([]update, 0, len(tc.tables))
	for x, table := range tc.tables { // Keys is the caller's code, so the lock is not held
		if u := (update{table, tc.keys(x, old), tc.keys(x, next)}); u.before != nil || u.now != nil {
			updates = append(updates, u)
		}
	}
	tc.mu.Lock()
	if next != nil {
		tc.resources.Set(next)
	} else {
		tc.resources.Delete(old)
	}
	for _, u := range updates {
		for _, k := range u.before {
			u.table.Delete(posting{k, old})
		}
		for _, k := range u.now {
			u.table.Set(posting{shared(u.table, k), next})
		}
	}
	subscribers := tc.subscribers
	tc.mu.Unlock()

	c := change{}
	if old != nil {
		c.old = old.r
	}
	if next != nil {
		c.next = next.r
	}
	for _, s := range subscribers {
		select {
		case s.changes <- c:
		case <-s.done:
		case <-ctx.Done():
			return
		}
	}
}

// keys returns the keys of an entry, which may be nil. If Keys panics, the
// resource has no keys: all controllers of the type share the cache.
func (tc *typeCache) keys(x *Index, e *entry) (keys []string) {
	if e == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			keys = nil
			tc.log.Error("index panicked", "index", x.Name, "resource", resource.IDString(e.r.GetId()),
				"reason", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	return x.Keys(e.r)
}

// shared returns the stored string that equals k, if the table has one. Many
// resources with one key then share its memory.
func shared(table *btree.BTreeG[posting], k string) string {
	table.Ascend(posting{value: k}, func(p posting) bool {
		if p.value == k {
			k = p.value
		}
		return false
	})
	return k
}
