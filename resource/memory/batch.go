// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Entry is one batch of ops, and what became of it.
type Entry struct {
	Index uint64
	Ops   []*pb.Op
	// Resources has the stored resource of each op, as resource.Backend's Commit says, unless Err is set.
	Resources []*pb.Resource
	Err       error
}

// batch is some entries that are applied together.
type batch struct {
	db      db
	owner   *owner
	commons commons
	index   uint64           // of the entry under way
	events  []*pb.WatchEvent // what changed; each resource in it has the index of its entry
	cascade int              // how many resources may still go with their owners
}

// apply does all ops of an entry, or nothing.
func (b *batch) apply(e *Entry) ([]*pb.Resource, error) {
	if err := resource.CheckOps(e.Ops); err != nil {
		return nil, err
	}
	b.index, b.cascade = e.Index, resource.MaxCascade
	was, events := b.db, len(b.events)
	if len(e.Ops) > 1 || len(e.Ops) == 1 && e.Ops[0].GetPut().GetResource().GetOwner() != nil {
		b.owner = new(owner) // so that was stays what it is; other ops alone fail before they change anything
	}
	out := make([]*pb.Resource, len(e.Ops))
	for i, op := range e.Ops {
		r, err := b.do(op)
		if err != nil {
			b.db, b.events = was, b.events[:events]
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

func (b *batch) put(p *pb.Put) (*pb.Resource, error) {
	r := p.GetResource()
	old := b.db.find(r.Id)
	err := expectPut(old, r, p.GetExpectVersion())
	if err == nil {
		err = allowPut(old, r)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", resource.IDString(r.Id), err)
	}
	if old != nil && old.Id.Uid != r.Id.Uid {
		b.delete(old, resource.TimeOf(r.Id.Uid))
		old = nil
	}
	if old == nil && r.Owner != nil {
		if o := b.db.find(r.Owner); o == nil || o.Id.Uid != r.Owner.Uid {
			return nil, fmt.Errorf("write %s: its owner %s with uid %s: %w", resource.IDString(r.Id), resource.IDString(r.Owner), r.Owner.Uid, resource.ErrNotFound)
		}
	}
	if since, marked := resource.Terminating(r); marked && !isReplica(r) && len(resource.Finalizers(r)) == 0 {
		return b.delete(old, since), nil
	}
	return b.store(r, old), nil
}

// overwrite is a put of what o's resource becomes over the one that is there.
func (b *batch) overwrite(o *pb.Overwrite) (*pb.Resource, error) {
	r := o.GetResource()
	if old := b.db.find(r.Id); old != nil {
		r.Id.Uid, r.Owner, r.Status = old.Id.Uid, old.Owner, old.Status
		if o.GetKeepMetadata() {
			r.Metadata = old.Metadata
		}
		// Not as messages: servers of several versions may know them differently, and must agree.
		if sameVersion(old.Id, r.Id) && r.Data.GetTypeUrl() == old.Data.GetTypeUrl() && bytes.Equal(r.Data.GetValue(), old.Data.GetValue()) {
			r.Generation = old.Generation
			if _, marked := resource.Terminating(old); o.GetKeepMetadata() && !marked {
				return old, nil // all would be as it is
			}
		}
	}
	return b.put(&pb.Put{Resource: r, ExpectVersion: resource.AnyVersion})
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
	case old.Id.Uid != r.Id.Uid:
		return fmt.Errorf("%w: %s, not %s", resource.ErrUIDMismatch, old.Id.Uid, r.Id.Uid)
	case old.Version != expect:
		return fmt.Errorf("%w: its version is %s, not %s", resource.ErrConflict, old.Version, expect)
	}
	return nil
}

// allowPut refuses what finalizers and marks forbid. old is nil if there is none.
func allowPut(old, r *pb.Resource) error {
	since, marked := r.GetMetadata()[resource.DeletionKey]
	was, wasMarked := old.GetMetadata()[resource.DeletionKey]
	switch replaces := old != nil && old.Id.Uid != r.Id.Uid; {
	case replaces && held(old):
		return fmt.Errorf("%w: %s, which has finalizers, not %s", resource.ErrUIDMismatch, old.Id.Uid, r.Id.Uid)
	case marked && (old == nil || replaces || !wasMarked):
		return fmt.Errorf("%w metadata %s %q: only a deletion sets it", resource.ErrInvalid, resource.DeletionKey, since)
	case wasMarked && !replaces && (since != was || !isReplica(r) && !onlyReleases(old, r)):
		return fmt.Errorf("%w since %s: only its finalizers may be removed", resource.ErrTerminating, was)
	}
	return nil
}

// onlyReleases says whether r is old but for status and finalizers that it no longer has.
func onlyReleases(old, r *pb.Resource) bool {
	left := resource.Finalizers(old)
	for _, f := range resource.Finalizers(r) {
		if !slices.Contains(left, f) {
			return false
		}
	}
	rest := func(r *pb.Resource) map[string]string {
		m := maps.Clone(r.GetMetadata())
		delete(m, resource.FinalizersKey)
		return m
	}
	return r.Generation == old.Generation && r.Id.Type.GroupVersion == old.Id.Type.GroupVersion &&
		maps.Equal(rest(r), rest(old)) && proto.Equal(r.Owner, old.Owner) && proto.Equal(r.Data, old.Data)
}

func (b *batch) remove(rm *pb.Remove) error {
	old := b.db.find(rm.GetId())
	if old == nil || rm.Id.Uid != "" && rm.Id.Uid != old.Id.Uid {
		return nil // what is meant is not there
	}
	if rm.Id.Uid == "" && !sameVersion(rm.Id, old.Id) {
		return fmt.Errorf("delete: %w", &resource.GroupVersionError{Requested: rm.Id.Type, Stored: old})
	}
	if e := rm.GetExpectVersion(); e != "" && e != resource.AnyVersion && e != old.Version {
		return fmt.Errorf("delete %s: %w: its version is %s, not %s", resource.IDString(rm.Id), resource.ErrConflict, old.Version, e)
	}
	at := rm.GetAt().AsTime()
	if held(old) && !rm.GetReplica() {
		b.mark(old, at)
		return nil
	}
	b.delete(old, at)
	return nil
}

// expect looks at one resource more than there should be, at most.
func (b *batch) expect(x *pb.Expect) error {
	key := idKey(x.GetId())
	if x.GetPrefix() {
		key = spaceKey(x.GetId()) + x.GetId().GetName()
	}
	count, latest := uint64(0), uint64(0)
	c := b.db.resources.from(key)
	for w, ok := c.next(); ok && count <= x.GetCount(); w, ok = c.next() {
		count, latest = count+1, max(latest, w.modifyIndex())
	}
	if count != x.GetCount() || latest != x.GetLatestIndex() {
		return fmt.Errorf("%w: what is at %s is not what was read", resource.ErrConflict, resource.IDString(x.GetId()))
	}
	return nil
}

// replica stores what is the primary's of r, and keeps what is this store's own.
func (b *batch) replica(r *pb.Resource) (*pb.Resource, error) {
	old := b.db.find(r.Id)
	r.Status = nil
	if old != nil && old.Id.Uid != r.Id.Uid {
		b.delete(old, resource.TimeOf(r.Id.Uid))
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
		sameVersion(old.Id, r.Id) &&
		proto.Equal(old.Owner, r.Owner) &&
		proto.Equal(old.Data, r.Data) &&
		maps.Equal(old.Metadata, r.Metadata)
}

func sameVersion(a, b *pb.ID) bool {
	return a.GetType().GetGroupVersion() == b.GetType().GetGroupVersion()
}

// store writes r in place of old, which has the same uid or is nil.
func (b *batch) store(r, old *pb.Resource) *pb.Resource {
	if r.Id.Tenancy == nil {
		r.Id.Tenancy = resource.FillTenancy(nil)
	}
	r.Version = strconv.FormatUint(b.index, 10)
	r.CreateIndex, r.ModifyIndex = b.index, b.index
	if old != nil {
		r.CreateIndex = old.CreateIndex
		if !sameVersion(old.Id, r.Id) {
			b.gone(old)
		}
	} else {
		b.exhume(r.Id)
	}
	b.db.put(b.owner, newRow(b.commons, r), r, old)
	b.event(&pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: r}}})
	return r
}

// gone tells watches that r is no longer there as it was, and returns what they are shown.
func (b *batch) gone(r *pb.Resource) *pb.Resource {
	last := withIndex(r, b.index)
	b.event(&pb.WatchEvent{Event: &pb.WatchEvent_Delete_{Delete: &pb.WatchEvent_Delete{Resource: last}}})
	return last
}

func (b *batch) event(ev *pb.WatchEvent) { b.events = append(b.events, ev) }
