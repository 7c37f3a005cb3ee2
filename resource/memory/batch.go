// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Entry is a list of ops and the result of applying them.
type Entry struct {
	Index uint64
	Ops   []*pb.Op
	// Resources has the stored resource of each op, as Commit of
	// resource.Backend defines it. It is nil if Err is set.
	Resources []*pb.Resource
	Err       error
}

// batch applies entries to State.own, the tables that readers do not see yet.
type batch struct {
	tables  *tables
	index   uint64           // index of the current entry
	events  []*pb.WatchEvent // changes of all entries; each resource has the index of its entry
	cascade int              // number of owned resources that the current entry may still delete
}

// apply applies all ops of an entry, or none of them.
func (b *batch) apply(e *Entry) ([]*pb.Resource, error) {
	if err := resource.CheckOps(e.Ops); err != nil {
		return nil, err
	}
	b.index, b.cascade = e.Index, resource.MaxCascade
	// An entry with one op fails before it changes the tables, so it needs no
	// copy of them. The exception is a put with an owner: it may delete the
	// resource that it replaces before it finds that the owner does not exist.
	var before *tables // nil if a failing entry cannot have changed anything
	if len(e.Ops) > 1 || len(e.Ops) == 1 && e.Ops[0].GetPut().GetResource().GetOwner() != nil {
		before = b.tables.copy()
	}
	events := len(b.events)
	out := make([]*pb.Resource, len(e.Ops))
	for i, op := range e.Ops {
		r, err := b.do(op)
		if err != nil {
			if before != nil {
				*b.tables = *before
			}
			b.events = b.events[:events]
			return nil, err
		}
		out[i] = r
	}
	return out, nil
}

func (b *batch) do(op *pb.Op) (*pb.Resource, error) {
	switch o := op.GetOp().(type) {
	case *pb.Op_Put:
		return b.put(o.Put)
	case *pb.Op_Overwrite:
		return b.overwrite(o.Overwrite)
	case *pb.Op_Replica:
		return b.replica(o.Replica.GetResource())
	case *pb.Op_Remove:
		return nil, b.remove(o.Remove)
	case *pb.Op_Expect:
		return nil, b.expect(o.Expect)
	default:
		panic(fmt.Sprintf("op %T passed CheckOps", o))
	}
}

// put creates or replaces a resource if the stored one has the expected
// version. A resource with another uid is deleted first. put returns the stored
// resource, or nil if the write deleted it.
func (b *batch) put(p *pb.Put) (*pb.Resource, error) {
	r := p.GetResource()
	old := b.tables.find(r.Id)
	err := checkExpected(old, r, p.GetExpectVersion())
	if err == nil {
		err = checkDeletion(old, r)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", resource.IDString(r.Id), err)
	}
	if old != nil && old.Id.Uid != r.Id.Uid {
		b.delete(old, resource.TimeOf(r.Id.Uid))
		old = nil
	}
	if old == nil && r.Owner != nil {
		if o := b.tables.find(r.Owner); o == nil || o.Id.Uid != r.Owner.Uid {
			return nil, fmt.Errorf("write %s: its owner %s with uid %s: %w",
				resource.IDString(r.Id), resource.IDString(r.Owner), r.Owner.Uid, resource.ErrNotFound)
		}
	}
	// The write that removes the last finalizer deletes the resource.
	if since, ok := resource.Terminating(r); ok && !isReplica(r) && len(resource.Finalizers(r)) == 0 {
		return b.delete(old, since), nil
	}
	return b.store(r, old), nil
}

// overwrite puts the resource of o. If a resource with that name is stored, the
// new resource gets its uid, owner and status.
func (b *batch) overwrite(o *pb.Overwrite) (*pb.Resource, error) {
	r := o.GetResource()
	if old := b.tables.find(r.Id); old != nil {
		r.Id.Uid, r.Owner, r.Status = old.Id.Uid, old.Owner, old.Status
		if o.GetKeepMetadata() {
			r.Metadata = old.Metadata
		}
		// The encoded data are compared, not the decoded messages. All servers
		// must get the same result, but servers that run different versions may
		// know different fields of a message.
		if sameVersion(old.Id, r.Id) && r.Data.GetTypeUrl() == old.Data.GetTypeUrl() &&
			bytes.Equal(r.Data.GetValue(), old.Data.GetValue()) {
			r.Generation = old.Generation
			if _, terminating := resource.Terminating(old); o.GetKeepMetadata() && !terminating {
				return old, nil // unchanged
			}
		}
	}
	return b.put(&pb.Put{Resource: r, ExpectVersion: resource.AnyVersion})
}

