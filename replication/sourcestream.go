// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// sourceStream serves one follower, in one goroutine. If the follower is slow,
// the goroutine blocks in Send, and later changes stay in the log until they
// are evicted.
type sourceStream struct {
	source *Source
	stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]
	known  map[string]bool // types that the follower supports, by resource.TypeString
	kinds  map[kind]bool   // kinds of the known types

	next     uint64             // log number of the next commit to send
	position *pb.FollowPosition // position before that commit
	// covered is the store's index when each kind was compared. Changes up to
	// that index have been sent.
	covered map[kind]uint64
	floor   uint64 // highest index in covered
}

// serve serves the follower that has sent hello, until the stream ends.
func (s *Source) serve(
	stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse], hello *pb.FollowHello,
) error {
	f := &sourceStream{
		source: s, stream: stream, known: map[string]bool{}, kinds: map[kind]bool{}, covered: map[kind]uint64{},
	}
	for _, t := range hello.GetTypes() {
		f.known[resource.TypeString(t)] = true
		f.kinds[kindOf(t)] = true
	}
	return f.run(hello)
}

// run serves the stream after its hello: it sends the begin message, compares
// the resources unless the follower's position is known, and then sends changes
// until the stream ends.
func (s *sourceStream) run(hello *pb.FollowHello) error {
	id, gateways, err := s.source.sourceGroup(s.stream.Context())
	if err != nil {
		return err
	}
	begin := &pb.FollowBegin{GroupId: id, Gateways: gateways}
	if hello.GetGroupId() != "" && id == "" {
		return status.Error(codes.Unavailable, "this datacenter has no group id yet")
	}
	if want := hello.GetGroupId(); want != "" && want != id {
		return errors.Join(s.send(&pb.FollowResponse{Begin: begin}), s.source.reject(hello, id))
	}
	s.source.accept()
	next, resumed := s.source.log.find(hello.GetPosition())
	successor := s.source.primary.announcedSuccessor()
	begin.Resumed, begin.HandedTo, begin.ConsentEpoch = resumed, successor.dc, successor.epoch
	begin.Formers, begin.Proofs = s.source.primary.stored().GetFormers(), s.source.primary.stored().GetProofs()
	if caller, _ := tlsutil.PeerFromContext(s.stream.Context()); successor.dc != "" && caller.DC == successor.dc {
		begin.Consent, err = SignEpoch(s.source.primary.cfg.Identity, Epoch{successor.epoch + 1, successor.dc},
			s.source.primary.cfg.DC)
		if err != nil {
			return fmt.Errorf("sign the consent to the promotion of %s: %w", successor.dc, err)
		}
	}
	if len(hello.GetTypes()) == 0 { // sent by PrimaryManager.probe
		return s.send(&pb.FollowResponse{Begin: begin})
	}
	for _, k := range s.source.kinds {
		all, _, err := s.list(k)
		if err != nil {
			return err
		}
		n := len(all)
		begin.Kinds = append(begin.Kinds, &pb.FollowKind{
			Type: k.typ(), Records: uint64(n), Unknown: uint64(n - len(s.filterKnown(all))),
		})
	}
	if err := s.send(&pb.FollowResponse{Begin: begin}); err != nil {
		return err
	}
	s.next, s.position = next, hello.GetPosition()
	if resumed {
		s.source.resumed.Add(1)
	} else {
		s.source.compared.Add(1)
		if err := s.compare(hello.GetReached()); err != nil {
			return err
		}
	}
	return s.sendChanges()
}

func (s *sourceStream) send(m *pb.FollowResponse) error {
	m.Known = s.source.primary.KnownEpoch().proto()
	s.source.sent.Add(uint64(proto.Size(m)))
	return s.stream.Send(m)
}

func (s *sourceStream) list(k kind) ([]*pb.Resource, uint64, error) {
	return s.source.backend.List(s.stream.Context(), resource.Eventual, k.query())
}

// filterKnown returns the resources whose type the follower supports.
func (s *sourceStream) filterKnown(all []*pb.Resource) []*pb.Resource {
	out := make([]*pb.Resource, 0, len(all))
	for _, r := range all {
		if s.known[resource.TypeString(r.GetId().GetType())] {
			out = append(out, r)
		}
	}
	return out
}

