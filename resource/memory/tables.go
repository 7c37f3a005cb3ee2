// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"strings"
	"sync"

	"github.com/tidwall/btree"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// table is an ordered map, and resourceTable is an ordered set of resources. A
// copy takes constant time. The copy and the original share nodes until one of
// them changes.
type (
	table[V any]  = btree.Map[string, V]
	resourceTable = btree.BTreeG[*pb.Resource]
)

// tables are the tables of one state. The writer changes its own tables, and
// publishes a copy after each commit. A published copy never changes. The
// messages in all tables are immutable.
type tables struct {
	resources *resourceTable    // all resources by id
	owned     *resourceTable    // resources with an owner, by the uid of the owner and by id
	types     *table[*typeInfo] // types by typeKey
	deletions *table[*deletion] // latest deletions by idKey
	oldest    *table[*deletion] // latest deletions by ageKey
}

// typeInfo describes all versions of one type. It is immutable.
type typeInfo struct {
	typ   *pb.Type // version of the last write
	url   string   // type URL of the data in the last write
	index uint64   // index of the last write or deletion
	floor uint64   // least index of all queries of the type
}

// deletion records the deletion of a resource. Without it, the index of a query
// for that name would fall.
type deletion struct {
	id    *pb.ID
	index uint64
}

func newTables() *tables {
	return &tables{
		resources: newResourceTable(func(a, b *pb.Resource) bool { return compareIDs(a.Id, b.Id) < 0 }),
		owned: newResourceTable(func(a, b *pb.Resource) bool {
			return cmp.Or(strings.Compare(a.Owner.Uid, b.Owner.Uid), compareIDs(a.Id, b.Id)) < 0
		}),
		types: new(table[*typeInfo]), deletions: new(table[*deletion]), oldest: new(table[*deletion]),
	}
}

func newResourceTable(less func(a, b *pb.Resource) bool) *resourceTable {
	// A write copies a node of at most 31 resources: 32 is the default degree.
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16})
}

// compareIDs compares group, kind, tenancy and name, in this order. Stored ids
// usually share the messages of type and tenancy, so most comparisons are
// skipped.
func compareIDs(a, b *pb.ID) int {
	if at, bt := a.GetType(), b.GetType(); at != bt {
		c := cmp.Or(strings.Compare(at.GetGroup(), bt.GetGroup()), strings.Compare(at.GetKind(), bt.GetKind()))
		if c != 0 {
			return c
		}
	}
	if at, bt := a.GetTenancy(), b.GetTenancy(); at != bt {
		at, bt = resource.FillTenancy(at), resource.FillTenancy(bt)
		c := cmp.Or(strings.Compare(at.Partition, bt.Partition), strings.Compare(at.Namespace, bt.Namespace))
		if c != 0 {
			return c
		}
	}
	return strings.Compare(a.GetName(), b.GetName())
}

// copy returns a copy of t. Only the writer may call copy, because copy marks
// the nodes of t as shared.
func (t *tables) copy() *tables {
	return &tables{t.resources.Copy(), t.owned.Copy(), t.types.Copy(), t.deletions.Copy(), t.oldest.Copy()}
}

// withPrefix returns the values whose keys begin with prefix, in key order.
func withPrefix[V any](t *table[V], prefix string) iter.Seq[V] {
	return func(yield func(V) bool) {
		t.Ascend(prefix, func(key string, v V) bool { return strings.HasPrefix(key, prefix) && yield(v) })
	}
}

// put stores r, and replaces a resource with the same id.
func (t *tables) put(r *pb.Resource) {
	t.intern(r)
	old, _ := t.resources.Set(r)
	if old.GetOwner() != nil {
		t.owned.Delete(old)
	}
	if r.Owner != nil {
		t.owned.Set(r)
	}
}

// remove deletes the stored resource r.
func (t *tables) remove(r *pb.Resource) {
	t.resources.Delete(r)
	if r.Owner != nil {
		t.owned.Delete(r)
	}
}

