// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// script encodes messages that a peer sends.
func script(messages ...proto.Message) []byte {
	var b bytes.Buffer
	for _, m := range messages {
		if _, err := protodelim.MarshalTo(&b, m); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// scriptedServer is the stream of a source. It receives the messages of a
// script and ends after the last message.
type scriptedServer struct {
	grpc.ServerStream
	ctx     context.Context
	end     context.CancelFunc // cancels ctx
	in      *bytes.Reader      // the script
	upserts int                // number of sent upserts
}

func (s *scriptedServer) Context() context.Context { return s.ctx }

func (s *scriptedServer) Recv() (*pb.FollowRequest, error) {
	m := &pb.FollowRequest{}
	if err := protodelim.UnmarshalFrom(s.in, m); err != nil {
		s.end()
		return nil, io.EOF
	}
	return m, nil
}

func (s *scriptedServer) Send(m *pb.FollowResponse) error {
	s.upserts += len(m.Upserts)
	if s.in.Len() == 0 || m.Begin == nil && m.Ask == nil { // the source reads no more requests
		s.end()
	}
	return nil
}

// FuzzSource checks that a source sends no resource twice, for any requests.
func FuzzSource(f *testing.F) {
	hello := &pb.FollowRequest{Part: &pb.FollowRequest_Hello{
		Hello: &pb.FollowHello{Types: []*pb.Type{docType, siteType}},
	}}
	summary := func(sum *pb.FollowSummary) *pb.FollowRequest {
		return &pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: sum}}
	}
	sum, last := summary(&pb.FollowSummary{Type: docType, Buckets: []uint64{5}}), summary(&pb.FollowSummary{Last: true})
	digest := &pb.FollowDigest{Partition: "default", Namespace: "default", Name: "n3", Uid: "u"}
	details := &pb.FollowRequest{Part: &pb.FollowRequest_Details{
		Details: &pb.FollowDetails{Type: docType, Digests: []*pb.FollowDigest{digest}, Last: true},
	}}
	f.Add(script(hello))
	f.Add(script(hello, sum, last, details))
	f.Add(script(hello, last, details))
	store := resourcetest.NewStore()
	fill(f, store, 50)
	src := NewSource(primaryManager(f, store), store)
	src.log.start(1)
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &scriptedServer{ctx: ctx, end: cancel, in: bytes.NewReader(b)}
		_ = src.Follow(s)
		if s.upserts > 50 {
			t.Errorf("Follow() sent %d resources, want at most 50", s.upserts)
		}
	})
}

// scriptedClient is the stream of a follower. It receives the messages of a
// script.
type scriptedClient struct {
	grpc.ClientStream
	in *bytes.Reader
}

func (s *scriptedClient) Send(*pb.FollowRequest) error { return nil }
func (s *scriptedClient) Recv() (*pb.FollowResponse, error) {
	m := &pb.FollowResponse{}
	return m, protodelim.UnmarshalFrom(s.in, m)
}

// FuzzFollower checks that any messages of a primary change only federated
// resources.
func FuzzFollower(f *testing.F) {
	r := &pb.Resource{Id: &pb.ID{Type: docType, Name: "a", Uid: "u"}, PrimaryModifyIndex: 3}
	f.Add(script(&pb.FollowResponse{Begin: &pb.FollowBegin{Kinds: []*pb.FollowKind{{Type: docType}}}},
		&pb.FollowResponse{
			Ask: &pb.FollowAsk{Kinds: []*pb.FollowBuckets{{Type: docType, Buckets: []uint32{0, 1 << 31}}}},
		},
		&pb.FollowResponse{
			Index: 4, Upserts: []*pb.Resource{r}, Deletes: []*pb.ID{r.Id}, Position: &pb.FollowPosition{Index: 4},
		}))
	f.Fuzz(func(t *testing.T, b []byte) {
		secondary := resourcetest.NewStore()
		defer secondary.Close()
		local := put(t, secondary, localType, "local", "own")
		put(t, secondary, docType, "n1", "own")
		follower := follower(t, secondary, nil)
		s := &followerStream{follower: follower, stream: &scriptedClient{in: bytes.NewReader(b)}, progress: func() {}}
		if err := s.hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := s.stream.Recv()
			if err == nil {
				err = s.handle(t.Context(), []*pb.FollowResponse{m})
			}
			if errors.Is(err, resource.ErrInvalid) {
				t.Fatalf("handle(%v) = %v, want a refused change instead of ErrInvalid", m, err)
			}
			if err != nil {
				break
			}
		}
		r, err := secondary.Read(t.Context(), resource.Eventual, local.Id)
		if err != nil || r.Version != local.Version {
			t.Errorf("Read() of a local type = %v, %v, want version %s", r, err, local.Version)
		}
		if _, err := follower.TypeStatuses(t.Context()); err != nil {
			t.Errorf("TypeStatuses() = %v, want nil", err)
		}
	})
}
