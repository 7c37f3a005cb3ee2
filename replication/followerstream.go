// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// streamTimeout is the time without a message after which a stream ends.
	streamTimeout = 2*SourceHeartbeat + SourceHeartbeat/2
	// digestsPerMessage limits the digests in one message.
	digestsPerMessage = 4096
)

// followerStream is one stream of a Follower. One goroutine uses it. Another
// goroutine fills its receive buffer.
type followerStream struct {
	f        *Follower
	stream   grpc.BidiStreamingClient[pb.FollowRequest, pb.FollowResponse]
	progress func() // restarts the stream timeout

	// untrusted is set if the replicas may come from another primary. Their
	// indexes then have no meaning, because two primaries may use equal
	// indexes.
	untrusted bool
	// deleted names this datacenter's own records that the primary does not
	// have. replaced names those that the primary has with other contents.
	deleted, replaced []string
	summarized        bool                // summaries were sent
	digests           map[kind][]digestID // contents of the summaries; nil after the details
}

// digestID is the digest of a record with its stored id.
type digestID struct {
	digest
	id *pb.ID
}

// runStream runs one stream and returns the error that ended it.
func (f *Follower) runStream(ctx context.Context) error {
	client, err := f.cfg.Connect()
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
	s := &followerStream{f: f, stream: stream, progress: func() { watchdog.Reset(streamTimeout) }}
	if f.cfg.PrimaryManager != nil && f.cfg.PrimaryManager.replicasUntrusted() {
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
				watchdog.Stop() // the wait for a full buffer does not count
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
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
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
	hello := &pb.FollowHello{Position: s.f.position}
	if !s.untrusted {
		hello.Reached = max(s.f.Status().Index, s.f.HighestIndex())
	}
	for _, k := range s.f.order {
		hello.Types = append(hello.Types, s.f.types[k]...)
	}
	if err := s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	if s.f.position == nil {
		return s.sendSummaries(ctx)
	}
	return nil
}

// sendSummaries sends a summary of each kind and keeps the digests for
// sendDetails.
func (s *followerStream) sendSummaries(ctx context.Context) error {
	s.summarized, s.digests = true, map[kind][]digestID{}
	for _, k := range s.f.order {
		all, _, err := s.f.cfg.Backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return err
		}
		s.f.warnOwnRecords(k, all)
		digests, withIDs := make([]digest, len(all)), make([]digestID, len(all))
		for i, r := range all {
			digests[i] = digest{keyOf(r.GetId()), r.GetId().GetUid(), r.GetPrimaryModifyIndex()}
			if s.untrusted {
				digests[i].index = 0
			}
			withIDs[i] = digestID{digests[i], r.GetId()}
		}
		s.digests[k] = withIDs
		sum := &pb.FollowSummary{Type: k.typ(), Buckets: summarize(digests, bucketsFor(len(digests)))}
		if err := s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: sum}}); err != nil {
			return err
		}
	}
	last := &pb.FollowSummary{Last: true}
	return s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: last}})
}

// warnOwnRecords logs the records of a federated type that are not replicas. They
// were written before the type was federated, or while this datacenter was the
// primary.
func (f *Follower) warnOwnRecords(k kind, all []*pb.Resource) {
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
		f.cfg.Logger.Warn("records of a federated type are this datacenter's own: "+
			"records of the primary replace them, and the others are deleted",
			"type", k.String(), "count", n, "names", names)
	}
}

