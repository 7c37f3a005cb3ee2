// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// digestsPerMessage limits the digests in one message.
const digestsPerMessage = 4096

// followerStream is one stream of a Follower. One goroutine uses it. Another
// goroutine fills its receive buffer.
type followerStream struct {
	follower *Follower
	stream   grpc.BidiStreamingClient[pb.FollowRequest, pb.FollowResponse]
	progress func() // restarts the stream timeout

	// untrusted reports that the replicas may come from another primary, whose
	// indexes are unrelated. The comparison ignores the indexes.
	untrusted bool
	discards  *discards // set by begin while untrusted is set

	summarized bool              // summaries were sent
	digests    map[kind][]digest // contents of the summaries; nil after sendDetails
}

// runStream runs one stream and returns the error that ended it.
func (f *Follower) runStream(ctx context.Context) error {
	client, err := f.cfg.Remote.ReplicationClient(f.manager.followedDC())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	watchdog := time.AfterFunc(streamTimeout, func() { cancel(fmt.Errorf("no message within %v", streamTimeout)) })
	defer watchdog.Stop()

	stream, err := client.Follow(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	s := &followerStream{follower: f, stream: stream, progress: func() { watchdog.Reset(streamTimeout) }}
	if f.manager.replicasUntrusted() {
		s.untrusted, f.position = true, nil
	}
	if err := s.hello(ctx); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	buf := newReceiveBuffer()
	wg.Go(func() {
		for {
			m, err := stream.Recv()
			if err == nil {
				f.recordContact()
				if dc := f.manager.followedDC(); f.manager.checkGroup(dc, m.GetBegin()) == nil {
					f.manager.learnFrom(dc, m)
				}
				watchdog.Stop() // a full buffer must not end the stream
				err = buf.put(ctx, m)
				watchdog.Reset(streamTimeout)
			}
			if err != nil {
				buf.end(err)
				return
			}
		}
	})
	for {
		ms, err := buf.take(ctx)
		if err == nil {
			err = s.handle(ctx, ms)
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}

// send sends m. It ignores io.EOF, because Recv returns the error that ended
// the stream.
func (s *followerStream) send(m *pb.FollowRequest) error {
	s.progress()
	if err := s.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("send to the primary: %w", err)
	}
	return nil
}

// hello sends the first message. If the Follower has no position, hello also
// sends the summaries.
func (s *followerStream) hello(ctx context.Context) error {
	dc := s.follower.manager.followedDC()
	hello := &pb.FollowHello{
		Position: s.follower.position, GroupId: s.follower.manager.AcceptedGroup(dc),
		Gateways: s.follower.manager.gatewaysOf(dc),
	}
	if !s.untrusted {
		hello.Reached = max(s.follower.Status().Index, s.follower.HighestIndex())
	}
	for _, k := range s.follower.kinds {
		hello.Types = append(hello.Types, s.follower.types[k]...)
	}
	if err := s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	if s.follower.position == nil {
		return s.sendSummaries(ctx)
	}
	return nil
}

// sendSummaries sends a summary of each kind and keeps the digests for
// sendDetails.
func (s *followerStream) sendSummaries(ctx context.Context) error {
	send := func(sum *pb.FollowSummary) error {
		return s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: sum}})
	}
	s.summarized, s.digests = true, map[kind][]digest{}
	for _, k := range s.follower.kinds {
		all, _, err := s.follower.cfg.Backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return err
		}
		s.follower.warnOwnResources(k, all)
		digests := make([]digest, len(all))
		for i, r := range all {
			digests[i] = digest{keyOf(r.GetId()), r.GetId().GetUid(), r.GetPrimaryModifyIndex()}
			if s.untrusted {
				digests[i].index = 0
			}
		}
		s.digests[k] = digests
		sums := summarize(digests, bucketsFor(len(digests)))
		if err := send(&pb.FollowSummary{Type: k.typ(), Buckets: sums}); err != nil {
			return err
		}
	}
	return send(&pb.FollowSummary{Last: true})
}

