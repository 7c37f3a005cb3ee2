// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// detailsPerMessage bounds the digests in one message.
const detailsPerMessage = 4096

// talk is one stream of a Follower, in one goroutine but for what it receives.
type talk struct {
	f      *Follower
	stream grpc.BidiStreamingClient[pb.FollowRequest, pb.FollowResponse]
	alive  func() // there is progress

	// fresh: what is here may be of another primary, so that its indexes mean nothing: two primaries may have used the same.
	fresh bool
	// lost and replaced name the own records that the primary has not, or otherwise.
	lost, replaced []string
	told           bool                // summaries were sent
	digests        map[kind][]digestID // what was summed up; nil once details were sent
}

// digestID is the digest of a record with the id that it has in the store.
type digestID struct {
	digest
	id *pb.ID
}

// send leaves it to the reader of the stream to find out why it has ended.
func (t *talk) send(m *pb.FollowRequest) error {
	t.alive()
	if err := t.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("tell the primary what is here: %w", err)
	}
	return nil
}

// hello says what is here. Without a position, the summaries follow at once.
func (t *talk) hello(ctx context.Context) error {
	hello := &pb.FollowHello{Position: t.f.position}
	if !t.fresh {
		hello.Reached = max(t.f.Status().Index, t.f.HighestIndex())
	}
	for _, k := range t.f.order {
		hello.Types = append(hello.Types, t.f.types[k]...)
	}
	if err := t.send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	if t.f.position == nil {
		return t.summaries(ctx)
	}
	return nil
}

// summaries says what is here of each kind, and remembers it for the details.
func (t *talk) summaries(ctx context.Context) error {
	t.told, t.digests = true, map[kind][]digestID{}
	for _, k := range t.f.order {
		all, _, err := t.f.cfg.Backend.List(ctx, resource.Eventual, k.everywhere())
		if err != nil {
			return err
		}
		t.f.warnOfOwn(k, all)
		ds, own := make([]digest, len(all)), make([]digestID, len(all))
		for i, r := range all {
			ds[i] = digest{placeOf(r.GetId()), r.GetId().GetUid(), r.GetPrimaryModifyIndex()}
			if t.fresh {
				ds[i].index = 0
			}
			own[i] = digestID{ds[i], r.GetId()}
		}
		t.digests[k] = own
		sum := &pb.FollowSummary{Type: k.typ(), Buckets: summarize(ds, bucketsFor(len(ds)))}
		if err := t.send(&pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: sum}}); err != nil {
			return err
		}
	}
	return t.send(&pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: &pb.FollowSummary{Last: true}}})
}

// warnOfOwn says which records of a federated type did not come from the primary, as long as they are there: they came before
// the type was federated, or from a time in which this datacenter was the primary.
func (f *Follower) warnOfOwn(k kind, all []*pb.Resource) {
	var names []string
	n := 0
	for _, r := range all {
		if r.GetPrimaryModifyIndex() == 0 {
			if n++; len(names) < 10 {
				names = append(names, r.GetId().GetName())
			}
		}
	}
	if n > 0 {
		f.cfg.Logger.Warn("records of a federated type are this datacenter's own: the primary's take their place, and those that it has not are deleted",
			"type", k.String(), "records", n, "names", names)
	}
}

// take does what messages say, in order; what they have of records is one commit.
func (t *talk) take(ctx context.Context, ms []*pb.FollowResponse) error {
	for _, m := range ms {
		if begin := m.GetBegin(); begin != nil {
			t.f.met(begin.GetKinds())
			t.f.began(begin)
			if t.fresh {
				if err := t.f.cfg.PrimaryManager.accepted(ctx); err != nil {
					return err
				}
			}
			if !begin.GetResumed() && !t.told {
				t.f.position = nil
				if err := t.summaries(ctx); err != nil {
					return err
				}
			}
		}
		if ask := m.GetAsk(); ask != nil {
			if err := t.details(ask); err != nil {
				return err
			}
		}
	}
	if t.fresh {
		t.lose(ctx, ms)
	}
	if err := t.f.commit(ctx, ms); err != nil || !t.fresh || !reachedSome(ms) {
		return err
	}
	t.fresh = false
	if len(t.lost)+len(t.replaced) > 0 {
		t.f.cfg.Logger.Warn("written here while this datacenter was the primary, and not what the primary has: deleted, or replaced by the primary's",
			"deleted", len(t.lost), "names", firstOf(t.lost), "replaced", len(t.replaced), "of", firstOf(t.replaced))
	}
	return t.f.cfg.PrimaryManager.level(ctx)
}

