// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"io"

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

	told    bool                // summaries were sent
	digests map[kind][]digestID // what was summed up; nil once details were sent
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
	hello := &pb.FollowHello{Position: t.f.position, Reached: t.f.Status().Index}
	for _, k := range t.f.order {
		hello.Types = append(hello.Types, t.f.types[k]...)
		all, _, err := t.f.cfg.Backend.List(ctx, resource.Eventual, k.everywhere())
		if err != nil {
			return err
		}
		for _, r := range all {
			hello.Reached = max(hello.Reached, r.GetPrimaryModifyIndex())
		}
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
			t.f.began(begin.GetResumed())
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
	return t.f.commit(ctx, ms)
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