// warnOwnResources logs the resources of a federated type that are not
// replicas. The primary's resources will replace them.
func (f *Follower) warnOwnResources(k kind, all []*pb.Resource) {
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
		f.cfg.Logger.Warn("own resources of a federated type are replaced by resources of the primary, or deleted",
			"type", k.String(), "count", n, "names", names)
	}
}

// handle processes messages in order. All their changes become one commit.
func (s *followerStream) handle(ctx context.Context, ms []*pb.FollowResponse) error {
	complete := false
	for _, m := range ms {
		complete = complete || m.GetIndex() > 0
		if begin := m.GetBegin(); begin != nil {
			if err := s.begin(ctx, begin); err != nil {
				return err
			}
		}
		if request := m.GetAsk(); request != nil {
			if err := s.sendDetails(request); err != nil {
				return err
			}
		}
	}
	if s.discards != nil {
		if err := s.discards.save(ctx, ms); err != nil {
			return err
		}
	}
	if err := s.follower.commit(ctx, ms); err != nil {
		return err
	}
	if !s.untrusted {
		return s.follower.storeReached(ctx, reachedInterval)
	}
	if !complete {
		return nil
	}
	s.untrusted, s.discards = false, nil
	return s.follower.manager.replicasComplete(ctx)
}

// begin processes the first message of the Source.
func (s *followerStream) begin(ctx context.Context, begin *pb.FollowBegin) error {
	if err := s.follower.manager.checkGroup(s.follower.manager.followedDC(), begin); err != nil {
		return err
	}
	s.follower.recordKinds(begin.GetKinds())
	s.follower.recordBegin(begin)
	if err := s.follower.manager.replicasBegin(ctx, begin); err != nil {
		return err
	}
	if s.untrusted {
		var err error
		if s.discards, err = newDiscards(ctx, s.follower.manager, begin.GetFormers()); err != nil {
			return err
		}
	}
	if begin.GetResumed() || s.summarized {
		return nil
	}
	s.follower.position = nil
	return s.sendSummaries(ctx)
}

// sendDetails sends the digests in the requested buckets.
func (s *followerStream) sendDetails(request *pb.FollowAsk) error {
	if s.digests == nil {
		return errors.New("the primary requests details without a summary")
	}
	send := func(d *pb.FollowDetails) error {
		return s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Details{Details: d}})
	}
	for _, part := range request.GetKinds() {
		k := kindOf(part.GetType())
		requested := map[int]bool{}
		for _, b := range part.GetBuckets() {
			requested[int(b)] = true
		}
		buckets := bucketsFor(len(s.digests[k]))
		var out []*pb.FollowDigest
		for _, d := range s.digests[k] {
			if requested[bucketOf(d.key, buckets)] {
				parts := strings.SplitN(d.key, "\x00", 3) // see joinKey
				out = append(out, &pb.FollowDigest{
					Partition: parts[0], Namespace: parts[1], Name: parts[2], Uid: d.uid, Index: d.index,
				})
			}
		}
		for digests := range slices.Chunk(out, digestsPerMessage) {
			if err := send(&pb.FollowDetails{Type: k.typ(), Digests: digests}); err != nil {
				return err
			}
		}
	}
	s.digests = nil
	return send(&pb.FollowDetails{Last: true})
}

// commit stores the changes of ms, in order, as one Raft entry.
func (f *Follower) commit(ctx context.Context, ms []*pb.FollowResponse) error {
	ops := f.ops(ms)
	if len(ops) > 0 {
		if _, err := f.cfg.Backend.Commit(ctx, ops...); err != nil {
			f.position = nil // the commit may have succeeded
			return fmt.Errorf("store %d changes of the primary: %w", len(ops), err)
		}
		f.cfg.Logger.Debug("stored changes of the primary", "count", len(ops), "index", ms[len(ms)-1].Index)
	}
	for _, m := range ms {
		if m.GetPosition() != nil {
			f.position = m.GetPosition()
		}
	}
	f.recordStored(ms, len(ops))
	return nil
}