// maxNamed bounds the names in one line of the log.
const maxNamed = 100

func firstOf(names []string) []string { return names[:min(len(names), maxNamed)] }

// lose notes which of this datacenter's own records messages end: those that the primary has not, and those that it has otherwise.
func (t *talk) lose(ctx context.Context, ms []*pb.FollowResponse) {
	own := func(id *pb.ID) *pb.Resource {
		r, err := t.f.cfg.Backend.Read(ctx, resource.Eventual, &pb.ID{Type: id.GetType(), Tenancy: id.GetTenancy(), Name: id.GetName()})
		if err != nil || r.GetPrimaryModifyIndex() != 0 {
			return nil
		}
		return r
	}
	name := func(id *pb.ID) string { return id.GetType().GetKind() + " " + id.GetName() }
	for _, m := range ms {
		for _, id := range m.GetDeletes() {
			if own(id) != nil {
				t.lost = append(t.lost, name(id))
			}
		}
		for _, r := range m.GetUpserts() {
			if old := own(r.GetId()); old != nil && (old.GetGeneration() != r.GetGeneration() || old.GetId().GetUid() != r.GetId().GetUid()) {
				t.replaced = append(t.replaced, name(r.GetId()))
			}
		}
	}
}

// reachedSome says whether with these messages the copies are level with the primary.
func reachedSome(ms []*pb.FollowResponse) bool {
	return slices.ContainsFunc(ms, func(m *pb.FollowResponse) bool { return m.GetIndex() > 0 })
}

// details says what is here in the buckets that differ.
func (t *talk) details(ask *pb.FollowAsk) error {
	if t.digests == nil {
		return errors.New("the primary asks for details of what it was not told")
	}
	send := func(d *pb.FollowDetails) error {
		return t.send(&pb.FollowRequest{Part: &pb.FollowRequest_Details{Details: d}})
	}
	for _, part := range ask.GetKinds() {
		k := kindOf(part.GetType())
		own := t.digests[k]
		buckets := bucketsFor(len(own))
		asked := map[int]bool{}
		for _, b := range part.GetBuckets() {
			asked[int(b)] = true
		}
		out := &pb.FollowDetails{Type: k.typ()}
		for _, d := range own {
			if !asked[bucketOf(d.place, buckets)] {
				continue
			}
			tenancy := resource.FillTenancy(d.id.GetTenancy())
			out.Digests = append(out.Digests, &pb.FollowDigest{
				Partition: tenancy.Partition, Namespace: tenancy.Namespace, Name: d.id.GetName(), Uid: d.uid, Index: d.index,
			})
			if len(out.Digests) == detailsPerMessage {
				if err := send(out); err != nil {
					return err
				}
				out = &pb.FollowDetails{Type: k.typ()}
			}
		}
		if err := send(out); err != nil {
			return err
		}
	}
	t.digests = nil
	return send(&pb.FollowDetails{Last: true})
}

// commit applies messages in order as one Raft entry.
func (f *Follower) commit(ctx context.Context, ms []*pb.FollowResponse) error {
	ops := f.ops(ms)
	last := ms[len(ms)-1]
	if len(ops) > 0 {
		if _, err := f.cfg.Backend.Commit(ctx, ops...); err != nil {
			f.position = nil // it may have been done
			return fmt.Errorf("store %d changes of the primary: %w", len(ops), err)
		}
		f.cfg.Logger.Debug("copied from the primary", "changes", len(ops), "index", last.Index)
	}
	for _, m := range ms {
		if m.GetPosition() != nil {
			f.position = m.GetPosition()
		}
	}
	f.reached(ms, len(ops))
	return nil
}