func checkExpected(old, r *pb.Resource, expect string) error {
	switch {
	case expect == resource.AnyVersion:
		return nil
	case expect == "" && old != nil:
		return fmt.Errorf("%w: it exists, with version %s", resource.ErrConflict, old.Version)
	case expect == "":
		return nil
	case old == nil:
		return fmt.Errorf("%w: it does not exist, but version %s was expected", resource.ErrConflict, expect)
	case old.Id.Uid != r.Id.Uid:
		return fmt.Errorf("%w: %s, not %s", resource.ErrUIDMismatch, old.Id.Uid, r.Id.Uid)
	case old.Version != expect:
		return fmt.Errorf("%w: its version is %s, not %s", resource.ErrConflict, old.Version, expect)
	}
	return nil
}

// checkDeletion rejects a write of r that finalizers or a deletion timestamp
// forbid. old is the stored resource with the name of r, or nil.
func checkDeletion(old, r *pb.Resource) error {
	since, terminating := r.GetMetadata()[resource.DeletionKey]
	oldSince, oldTerminating := old.GetMetadata()[resource.DeletionKey]
	switch replaces := old != nil && old.Id.Uid != r.Id.Uid; {
	case replaces && hasFinalizers(old):
		return fmt.Errorf("%w: %s, which has finalizers, not %s", resource.ErrUIDMismatch, old.Id.Uid, r.Id.Uid)
	case terminating && (old == nil || replaces || !oldTerminating):
		return fmt.Errorf("%w metadata %s %q: only a deletion sets it", resource.ErrInvalid,
			resource.DeletionKey, since)
	case oldTerminating && !replaces && (since != oldSince || !isReplica(r) && !onlyRemovesFinalizers(old, r)):
		return fmt.Errorf("%w since %s: only its finalizers may be removed", resource.ErrTerminating, oldSince)
	}
	return nil
}

// onlyRemovesFinalizers reports whether r equals old except for the status and
// for finalizers that r lacks.
func onlyRemovesFinalizers(old, r *pb.Resource) bool {
	known := resource.Finalizers(old)
	if slices.ContainsFunc(resource.Finalizers(r), func(f string) bool { return !slices.Contains(known, f) }) {
		return false
	}
	rest := func(r *pb.Resource) map[string]string {
		m := maps.Clone(r.GetMetadata())
		delete(m, resource.FinalizersKey)
		return m
	}
	return sameContent(old, r) && maps.Equal(rest(old), rest(r))
}

// sameContent reports whether a and b are equal except for status and metadata.
func sameContent(a, b *pb.Resource) bool {
	return a.Generation == b.Generation && sameVersion(a.Id, b.Id) &&
		proto.Equal(a.Owner, b.Owner) && proto.Equal(a.Data, b.Data)
}

// remove deletes a resource, or marks it for deletion while it has finalizers.
// It does nothing if the resource does not exist.
func (b *batch) remove(rm *pb.Remove) error {
	old := b.tables.find(rm.GetId())
	if old == nil || rm.Id.Uid != "" && rm.Id.Uid != old.Id.Uid {
		return nil // already deleted
	}
	if rm.Id.Uid == "" && !sameVersion(rm.Id, old.Id) {
		return fmt.Errorf("delete: %w", &resource.GroupVersionError{Requested: rm.Id.Type, Stored: old})
	}
	if e := rm.GetExpectVersion(); e != "" && e != resource.AnyVersion && e != old.Version {
		return fmt.Errorf("delete %s: %w: its version is %s, not %s",
			resource.IDString(rm.Id), resource.ErrConflict, old.Version, e)
	}
	at := rm.GetAt().AsTime()
	if hasFinalizers(old) && !rm.GetReplica() {
		b.markTerminating(old, at)
		return nil
	}
	b.delete(old, at)
	return nil
}

// expect checks that the resources of x are unchanged. It reads at most one
// resource more than the expected number.
func (b *batch) expect(x *pb.Expect) error {
	typ := &pb.Type{Group: x.Id.Type.Group, Kind: x.Id.Type.Kind} // all versions
	q := resource.Query{Type: typ, Tenancy: x.Id.Tenancy, Name: x.Id.Name}
	if x.GetPrefix() {
		q.Name, q.Prefix = "", x.Id.Name
	}
	sel, err := newSelection(q)
	if err != nil {
		return err
	}
	count, latest := uint64(0), uint64(0)
	for r := range sel.covered(b.tables) {
		count, latest = count+1, max(latest, r.ModifyIndex)
		if count > x.GetCount() {
			break
		}
	}
	if count != x.GetCount() || latest != x.GetLatestIndex() {
		return fmt.Errorf("%w: %s is not as it was read", resource.ErrConflict, resource.IDString(x.GetId()))
	}
	return nil
}

// replica stores r, a resource of the primary, with the status of the stored
// replica.
func (b *batch) replica(r *pb.Resource) (*pb.Resource, error) {
	old := b.tables.find(r.Id)
	r.Status = nil
	if old != nil && old.Id.Uid != r.Id.Uid {
		b.delete(old, resource.TimeOf(r.Id.Uid))
		old = nil
	}
	if old != nil {
		r.Status = old.Status
		if old.PrimaryModifyIndex == r.PrimaryModifyIndex && old.PrimaryEpoch == r.PrimaryEpoch && sameContent(old, r) &&
			maps.Equal(old.Metadata, r.Metadata) {
			return old, nil // unchanged
		}
	}
	return b.store(r, old), nil
}

