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

// following is one follower of a Source, in one goroutine. A slow one holds up nobody: it waits in Send, and what it misses
// meanwhile stays in the log, or is forgotten there.
type following struct {
	s      *Source
	stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]
	knows  map[string]bool // by resource.TypeString
	kinds  map[kind]bool   // of which it knows a type

	next uint64             // in the log
	at   *pb.FollowPosition // before next
	// covered is up to where a kind was compared: changes up to there have been sent.
	covered map[kind]uint64
	floor   uint64 // the highest of covered: below, at is no position to resume at
}

func newFollowing(s *Source, stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse], hello *pb.FollowHello) *following {
	f := &following{s: s, stream: stream, knows: map[string]bool{}, kinds: map[kind]bool{}, covered: map[kind]uint64{}}
	for _, t := range hello.GetTypes() {
		f.knows[resource.TypeString(t)] = true
		f.kinds[kindOf(t)] = true
	}
	return f
}

// run serves the follower until its stream ends.
func (f *following) run(hello *pb.FollowHello) error {
	next, resumed := f.s.log.find(hello.GetPosition())
	begin := &pb.FollowBegin{Resumed: resumed}
	if f.s.cfg.PrimaryManager != nil {
		begin.HandedTo = f.s.cfg.PrimaryManager.handedTo()
	}
	if len(hello.GetTypes()) == 0 { // a question: whether there is something to follow (PrimaryManager.ask)
		return f.send(&pb.FollowResponse{Begin: begin})
	}
	for _, k := range f.s.kinds {
		all, _, err := f.records(k)
		if err != nil {
			return err
		}
		n := len(all)
		begin.Kinds = append(begin.Kinds, &pb.FollowKind{
			Type: k.typ(), Records: uint64(n), Unknown: uint64(n - len(f.known(all))),
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
	return f.changes()
}

func (f *following) send(m *pb.FollowResponse) error {
	f.s.sent.Add(uint64(proto.Size(m)))
	return f.stream.Send(m)
}

func (f *following) records(k kind) ([]*pb.Resource, uint64, error) {
	return f.s.cfg.Backend.List(f.stream.Context(), resource.Eventual, k.everywhere())
}

// known leaves out records of types that the follower does not know.
func (f *following) known(all []*pb.Resource) []*pb.Resource {
	out := make([]*pb.Resource, 0, len(all))
	for _, r := range all {
		if f.knows[resource.TypeString(r.GetId().GetType())] {
			out = append(out, r)
		}
	}
	return out
}

// level returns when what is stored here is not older than what the follower has: all that the datacenter has acknowledged,
// or, while no leader can be asked, what the follower has seen.
func (f *following) level(reached uint64) error {
	ctx, cancel := context.WithTimeout(f.stream.Context(), levelTimeout)
	defer cancel()
	nothing := resource.Query{Type: f.s.types[f.s.kinds[0]][0], Prefix: "\xff"}
	_, _, err := f.s.cfg.Backend.List(ctx, resource.Strong, nothing)
	if err == nil || f.stream.Context().Err() != nil {
		return err
	}
	for _, k := range f.s.kinds {
		_, at, lerr := f.records(k)
		if lerr != nil || at >= reached {
			return lerr
		}
	}
	return status.Errorf(codes.Unavailable, "this server of the primary may have older records than its follower, and cannot ask its leader: %v", err)
}

// compare sends what the follower has not, and the ids of what it has too much: in one message at least, so that it knows
// when it is in sync. The place in the log is taken first: what changes meanwhile is sent afterwards, unless a list had it.
func (f *following) compare(reached uint64) error {
	if len(f.s.kinds) > 0 {
		if err := f.level(reached); err != nil {
			return err
		}
	}
	if err := f.s.refuses(); err != nil {
		return err // this server was behind, and is no more
	}
	var ready bool
	if f.next, f.at, ready = f.s.log.end(); !ready {
		return errForgotten
	}
	differences, ask, err := f.summaries()
	if err != nil {
		return err
	}
	out := &batcher{send: f.send}
	if len(ask.Kinds) > 0 {
		if err := f.send(&pb.FollowResponse{Ask: ask}); err != nil {
			return err
		}
		if err := f.details(differences, out); err != nil {
			return err
		}
	}
	for _, k := range f.s.kinds {
		for _, r := range differences[k].records {
			if r == nil {
				continue
			}
			put := outgoing(r)
			if err := out.add(change{kind: k, put: put, size: proto.Size(put)}); err != nil {
				return err
			}
		}
	}
	return out.flush(f.floor, f.position())
}

// summaries compares the follower's summary of each kind that both know.
func (f *following) summaries() (map[kind]*difference, *pb.FollowAsk, error) {
	differences, ask := map[kind]*difference{}, &pb.FollowAsk{}
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
			continue // nothing to compare with, or told twice
		}
		all, index, err := f.records(k)
		if err != nil {
			return nil, nil, err
		}
		d, buckets, err := compare(f.known(all), sum.GetBuckets())
		if err != nil {
			return nil, nil, status.Error(codes.InvalidArgument, err.Error())
		}
		differences[k] = &d
		f.covered[k], f.floor = index, max(f.floor, index)
		if len(buckets) > 0 {
			ask.Kinds = append(ask.Kinds, &pb.FollowBuckets{Type: k.typ(), Buckets: buckets})
		}
	}
	for _, k := range f.s.kinds {
		if differences[k] == nil { // not compared: nothing of it is sent, not even later
			differences[k] = &difference{}
			delete(f.kinds, k)
		}
	}
	return differences, ask, nil
}

// details takes the follower's, and hands on deletions.
func (f *following) details(differences map[kind]*difference, out *batcher) error {
	for last := false; !last; {
		req, err := f.stream.Recv()
		if err != nil {
			return err
		}
		part := req.GetDetails()
		if part == nil {
			return status.Error(codes.InvalidArgument, "a follower that was asked for details sends details")
		}
		last = part.GetLast()
		k := kindOf(part.GetType())
		d := differences[k]
		if d == nil {
			if len(part.GetDigests()) > 0 {
				return status.Errorf(codes.InvalidArgument, "details of %s were not asked for", resource.TypeString(part.GetType()))
			}
			continue
		}
		deletes, err := d.details(f.s.types[k][0], part.GetDigests())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		for _, id := range deletes {
			if err := out.add(change{kind: k, gone: id, size: proto.Size(id)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// position is where the follower may resume, or nil.
func (f *following) position() *pb.FollowPosition {
	if f.at.GetIndex() < f.floor {
		return nil // it would get again what is older than what it has
	}
	return f.at
}

// changes sends what is committed, as it comes, and a sign of life when nothing is.
func (f *following) changes() error {
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
		sent, err := f.pass(commits)
		if err != nil {
			return err
		}
		if sent {
			idle.Reset(SourceHeartbeat)
		}
	}
}

// pass sends commits, in one message if they are not too large for one. Those that are not for the follower it leaves out; if
// that is all, nothing is sent. No commits are a sign of life.
func (f *following) pass(commits []*commit) (sent bool, err error) {
	out := &batcher{send: f.send}
	news := len(commits) == 0
	for _, c := range commits {
		f.next++
		f.at = c.position()
		for _, ch := range c.changes {
			if !f.kinds[ch.kind] || c.index <= f.covered[ch.kind] {
				continue
			}
			news = true
			if ch.put != nil && !f.knows[resource.TypeString(ch.put.Id.GetType())] {
				ch = change{kind: ch.kind, gone: ch.put.Id, size: proto.Size(ch.put.Id)} // it has become what the follower cannot read
			}
			if err := out.add(ch); err != nil {
				return false, err
			}
		}
	}
	if !news {
		return false, nil
	}
	return true, out.flush(max(f.floor, f.at.GetIndex()), f.position())
}
