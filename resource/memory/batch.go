// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"strconv"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// batch is one Apply under way.
type batch struct {
	txn   *memdb.Txn
	index uint64
	types map[string]*typeEvents // what changed, by typeKey
}

type typeEvents struct {
	typ    *pb.Type
	events []*pb.WatchEvent
}

func (b *batch) do(op *pb.Op) (*pb.Resource, error) {
	switch o := op.GetOp().(type) {
	case *pb.Op_Put:
		return b.put(o.Put)
	case *pb.Op_Replica:
		return b.replica(o.Replica.GetResource())
	case *pb.Op_Remove:
		return nil, b.remove(o.Remove)
	default:
		panic(fmt.Sprintf("op %T passed CheckOps", o))
	}
}

func (b *batch) put(p *pb.Put) (*pb.Resource, error) {
	r := p.GetResource()
	old := find(b.txn, r.Id)
	if err := expectPut(old, r, p.GetExpectVersion()); err != nil {
		return nil, fmt.Errorf("write %s: %w", resource.IDString(r.Id), err)
	}
	if old != nil && old.Id.Uid != r.Id.Uid {
		b.delete(old)
		old = nil
	}
	if old == nil && r.Owner != nil {
		if o := find(b.txn, r.Owner); o == nil || o.Id.Uid != r.Owner.Uid {
			return nil, fmt.Errorf("write %s: its owner %s with uid %s: %w", resource.IDString(r.Id), resource.IDString(r.Owner), r.Owner.Uid, resource.ErrNotFound)
		}
	}
	return b.store(r, old), nil
}

func expectPut(old, r *pb.Resource, expect string) error {
	switch {
	case expect == resource.AnyVersion:
		return nil
	case expect == "" && old != nil:
		return fmt.Errorf("%w: it exists, with version %s", resource.ErrConflict, old.Version)
	case expect == "":
		return nil
	case old == nil:
		return fmt.Errorf("%w: there is none, but version %s was expected", resource.ErrConflict, expect)
	case old.Version != expect:
		return fmt.Errorf("%w: its version is %s, not %s", resource.ErrConflict, old.Version, expect)
	case old.Id.Uid != r.Id.Uid:
		return fmt.Errorf("%w: its uid is %s, not %s", resource.ErrConflict, old.Id.Uid, r.Id.Uid)
	}
	return nil
}

func (b *batch) remove(rm *pb.Remove) error {
	old := find(b.txn, rm.GetId())
	if old == nil || rm.Id.Uid != "" && rm.Id.Uid != old.Id.Uid {
		return nil // what is meant is not there
	}
	if e := rm.GetExpectVersion(); e != "" && e != resource.AnyVersion && e != old.Version {
		return fmt.Errorf("delete %s: %w: its version is %s, not %s", resource.IDString(rm.Id), resource.ErrConflict, old.Version, e)
	}
	b.delete(old)
	return nil
}

// replica stores what is the primary's of r, and keeps what is this store's own.
func (b *batch) replica(r *pb.Resource) (*pb.Resource, error) {
	old := find(b.txn, r.Id)
	r.Status = nil
	if old != nil && old.Id.Uid != r.Id.Uid {
		b.delete(old)
		old = nil
	}
	if old != nil {
		r.Status = old.Status
		if sameReplica(old, r) {
			return old, nil
		}
	}
	return b.store(r, old), nil
}

func sameReplica(old, r *pb.Resource) bool {
	return old.PrimaryModifyIndex == r.PrimaryModifyIndex &&
		old.Generation == r.Generation &&
		proto.Equal(old.Owner, r.Owner) &&
		proto.Equal(old.Data, r.Data) &&
		sameMetadata(old.Metadata, r.Metadata)
}

func sameMetadata(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// store writes r in place of old, which has the same uid or is nil.
func (b *batch) store(r, old *pb.Resource) *pb.Resource {
	r.Id.Tenancy = resource.FillTenancy(r.Id.Tenancy)
	r.Version = strconv.FormatUint(b.index, 10)
	r.CreateIndex, r.ModifyIndex = b.index, b.index
	if old != nil {
		r.CreateIndex = old.CreateIndex
	}
	mustDo(b.txn.Insert(tableResource, r))
	b.event(r, &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: r}}})
	return r
}

// delete removes r and all that it owns, and what those own.
func (b *batch) delete(r *pb.Resource) {
	for doomed := []*pb.Resource{r}; len(doomed) > 0; doomed = doomed[1:] {
		d := doomed[0]
		if find(b.txn, d.Id) != d {
			continue // it went as somebody else's already
		}
		mustDo(b.txn.Delete(tableResource, d))
		gone := withIndex(d, b.index)
		b.event(d, &pb.WatchEvent{Event: &pb.WatchEvent_Delete_{Delete: &pb.WatchEvent_Delete{Resource: gone}}})
		doomed = append(doomed, ownedBy(b.txn, d.Id.Uid)...)
	}
}

func (b *batch) event(r *pb.Resource, ev *pb.WatchEvent) {
	key := typeKey(r.Id.Type)
	t := b.types[key]
	if t == nil {
		if b.types == nil {
			b.types = make(map[string]*typeEvents)
		}
		t = &typeEvents{typ: r.Id.Type}
		b.types[key] = t
	}
	t.events = append(t.events, ev)
}

func mustDo(err error) {
	if err != nil {
		panic(err) // misuse of the schema
	}
}