// handle processes messages in order. Their changes become one commit.
func (s *followerStream) handle(ctx context.Context, ms []*pb.FollowResponse) error {
	for _, m := range ms {
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
	if s.untrusted {
		s.recordLosses(ctx, ms)
	}
	if err := s.f.commit(ctx, ms); err != nil || !s.untrusted || !completes(ms) {
		return err
	}
	s.untrusted = false
	if len(s.deleted)+len(s.replaced) > 0 {
		s.f.cfg.Logger.Warn("records written here while this datacenter was the primary differ from those of the new primary",
			"deleted", len(s.deleted), "deleted_names", firstNames(s.deleted),
			"replaced", len(s.replaced), "replaced_names", firstNames(s.replaced))
	}
	return s.f.cfg.PrimaryManager.replicasComplete(ctx)
}

func (s *followerStream) begin(ctx context.Context, begin *pb.FollowBegin) error {
	s.f.recordKinds(begin.GetKinds())
	s.f.recordBegin(begin)
	if s.untrusted {
		if err := s.f.cfg.PrimaryManager.replicasBegin(ctx); err != nil {
			return err
		}
	}
	if begin.GetResumed() || s.summarized {
		return nil
	}
	s.f.position = nil
	return s.sendSummaries(ctx)
}

// completes reports whether the replicas are in sync with the primary after ms.
func completes(ms []*pb.FollowResponse) bool {
	return slices.ContainsFunc(ms, func(m *pb.FollowResponse) bool { return m.GetIndex() > 0 })
}

// firstNames limits the names in one log line.
func firstNames(names []string) []string { return names[:min(len(names), 100)] }

// recordLosses collects this datacenter's own records that messages delete or
// replace.
func (s *followerStream) recordLosses(ctx context.Context, ms []*pb.FollowResponse) {
	own := func(id *pb.ID) *pb.Resource {
		r, err := s.f.cfg.Backend.Read(ctx, resource.Eventual,
			&pb.ID{Type: id.GetType(), Tenancy: id.GetTenancy(), Name: id.GetName()})
		if err != nil || r.GetPrimaryModifyIndex() != 0 {
			return nil
		}
		return r
	}
	name := func(id *pb.ID) string { return id.GetType().GetKind() + " " + id.GetName() }
	for _, m := range ms {
		for _, id := range m.GetDeletes() {
			if own(id) != nil {
				s.deleted = append(s.deleted, name(id))
			}
		}
		for _, r := range m.GetUpserts() {
			old := own(r.GetId())
			if old != nil && (old.GetGeneration() != r.GetGeneration() || old.GetId().GetUid() != r.GetId().GetUid()) {
				s.replaced = append(s.replaced, name(r.GetId()))
			}
		}
	}
}

// sendDetails sends the digests in the buckets that differ.
func (s *followerStream) sendDetails(request *pb.FollowAsk) error {
	if s.digests == nil {
		return errors.New("the primary requests details without a summary")
	}
	send := func(d *pb.FollowDetails) error {
		return s.send(&pb.FollowRequest{Part: &pb.FollowRequest_Details{Details: d}})
	}
	for _, part := range request.GetKinds() {
		k := kindOf(part.GetType())
		digests := s.digests[k]
		buckets := bucketsFor(len(digests))
		requested := map[int]bool{}
		for _, b := range part.GetBuckets() {
			requested[int(b)] = true
		}
		out := &pb.FollowDetails{Type: k.typ()}
		for _, d := range digests {
			if !requested[bucketOf(d.key, buckets)] {
				continue
			}
			tenancy := resource.FillTenancy(d.id.GetTenancy())
			out.Digests = append(out.Digests, &pb.FollowDigest{
				Partition: tenancy.Partition, Namespace: tenancy.Namespace, Name: d.id.GetName(), Uid: d.uid, Index: d.index,
			})
			if len(out.Digests) == digestsPerMessage {
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

// ops returns the changes of ms as operations of the store. It omits and counts
// changes that a follower must not store. A primary may write only the types
// that are federated here.
func (f *Follower) ops(ms []*pb.FollowResponse) []*pb.Op {
	var ops []*pb.Op
	for _, m := range ms {
		for _, id := range m.GetDeletes() {
			if k := kindOf(id.GetType()); f.types[k] == nil || id.GetUid() == "" {
				f.refuse(id, fmt.Errorf("%s is not federated here, or the record has no uid", resource.TypeString(id.GetType())))
			} else {
				f.recordChange(k, 0, proto.Size(id))
				ops = f.appendValid(ops, id, resource.RemoveReplicaOp(id))
			}
		}
		for _, r := range m.GetUpserts() {
			t := resource.TypeString(r.GetId().GetType())
			if !f.known[t] || r.GetPrimaryModifyIndex() == 0 {
				f.refuse(r.GetId(), fmt.Errorf("%s is not federated here, or the record has no index", t))
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

func (f *Follower) refuse(id *pb.ID, err error) {
	f.mu.Lock()
	f.status.Refused++
	n := f.status.Refused
	f.mu.Unlock()
	if n == 1 {
		f.cfg.Logger.Error("refused a record from the primary; see wanfed_replication_refused_total",
			"resource", resource.IDString(id), "err", err)
	}
}

// receiveBufferBytes limits the size of the messages that wait for the next
// commit. The stream is not read while the buffer is full.
const receiveBufferBytes = 2 * batchBytes

// receiveBuffer holds messages that are not stored yet. One goroutine calls put
// and end, another one calls take.
type receiveBuffer struct {
	free    *semaphore.Weighted // size receiveBufferBytes
	msgs    chan received       // closed by end
	err     error               // set before msgs is closed
	pending *received           // received from msgs, but not in the last batch
}

type received struct {
	msg  *pb.FollowResponse
	size int
}

func (r received) weight() int64 { return int64(min(r.size, receiveBufferBytes)) }

func newReceiveBuffer() *receiveBuffer {
	// The channel limits the number of small messages in one commit.
	return &receiveBuffer{free: semaphore.NewWeighted(receiveBufferBytes), msgs: make(chan received, batchRecords)}
}

// put blocks until there is space, or ctx ends.
func (b *receiveBuffer) put(ctx context.Context, m *pb.FollowResponse) error {
	r := received{m, proto.Size(m)}
	if err := b.free.Acquire(ctx, r.weight()); err != nil {
		return err
	}
	select {
	case b.msgs <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end ends the buffer with err. take returns the remaining messages first, and
// then err.
func (b *receiveBuffer) end(err error) {
	b.err = err
	close(b.msgs)
}

// take waits for a message. It returns that message and the messages behind it,
// up to batchBytes in total. A larger message is returned alone.
func (b *receiveBuffer) take(ctx context.Context) (batch []*pb.FollowResponse, err error) {
	next := b.pending
	if next == nil {
		select {
		case r, open := <-b.msgs:
			if !open {
				return nil, b.err
			}
			next = &r
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	for bytes := 0; next != nil && (bytes == 0 || bytes+next.size <= batchBytes); next = b.poll() {
		batch, bytes = append(batch, next.msg), bytes+next.size
		b.free.Release(next.weight())
	}
	b.pending = next
	return batch, nil
}

// poll returns the next message, or nil if there is none.
func (b *receiveBuffer) poll() *received {
	select {
	case r, open := <-b.msgs:
		if open {
			return &r
		}
	default:
	}
	return nil
}
