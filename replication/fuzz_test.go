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
	"github.com/wanfed/wanfed/resource/memory"
)

// script is what a peer says, one message after the other; then the stream ends.
func script(messages ...proto.Message) []byte {
	var b bytes.Buffer
	for _, m := range messages {
		if _, err := protodelim.MarshalTo(&b, m); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// said is a source's stream that reads a script, and ends with it.
type said struct {
	grpc.ServerStream
	ctx   context.Context
	end   context.CancelFunc
	in    *bytes.Reader
	count int
}

func (s *said) Context() context.Context { return s.ctx }

func (s *said) Recv() (*pb.FollowRequest, error) {
	m := &pb.FollowRequest{}
	if err := protodelim.UnmarshalFrom(s.in, m); err != nil {
		s.end()
		return nil, io.EOF
	}
	return m, nil
}

func (s *said) Send(m *pb.FollowResponse) error {
	s.count += len(m.Upserts)
	if s.in.Len() == 0 || m.Begin == nil && m.Ask == nil { // nothing more will be said, or listened to
		s.end()
	}
	return nil
}

// FuzzSource: whatever a follower says, the source answers or refuses, and sends no record twice.
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
	store := memory.New()
	fill(f, store, 50)
	src, err := NewSource(SourceConfig{Backend: store, Registry: registry(f), Primary: AlwaysPrimary, Logger: quiet})
	if err != nil {
		f.Fatal(err)
	}
	src.log.start(1)
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &said{ctx: ctx, end: cancel, in: bytes.NewReader(b)}
		_ = src.Follow(s)
		if s.count > 50 {
			t.Errorf("%d records were sent", s.count)
		}
	})
}

// heard is a follower's stream that reads a script.
type heard struct {
	grpc.ClientStream
	in *bytes.Reader
}

func (s *heard) Send(*pb.FollowRequest) error { return nil }
func (s *heard) Recv() (*pb.FollowResponse, error) {
	m := &pb.FollowResponse{}
	return m, protodelim.UnmarshalFrom(s.in, m)
}

// FuzzFollower: whatever a primary says, nothing but federated records is changed, and the store stays whole.
func FuzzFollower(f *testing.F) {
	r := &pb.Resource{Id: &pb.ID{Type: docType, Name: "a", Uid: "u"}, PrimaryModifyIndex: 3}
	f.Add(script(&pb.FollowResponse{Begin: &pb.FollowBegin{Kinds: []*pb.FollowKind{{Type: docType}}}},
		&pb.FollowResponse{Ask: &pb.FollowAsk{Kinds: []*pb.FollowBuckets{{Type: docType, Buckets: []uint32{0, 1 << 31}}}}},
		&pb.FollowResponse{Index: 4, Upserts: []*pb.Resource{r}, Deletes: []*pb.ID{r.Id}, Position: &pb.FollowPosition{Index: 4}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		secondary := memory.New()
		defer secondary.Close()
		local := put(t, secondary, localType, "mine", "own")
		put(t, secondary, docType, "n1", "own")
		fl := follower(t, secondary, nil)
		tk := &followerStream{f: fl, stream: &heard{in: bytes.NewReader(b)}, progress: func() {}}
		if err := tk.hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := tk.stream.Recv()
			if err == nil {
				err = tk.handle(t.Context(), []*pb.FollowResponse{m})
			}
			if errors.Is(err, resource.ErrInvalid) {
				t.Fatalf("the store refuses what the follower let pass: %v", err)
			}
			if err != nil {
				break
			}
		}
		if now, err := secondary.Read(t.Context(), resource.Eventual, local.Id); err != nil || now.Version != local.Version {
			t.Errorf("the local record: %v, %v", now, err)
		}
		if _, err := fl.TypeStatuses(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