// ops returns the changes of ms as operations of the store. It refuses and
// counts invalid changes. A primary may change only the types that are
// federated here.
func (f *Follower) ops(ms []*pb.FollowResponse) []*pb.Op {
	var ops []*pb.Op
	for _, m := range ms {
		for _, id := range m.GetDeletes() {
			t := resource.TypeString(id.GetType())
			if k := kindOf(id.GetType()); f.types[k] == nil || id.GetUid() == "" {
				f.refuse(id, fmt.Errorf("%s is not federated here, or the resource has no uid", t))
			} else {
				f.recordChange(k, 0, proto.Size(id))
				ops = f.appendValid(ops, id, resource.RemoveReplicaOp(id))
			}
		}
		for _, r := range m.GetUpserts() {
			t := resource.TypeString(r.GetId().GetType())
			if !f.known[t] || r.GetPrimaryModifyIndex() == 0 {
				f.refuse(r.GetId(), fmt.Errorf("%s is not federated here, or the resource has no index", t))
			} else {
				f.recordChange(kindOf(r.GetId().GetType()), r.GetPrimaryModifyIndex(), proto.Size(r))
				ops = f.appendValid(ops, r.GetId(), resource.ReplicaOp(r))
			}
		}
	}
	return ops
}

// appendValid appends op if the store can apply it. An invalid op would fail
// all ops of the commit, in every retry.
func (f *Follower) appendValid(ops []*pb.Op, id *pb.ID, op *pb.Op) []*pb.Op {
	if err := resource.CheckOps([]*pb.Op{op}); err != nil {
		f.refuse(id, err)
		return ops
	}
	return append(ops, op)
}

// refuse counts an invalid change and logs the first one.
func (f *Follower) refuse(id *pb.ID, err error) {
	f.mu.Lock()
	f.status.Refused++
	n := f.status.Refused
	f.mu.Unlock()
	if n == 1 {
		f.cfg.Logger.Error("refused a resource from the primary; see wanfed_replication_refused_total",
			"resource", resource.IDString(id), "err", err)
	}
}

// receiveBuffer holds messages that are not stored yet: up to batchBytes, or
// one larger message. One goroutine calls put and end. Another goroutine calls
// take.
type receiveBuffer struct {
	free *semaphore.Weighted     // size batchBytes
	msgs chan *pb.FollowResponse // closed by end
	err  error                   // set before msgs is closed
}

func newReceiveBuffer() *receiveBuffer {
	return &receiveBuffer{free: semaphore.NewWeighted(batchBytes), msgs: make(chan *pb.FollowResponse, batchChanges)}
}

// weight returns the size of m in the semaphore.
func weight(m *pb.FollowResponse) int64 { return int64(min(proto.Size(m), batchBytes)) }

// put adds m. It blocks until there is space, or ctx ends.
func (b *receiveBuffer) put(ctx context.Context, m *pb.FollowResponse) error {
	if err := b.free.Acquire(ctx, weight(m)); err != nil {
		return err
	}
	select {
	case b.msgs <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end closes the buffer. take returns the remaining messages first, and then
// err.
func (b *receiveBuffer) end(err error) {
	b.err = err
	close(b.msgs)
}

// take waits for a message and returns all messages in the buffer, in order, up
// to batchChanges messages.
func (b *receiveBuffer) take(ctx context.Context) (batch []*pb.FollowResponse, err error) {
	select {
	case m, open := <-b.msgs:
		if !open {
			return nil, b.err
		}
		batch = append(batch, m)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	size := weight(batch[0])
	defer func() { b.free.Release(size) }()
	for len(batch) < batchChanges {
		select {
		case m, open := <-b.msgs:
			if !open {
				return batch, nil
			}
			batch, size = append(batch, m), size+weight(m)
		default:
			return batch, nil
		}
	}
	return batch, nil
}
