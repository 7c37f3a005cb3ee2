// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestSource_RefusesInvalidRequests(t *testing.T) {
	store := resourcetest.NewStore()
	put(t, store, siteType, "a", "1")
	p := newPrimary(t, store)
	client := pb.NewReplicationServiceClient(p.client(t))
	hello := &pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: &pb.FollowHello{Types: []*pb.Type{siteType}}}}
	summary := func(last bool, buckets ...uint64) *pb.FollowRequest {
		return &pb.FollowRequest{Part: &pb.FollowRequest_Summary{
			Summary: &pb.FollowSummary{Type: siteType, Buckets: buckets, Last: last},
		}}
	}
	details := &pb.FollowRequest{Part: &pb.FollowRequest_Details{
		Details: &pb.FollowDetails{Type: docType, Digests: []*pb.FollowDigest{{Name: "x"}}},
	}}
	waitReady(t, p)
	for name, requests := range map[string][]*pb.FollowRequest{
		"empty request":                   {{}},
		"summary first":                   {summary(true)},
		"three buckets":                   {hello, summary(true, 1, 2, 3)},
		"too many buckets":                {hello, summary(true, make([]uint64, 2*maxBuckets)...)},
		"second hello":                    {hello, hello},
		"details of another kind":         {hello, summary(true, 1), details},
		"summary for details":             {hello, summary(true, 1), summary(true, 1)},
		"details that were not requested": {hello, summary(true, 1, summarize([]digest{{"x", "y", 1}}, 1)[0]), details},
	} {
		stream, err := client.Follow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range requests {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: Recv() = %v, want InvalidArgument", name, err)
		}
	}
}

func TestSource_RefusesFollowersInSecondary(t *testing.T) {
	store := resourcetest.NewStore()
	p := primaryManager(t, store)
	setPrimary(t, p, &pb.Primary{Datacenter: "dc2"})
	if err := NewSource(p, store).Follow(helloStream{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Follow() of a secondary = %v, want FailedPrecondition", err)
	}
}

// helloStream is a stream whose first message is a hello.
type helloStream struct {
	grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]
}

func (helloStream) Context() context.Context { return context.Background() }

func (helloStream) Recv() (*pb.FollowRequest, error) {
	return &pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: &pb.FollowHello{}}}, nil
}

// waitReady waits until the log of a source is started.
func waitReady(t *testing.T, p *primary) {
	t.Helper()
	waitUntil(t, p.store, func() error {
		if _, _, ok := p.source.log.end(); !ok {
			return errors.New("the source is not ready")
		}
		return nil
	})
}

func TestNew_MissingFields(t *testing.T) {
	if _, err := NewPrimaryManager(PrimaryManagerConfig{}); err == nil {
		t.Error("NewPrimaryManager() without a configuration = nil, want an error")
	}
	if _, err := NewAntiEntropy(AntiEntropyConfig{}); err == nil {
		t.Error("NewAntiEntropy() without a configuration = nil, want an error")
	}
}