// intern reduces the memory of r. It replaces values that most resources of a
// type have in common with shared values, and puts the other texts into one
// string.
func (t *tables) intern(r *pb.Resource) {
	first := r.Generation == r.Id.Uid // no write has changed the data since the creation
	if first {
		r.Generation = ""
	}
	uid, name, version := len(r.Id.Uid), len(r.Id.Name), len(r.Version)
	text := r.Id.Uid + r.Id.Name + r.Version + r.Generation
	r.Id.Uid, text = text[:uid], text[uid:]
	r.Id.Name, text = text[:name], text[name:]
	r.Version, r.Generation = text[:version], text[version:]
	if first {
		r.Generation = r.Id.Uid
	}
	t.internID(r.Id)
	if r.Owner != nil {
		t.internID(r.Owner)
	}
	if r.Data == nil {
		return
	}
	if info := t.typeInfo(typeKey(r.Id.Type)); info.url == r.Data.TypeUrl {
		r.Data.TypeUrl = info.url
	} else if info.typ != nil {
		next := *info
		next.url = r.Data.TypeUrl
		t.putType(&next)
	}
}

func (t *tables) internID(id *pb.ID) {
	if info := t.typeInfo(typeKey(id.Type)); sameType(info.typ, id.Type) {
		id.Type = info.typ
	}
	for _, common := range commonTenancies {
		if t := id.Tenancy; t != nil && t.Partition == common.Partition && t.Namespace == common.Namespace &&
			len(t.ProtoReflect().GetUnknown()) == 0 {
			id.Tenancy = common
		}
	}
}

// sameType is equivalent to proto.Equal, but faster.
func sameType(a, b *pb.Type) bool {
	return a == b || resource.SameType(a, b) && bytes.Equal(a.ProtoReflect().GetUnknown(),
		b.ProtoReflect().GetUnknown())
}

// commonTenancies are the tenancy of cluster-scoped types and the default
// tenancy.
var commonTenancies = []*pb.Tenancy{{}, resource.FillTenancy(nil)}

func (t *tables) putType(info *typeInfo) { t.types.Set(typeKey(info.typ), info) }

// typeInfo returns the entry of the type with that key. Index and floor of an
// unknown type are 1.
func (t *tables) typeInfo(key string) *typeInfo {
	if info, ok := t.types.Get(key); ok {
		return info
	}
	return &typeInfo{index: 1, floor: 1}
}

func (t *tables) putDeletion(d *deletion) {
	key := idKey(d.id)
	t.removeDeletion(key)
	t.deletions.Set(key, d)
	t.oldest.Set(ageKey(d, key), d)
}

func (t *tables) removeDeletion(key string) {
	if d, ok := t.deletions.Delete(key); ok {
		t.oldest.Delete(ageKey(d, key))
	}
}

// find returns the stored resource with the group, kind, tenancy and name of
// id, or nil.
func (t *tables) find(id *pb.ID) *pb.Resource {
	key := keys.Get().(*pb.Resource)
	defer keys.Put(key)
	key.Id.Type, key.Id.Tenancy, key.Id.Name = id.Type, id.Tenancy, id.Name
	t.internID(key.Id) // stored ids have the same messages, so comparing them is fast
	r, _ := t.resources.Get(key)
	return r
}

// keys has messages for find, which every read and write calls.
var keys = sync.Pool{New: func() any { return &pb.Resource{Id: &pb.ID{}} }}

// ownedBy returns the resources whose owner has that uid, ordered by type,
// tenancy and name.
func (t *tables) ownedBy(uid string) iter.Seq[*pb.Resource] {
	return func(yield func(*pb.Resource) bool) {
		first := &pb.Resource{Id: &pb.ID{Type: &pb.Type{}}, Owner: &pb.ID{Uid: uid}}
		t.owned.Ascend(first, func(r *pb.Resource) bool { return r.Owner.Uid == uid && yield(r) })
	}
}

// endKey terminates a part of a key with a NUL, which no part contains.
// Therefore keys sort by their parts, and no key is a prefix of another key.
func endKey(part string) string {
	if part == "" {
		return ""
	}
	return part + "\x00"
}

// typeKey returns the key of a type. All versions of a type have one key.
func typeKey(t *pb.Type) string { return endKey(t.GetGroup()) + endKey(t.GetKind()) }

// idKey returns the key of a resource.
func idKey(id *pb.ID) string {
	t := resource.FillTenancy(id.GetTenancy())
	return typeKey(id.GetType()) + endKey(t.Partition) + endKey(t.Namespace) + endKey(id.GetName())
}

// ageKey returns a key that sorts deletions by index.
func ageKey(d *deletion, key string) string {
	return string(binary.BigEndian.AppendUint64(nil, d.index)) + key
}
