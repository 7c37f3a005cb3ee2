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

// script encodes the messages of a peer.
func script(messages ...proto.Message) []byte {
	var b bytes.Buffer
	for _, m := range messages {
		if _, err := protodelim.MarshalTo(&b, m); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// scriptedServer is the stream of a source that reads a script and ends with it.
type scriptedServer struct {
	grpc.ServerStream
	ctx   context.Context
	end   context.CancelFunc
	in    *bytes.Reader
	count int
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
	s.count += len(m.Upserts)
	if s.in.Len() == 0 || m.Begin == nil && m.Ask == nil { // the script has ended
		s.end()
	}
	return nil
}

// For any requests, the source responds or refuses, and sends no record twice.
func FuzzSource(f *testing.F) {
	hello := &pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: &pb.FollowHello{Types: []*pb.Type{docType, siteType}}}}
	sum := &pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: &pb.FollowSummary{Type: docType, Buckets: []uint64{5}}}}
	last := &pb.FollowRequest{Part: &pb.FollowRequest_Summary{Summary: &pb.FollowSummary{Last: true}}}
	details := &pb.FollowRequest{Part: &pb.FollowRequest_Details{Details: &pb.FollowDetails{
		Type: docType, Digests: []*pb.FollowDigest{{Partition: "default", Namespace: "default", Name: "n3", Uid: "u"}}, Last: true,
	}}}
	f.Add(script(hello))
	f.Add(script(hello, sum, last, details))
	f.Add(script(hello, last, details))
	store := resourcetest.NewStore()
	fill(f, store, 50)
	src, err := NewSource(SourceConfig{Backend: store, Registry: registry(f), Primary: AlwaysPrimary, Logger: quiet})
	if err != nil {
		f.Fatal(err)
	}
	src.log.start(1)
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &scriptedServer{ctx: ctx, end: cancel, in: bytes.NewReader(b)}
		_ = src.Follow(s)
		if s.count > 50 {
			t.Errorf("%d records were sent, want at most 50", s.count)
		}
	})
}

// scriptedClient is the stream of a follower that reads a script.
type scriptedClient struct {
	grpc.ClientStream
	in *bytes.Reader
}

func (s *scriptedClient) Send(*pb.FollowRequest) error { return nil }
func (s *scriptedClient) Recv() (*pb.FollowResponse, error) {
	m := &pb.FollowResponse{}
	return m, protodelim.UnmarshalFrom(s.in, m)
}

// For any messages of a primary, only federated records change.
func FuzzFollower(f *testing.F) {
	r := &pb.Resource{Id: &pb.ID{Type: docType, Name: "a", Uid: "u"}, PrimaryModifyIndex: 3}
	f.Add(script(&pb.FollowResponse{Begin: &pb.FollowBegin{Kinds: []*pb.FollowKind{{Type: docType}}}},
		&pb.FollowResponse{Ask: &pb.FollowAsk{Kinds: []*pb.FollowBuckets{{Type: docType, Buckets: []uint32{0, 1 << 31}}}}},
		&pb.FollowResponse{Index: 4, Upserts: []*pb.Resource{r}, Deletes: []*pb.ID{r.Id}, Position: &pb.FollowPosition{Index: 4}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		secondary := resourcetest.NewStore()
		defer secondary.Close()
		local := put(t, secondary, localType, "mine", "own")
		put(t, secondary, docType, "n1", "own")
		fl := follower(t, secondary, nil)
		tk := &followerStream{follower: fl, stream: &scriptedClient{in: bytes.NewReader(b)}, progress: func() {}}
		if err := tk.hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := tk.stream.Recv()
			if err == nil {
				err = tk.handle(t.Context(), []*pb.FollowResponse{m})
			}
			if errors.Is(err, resource.ErrInvalid) {
				t.Fatalf("the store rejected a change that the follower accepted: %v", err)
			}
			if err != nil {
				break
			}
		}
		if now, err := secondary.Read(t.Context(), resource.Eventual, local.Id); err != nil || now.Version != local.Version {
			t.Errorf("the local record = %v, %v, want it unchanged", now, err)
		}
		if _, err := fl.TypeStatuses(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
