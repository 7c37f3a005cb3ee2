// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// sourceStream serves one follower, in one goroutine. A slow follower does not
// delay other followers. Its stream blocks in Send, and later changes stay in
// the log until they are evicted.
type sourceStream struct {
	s      *Source
	stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]
	known  map[string]bool // types of the follower, by resource.TypeString
	kinds  map[kind]bool   // kinds of the types in known

	next uint64             // place in the log
	at   *pb.FollowPosition // position before next
	// covered is the index at which each kind was compared. Changes up to that
	// index have been sent.
	covered map[kind]uint64
	floor   uint64 // highest of covered; a lower position cannot be resumed
}

func newSourceStream(
	s *Source, stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse], hello *pb.FollowHello,
) *sourceStream {
	f := &sourceStream{s: s, stream: stream, known: map[string]bool{}, kinds: map[kind]bool{}, covered: map[kind]uint64{}}
	for _, t := range hello.GetTypes() {
		f.known[resource.TypeString(t)] = true
		f.kinds[kindOf(t)] = true
	}
	return f
}

// run serves the follower until its stream ends.
func (f *sourceStream) run(hello *pb.FollowHello) error {
	next, resumed := f.s.log.find(hello.GetPosition())
	begin := &pb.FollowBegin{Resumed: resumed, HandedTo: f.s.cfg.Primary.Successor()}
	if len(hello.GetTypes()) == 0 { // a probe; see PrimaryManager.probe
		return f.send(&pb.FollowResponse{Begin: begin})
	}
	for _, k := range f.s.kinds {
		all, _, err := f.list(k)
		if err != nil {
			return err
		}
		n := len(all)
		begin.Kinds = append(begin.Kinds, &pb.FollowKind{
			Type: k.typ(), Records: uint64(n), Unknown: uint64(n - len(f.knownOf(all))),
		})
	}
	if err := f.send(&pb.FollowResponse{Begin: begin}); err != nil {
		return err
	}
	f.next, f.at = next, hello.GetPosition()
	if resumed {
		f.s.resumed.Add(1)
	} else {
		f.s.compared.Add(1)
		if err := f.compare(hello.GetReached()); err != nil {
			return err
		}
	}
	return f.sendChanges()
}

func (f *sourceStream) send(m *pb.FollowResponse) error {
	f.s.sent.Add(uint64(proto.Size(m)))
	return f.stream.Send(m)
}

func (f *sourceStream) list(k kind) ([]*pb.Resource, uint64, error) {
	return f.s.cfg.Backend.List(f.stream.Context(), resource.Eventual, k.query())
}

// knownOf returns the resources whose type the follower supports.
func (f *sourceStream) knownOf(all []*pb.Resource) []*pb.Resource {
	out := make([]*pb.Resource, 0, len(all))
	for _, r := range all {
		if f.known[resource.TypeString(r.GetId().GetType())] {
			out = append(out, r)
		}
	}
	return out
}

// catchUp blocks until this server has every commit that its datacenter has
// acknowledged. If the leader does not respond, it suffices that this server
// has the commits up to index reached, which is the index of the follower.
func (f *sourceStream) catchUp(reached uint64) error {
	ctx, cancel := context.WithTimeout(f.stream.Context(), catchUpTimeout)
	defer cancel()
	empty := resource.Query{Type: f.s.types[f.s.kinds[0]][0], Prefix: "\xff"}
	_, _, err := f.s.cfg.Backend.List(ctx, resource.Strong, empty)
	if err == nil || f.stream.Context().Err() != nil {
		return err
	}
	for _, k := range f.s.kinds {
		_, at, listErr := f.list(k)
		if listErr != nil || at >= reached {
			return listErr
		}
	}
	return status.Errorf(codes.Unavailable,
		"this server of the primary may have older records than its follower, and cannot reach its leader: %v", err)
}

// compare sends the records that the follower lacks, and the ids of the records
// that it must delete. It sends at least one message, which reports to the
// follower that it is in sync. compare reads the place in the log first. Later
// changes are sent afterwards, unless a list contained them.
func (f *sourceStream) compare(reached uint64) error {
	if len(f.s.kinds) > 0 {
		if err := f.catchUp(reached); err != nil {
			return err
		}
	}
	if err := f.s.cfg.Primary.CheckFollow(); err != nil {
		return err // this server lagged and has now seen a demotion
	}
	var ready bool
	if f.next, f.at, ready = f.s.log.end(); !ready {
		return errEvicted
	}
	differences, needed, err := f.receiveSummaries()
	if err != nil {
		return err
	}
	out := &changeBatch{send: f.send}
	if len(needed.Kinds) > 0 {
		if err := f.send(&pb.FollowResponse{Ask: needed}); err != nil {
			return err
		}
		if err := f.receiveDetails(differences, out); err != nil {
			return err
		}
	}
	for _, k := range f.s.kinds {
		for _, r := range differences[k].records {
			if r == nil {
				continue
			}
			put := replicaOf(r)
			if err := out.add(change{kind: k, put: put, size: proto.Size(put)}); err != nil {
				return err
			}
		}
	}
	return out.flush(f.floor, f.position())
}