func sameVersion(a, b *pb.ID) bool {
	return a.GetType().GetGroupVersion() == b.GetType().GetGroupVersion()
}

// isReplica reports whether r is a replica of the primary's resource.
func isReplica(r *pb.Resource) bool { return r.GetPrimaryModifyIndex() != 0 }

// hasFinalizers reports whether finalizers prevent the deletion of r.
// Finalizers of a replica have an effect only in the primary.
func hasFinalizers(r *pb.Resource) bool { return !isReplica(r) && len(resource.Finalizers(r)) > 0 }

// store writes r. It replaces old, the stored resource with the uid of r, or
// nil.
func (b *batch) store(r, old *pb.Resource) *pb.Resource {
	if r.Id.Tenancy == nil {
		r.Id.Tenancy = resource.FillTenancy(nil)
	}
	r.Version = strconv.FormatUint(b.index, 10)
	r.CreateIndex, r.ModifyIndex = b.index, b.index
	if old != nil {
		r.CreateIndex = old.CreateIndex
		if !sameVersion(old.Id, r.Id) {
			b.deleted(old)
		}
	} else {
		b.tables.removeDeletion(idKey(r.Id))
	}
	b.tables.put(r)
	b.event(&pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: r}}})
	return r
}

// deleted adds the delete event of r, and returns the resource in the event.
func (b *batch) deleted(r *pb.Resource) *pb.Resource {
	last := proto.CloneOf(r)
	last.ModifyIndex = b.index
	b.event(&pb.WatchEvent{Event: &pb.WatchEvent_Delete_{Delete: &pb.WatchEvent_Delete{Resource: last}}})
	return last
}

func (b *batch) event(ev *pb.WatchEvent) { b.events = append(b.events, ev) }

// markTerminating sets the deletion timestamp of r, unless r has a timestamp.
func (b *batch) markTerminating(r *pb.Resource, at time.Time) {
	if _, ok := resource.Terminating(r); !ok {
		b.store(resource.MarkTerminating(r, at), r)
	}
}

// deleteOne deletes r without its owned resources, and returns the resource in
// the delete event.
func (b *batch) deleteOne(r *pb.Resource) *pb.Resource {
	b.tables.remove(r)
	b.tables.putDeletion(&deletion{id: r.Id, index: b.index})
	return b.deleted(r)
}

// delete deletes r and the resources that r owns directly or indirectly. When
// the entry reaches its limit of owned resources, delete stores a tombstone for
// each owner that has more resources. delete returns the resource in the delete
// event of r.
func (b *batch) delete(r *pb.Resource, at time.Time) *pb.Resource {
	last := b.deleteOne(r)
	for owners := []*pb.ID{r.Id}; len(owners) > 0; owners = owners[1:] {
		for _, child := range b.deletable(owners[0].Uid, b.cascade+1) {
			if b.cascade == 0 {
				b.putTombstone(owners[0])
				break
			}
			b.cascade--
			if hasFinalizers(child) {
				b.markTerminating(child, at)
				continue
			}
			b.deleteOne(child)
			owners = append(owners, child.Id)
		}
	}
	return last
}

// deletable returns at most limit resources whose owner has that uid. The
// result has no resources that already wait for their finalizers. The result
// has no replicas either, because only the primary knows whether finalizers
// prevent their deletion.
func (b *batch) deletable(uid string, limit int) []*pb.Resource {
	var all []*pb.Resource
	for r := range b.tables.ownedBy(uid) {
		if len(all) == limit {
			break
		}
		if _, terminating := resource.Terminating(r); !isReplica(r) && (!terminating || !hasFinalizers(r)) {
			all = append(all, r)
		}
	}
	return all
}

func (b *batch) putTombstone(owner *pb.ID) {
	t, err := resource.NewTombstone(proto.CloneOf(owner))
	if err != nil {
		panic(err) // cannot happen: the id was decoded from an entry
	}
	b.store(t, b.tables.find(t.Id))
}

// If more than maxDeletions deletions are stored, the oldest are dropped until
// keptDeletions remain. A dropped deletion raises the index of all queries of
// its type, which wakes all blocking queries of the type. So that this happens
// rarely, many deletions are dropped at once. The result of applying a log
// depends on both numbers, so they must not change.
const (
	maxDeletions  = 8192
	keptDeletions = 4096
)

// dropDeletions enforces maxDeletions.
func (b *batch) dropDeletions() {
	n := b.tables.deletions.Len()
	if n <= maxDeletions {
		return
	}
	for ; n > keptDeletions; n-- {
		_, d, _ := b.tables.oldest.Min()
		b.tables.removeDeletion(idKey(d.id))
		info := *b.tables.typeInfo(typeKey(d.id.GetType()))
		info.floor = max(info.floor, d.index)
		b.tables.putType(&info)
	}
}