// catchUp blocks until this server has every commit that its datacenter has
// acknowledged. If the leader does not respond, catchUp succeeds if this server
// has the commits up to reached, which is the index of the follower.
func (s *sourceStream) catchUp(reached uint64) error {
	ctx, cancel := context.WithTimeout(s.stream.Context(), catchUpTimeout)
	defer cancel()
	// A strong read waits for the leader's commits. The query selects no
	// resource.
	empty := resource.Query{Type: s.source.types[s.source.kinds[0]][0], Prefix: "\xff"}
	_, _, err := s.source.backend.List(ctx, resource.Strong, empty)
	if err == nil || s.stream.Context().Err() != nil {
		return err
	}
	for _, k := range s.source.kinds {
		_, at, listErr := s.list(k)
		if listErr != nil || at >= reached {
			return listErr
		}
	}
	return status.Errorf(codes.Unavailable,
		"this server of the primary may lag behind its follower, and cannot reach its leader: %v", err)
}

// compare sends the resources that the follower lacks, and the ids of the
// resources that the follower must delete. It sends at least one message: the
// index in the last message reports to the follower that it is in sync.
//
// compare reads the end of the log before it lists resources. Therefore
// sendChanges sends every change that no list contained.
func (s *sourceStream) compare(reached uint64) error {
	if len(s.source.kinds) > 0 {
		if err := s.catchUp(reached); err != nil {
			return err
		}
	}
	if err := s.source.primary.checkFollow(); err != nil {
		return err // catchUp received a demotion
	}
	var ready bool
	if s.next, s.position, ready = s.source.log.end(); !ready {
		return errEvicted
	}
	differences, request, err := s.receiveSummaries()
	if err != nil {
		return err
	}
	out := &changeBatch{send: s.send}
	if len(request.Kinds) > 0 {
		if err := s.send(&pb.FollowResponse{Ask: request}); err != nil {
			return err
		}
		if err := s.receiveDetails(differences, out); err != nil {
			return err
		}
	}
	for _, k := range s.source.kinds {
		for _, r := range differences[k].resources {
			if r == nil {
				continue
			}
			put := replicaOf(r)
			if err := out.add(change{kind: k, put: put, size: proto.Size(put)}); err != nil {
				return err
			}
		}
	}
	return out.flush(s.floor, s.resumePosition())
}

// receiveSummaries compares the follower's summary of each kind with the local
// resources. It returns the differences, and a request for the digests of the
// buckets that differ. It ignores kinds that one side does not support.
func (s *sourceStream) receiveSummaries() (map[kind]*difference, *pb.FollowAsk, error) {
	differences, request := map[kind]*difference{}, &pb.FollowAsk{}
	for last := false; !last; {
		req, err := s.stream.Recv()
		if err != nil {
			return nil, nil, err
		}
		sum := req.GetSummary()
		if sum == nil {
			return nil, nil, status.Error(codes.InvalidArgument, "message is not a summary")
		}
		last = sum.GetLast()
		k := kindOf(sum.GetType())
		if !s.kinds[k] || s.source.types[k] == nil || differences[k] != nil {
			continue // unsupported, or a duplicate
		}
		all, index, err := s.list(k)
		if err != nil {
			return nil, nil, err
		}
		d, buckets, err := compare(s.filterKnown(all), sum.GetBuckets())
		if err != nil {
			return nil, nil, status.Error(codes.InvalidArgument, err.Error())
		}
		differences[k] = &d
		s.covered[k], s.floor = index, max(s.floor, index)
		if len(buckets) > 0 {
			request.Kinds = append(request.Kinds, &pb.FollowBuckets{Type: k.typ(), Buckets: buckets})
		}
	}
	for _, k := range s.source.kinds {
		if differences[k] == nil { // never send changes of a kind that was not compared
			differences[k] = &difference{}
			delete(s.kinds, k)
		}
	}
	return differences, request, nil
}