// receiveSummaries compares the follower's summary of each kind that both sides
// know. It returns the differences and the buckets whose details are needed.
func (f *sourceStream) receiveSummaries() (map[kind]*difference, *pb.FollowAsk, error) {
	differences, needed := map[kind]*difference{}, &pb.FollowAsk{}
	for last := false; !last; {
		req, err := f.stream.Recv()
		if err != nil {
			return nil, nil, err
		}
		sum := req.GetSummary()
		if sum == nil {
			return nil, nil, status.Error(codes.InvalidArgument, "a follower that is not resumed sends summaries")
		}
		last = sum.GetLast()
		k := kindOf(sum.GetType())
		if !f.kinds[k] || f.s.types[k] == nil || differences[k] != nil {
			continue // unknown to one side, or a duplicate
		}
		all, index, err := f.list(k)
		if err != nil {
			return nil, nil, err
		}
		d, buckets, err := compare(f.knownOf(all), sum.GetBuckets())
		if err != nil {
			return nil, nil, status.Error(codes.InvalidArgument, err.Error())
		}
		differences[k] = &d
		f.covered[k], f.floor = index, max(f.floor, index)
		if len(buckets) > 0 {
			needed.Kinds = append(needed.Kinds, &pb.FollowBuckets{Type: k.typ(), Buckets: buckets})
		}
	}
	for _, k := range f.s.kinds {
		if differences[k] == nil { // without a comparison, nothing of the kind is sent, now or later
			differences[k] = &difference{}
			delete(f.kinds, k)
		}
	}
	return differences, needed, nil
}

// receiveDetails receives the follower's digests and adds deletions to out.
func (f *sourceStream) receiveDetails(differences map[kind]*difference, out *changeBatch) error {
	for last := false; !last; {
		req, err := f.stream.Recv()
		if err != nil {
			return err
		}
		part := req.GetDetails()
		if part == nil {
			return status.Error(codes.InvalidArgument, "a follower that has a request for details sends details")
		}
		last = part.GetLast()
		k := kindOf(part.GetType())
		d := differences[k]
		if d == nil {
			if len(part.GetDigests()) > 0 {
				return status.Errorf(codes.InvalidArgument, "details of %s were not requested", resource.TypeString(part.GetType()))
			}
			continue
		}
		deletes, err := d.applyDetails(f.s.types[k][0], part.GetDigests())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		for _, id := range deletes {
			if err := out.add(change{kind: k, deleted: id, size: proto.Size(id)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// position returns the position at which the follower may resume, or nil. At a
// position below floor, the follower would receive changes that are older than
// its records.
func (f *sourceStream) position() *pb.FollowPosition {
	if f.at.GetIndex() < f.floor {
		return nil
	}
	return f.at
}

// sendChanges sends commits as they come, and heartbeats in between.
func (f *sourceStream) sendChanges() error {
	idle := time.NewTimer(SourceHeartbeat)
	defer idle.Stop()
	for {
		commits, moved, err := f.s.log.since(f.next, batchBytes)
		if err != nil {
			return err
		}
		if len(commits) == 0 {
			select {
			case <-moved:
				continue
			case <-idle.C:
			case <-f.stream.Context().Done():
				return f.stream.Context().Err()
			}
		}
		sent, err := f.sendCommits(commits)
		if err != nil {
			return err
		}
		if sent {
			idle.Reset(SourceHeartbeat)
		}
	}
}

// sendCommits sends commits, in one message if they fit. It omits changes that
// are not for the follower. If no change remains, it sends nothing. If commits
// is empty, it sends a heartbeat.
func (f *sourceStream) sendCommits(commits []*commit) (sent bool, err error) {
	out := &changeBatch{send: f.send}
	relevant := len(commits) == 0
	for _, c := range commits {
		f.next++
		f.at = c.position()
		for _, ch := range c.changes {
			if !f.kinds[ch.kind] || c.index <= f.covered[ch.kind] {
				continue
			}
			relevant = true
			if ch.put != nil && !f.known[resource.TypeString(ch.put.Id.GetType())] {
				// The follower does not support the new version of the record.
				ch = change{kind: ch.kind, deleted: ch.put.Id, size: proto.Size(ch.put.Id)}
			}
			if err := out.add(ch); err != nil {
				return false, err
			}
		}
	}
	if !relevant {
		return false, nil
	}
	return true, out.flush(max(f.floor, f.at.GetIndex()), f.position())
}

// Limits of a batch. A larger record is sent alone.
const (
	batchBytes   = 1 << 20
	batchRecords = 1024
)

// changeBatch collects changes for one message. It keeps only the last of
// several changes with the same key.
type changeBatch struct {
	send func(*pb.FollowResponse) error

	puts    []*pb.Resource // nil where a later change replaces the record
	at      map[string]int // by kind and key: index into puts
	deletes []*pb.ID
	bytes   int
}

// add adds c. If c does not fit, add sends the batch first.
func (b *changeBatch) add(c change) error {
	if n := len(b.puts) + len(b.deletes); n > 0 && (n >= batchRecords || b.bytes+c.size > batchBytes) {
		if err := b.flush(0, nil); err != nil {
			return err
		}
	}
	b.bytes += c.size
	key := c.kind.group + "\x00" + c.kind.name + "\x00" + keyOf(c.id())
	i, replaces := b.at[key]
	switch {
	case c.put != nil && replaces:
		b.puts[i] = c.put
	case c.put != nil:
		if b.at == nil {
			b.at = map[string]int{}
		}
		b.at[key] = len(b.puts)
		b.puts = append(b.puts, c.put)
	default:
		if replaces { // a receiver applies deletions first
			b.puts[i] = nil
			delete(b.at, key)
		}
		b.deletes = append(b.deletes, c.deleted)
	}
	return nil
}

// flush sends the batch, even if it is empty. The message contains the index
// and position that the follower reaches with the batch.
func (b *changeBatch) flush(index uint64, at *pb.FollowPosition) error {
	msg := &pb.FollowResponse{Index: index, Position: at, Deletes: b.deletes}
	for _, r := range b.puts {
		if r != nil {
			msg.Upserts = append(msg.Upserts, r)
		}
	}
	*b = changeBatch{send: b.send}
	return b.send(msg)
}