// receiveDetails receives the requested digests. It removes equal resources
// from differences and adds deletions to out.
func (s *sourceStream) receiveDetails(differences map[kind]*difference, out *changeBatch) error {
	for last := false; !last; {
		req, err := s.stream.Recv()
		if err != nil {
			return err
		}
		part := req.GetDetails()
		if part == nil {
			return status.Error(codes.InvalidArgument, "message has no details, which were requested")
		}
		last = part.GetLast()
		k := kindOf(part.GetType())
		d := differences[k]
		if d == nil {
			if len(part.GetDigests()) > 0 {
				return status.Errorf(codes.InvalidArgument, "details of %s were not requested", k)
			}
			continue
		}
		deletes, err := d.applyDetails(s.source.types[k][0], part.GetDigests())
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

// resumePosition returns the position at which the follower may resume, or nil.
// A position below floor is not returned: a stream that resumes there would
// send changes that are older than the follower's replicas.
func (s *sourceStream) resumePosition() *pb.FollowPosition {
	if s.position.GetIndex() < s.floor {
		return nil
	}
	return s.position
}

// sendChanges sends each commit, and heartbeats while no commit arrives.
func (s *sourceStream) sendChanges() error {
	idle := time.NewTimer(heartbeatInterval)
	defer idle.Stop()
	for {
		commits, grown, err := s.source.log.since(s.next, batchBytes)
		if err != nil {
			return err
		}
		if len(commits) == 0 {
			select {
			case <-grown:
				continue
			case <-idle.C:
			case <-s.stream.Context().Done():
				return s.stream.Context().Err()
			}
		}
		sent, err := s.sendCommits(commits)
		if err != nil {
			return err
		}
		if sent {
			idle.Reset(heartbeatInterval)
		}
	}
}

// sendCommits sends commits, in one message if they fit. It omits changes of
// kinds that the follower does not support, and sends nothing if no change
// remains. If commits is empty, sendCommits sends a heartbeat.
func (s *sourceStream) sendCommits(commits []*commit) (sent bool, err error) {
	out := &changeBatch{send: s.send}
	relevant := len(commits) == 0
	for _, c := range commits {
		s.next++
		s.position = c.position()
		for _, ch := range c.changes {
			if !s.kinds[ch.kind] || c.index <= s.covered[ch.kind] {
				continue
			}
			relevant = true
			if ch.put != nil && !s.known[resource.TypeString(ch.put.Id.GetType())] {
				// The resource has a new version that the follower does not
				// support.
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
	return true, out.flush(max(s.floor, s.position.GetIndex()), s.resumePosition())
}

// Limits of a message and of a Raft entry. A larger resource is sent and
// committed alone.
const (
	batchBytes   = 1 << 20
	batchChanges = 1024
)

// changeBatch collects changes for one message. It keeps only the last change
// of each resource.
type changeBatch struct {
	send func(*pb.FollowResponse) error

	puts    []*pb.Resource // nil element: deleted by a later change
	at      map[string]int // by kind and key: index into puts
	deletes []*pb.ID
	bytes   int
}

// add adds c. If c does not fit, add sends the batch first.
func (b *changeBatch) add(c change) error {
	if n := len(b.puts) + len(b.deletes); n > 0 && (n >= batchChanges || b.bytes+c.size > batchBytes) {
		if err := b.flush(0, nil); err != nil {
			return err
		}
	}
	b.bytes += c.size
	key := c.kind.group + "\x00" + c.kind.name + "\x00" + keyOf(c.id())
	i, replaces := b.at[key]
	switch {
	case c.put == nil:
		if replaces { // the receiver applies deletions first
			b.puts[i] = nil
			delete(b.at, key)
		}
		b.deletes = append(b.deletes, c.deleted)
	case replaces:
		b.puts[i] = c.put
	default:
		if b.at == nil {
			b.at = map[string]int{}
		}
		b.at[key] = len(b.puts)
		b.puts = append(b.puts, c.put)
	}
	return nil
}

// flush sends the batch, even if the batch is empty. index and position are the
// follower's index and position after the batch. They are 0 and nil if more
// batches follow.
func (b *changeBatch) flush(index uint64, position *pb.FollowPosition) error {
	msg := &pb.FollowResponse{Index: index, Position: position, Deletes: b.deletes}
	for _, r := range b.puts {
		if r != nil {
			msg.Upserts = append(msg.Upserts, r)
		}
	}
	*b = changeBatch{send: b.send}
	return b.send(msg)
}
