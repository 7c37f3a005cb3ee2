// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// largeListClient is a client whose lists are too large for a gRPC message.
type largeListClient struct{ pb.ResourceServiceClient }

func (largeListClient) List(context.Context, *pb.ListRequest, ...grpc.CallOption) (*pb.ListResponse, error) {
	return nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max (20000000 vs. 16777216)")
}

// failingClient is a client whose writes fail before or after they were sent.
type failingClient struct {
	pb.ResourceServiceClient
	sent bool
}

func (c failingClient) Write(_ context.Context, _ *pb.WriteRequest,
	opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	return nil, c.fail(opts)
}

func (c failingClient) Delete(_ context.Context, _ *pb.DeleteRequest,
	opts ...grpc.CallOption) (*pb.DeleteResponse, error) {
	return nil, c.fail(opts)
}

func (c failingClient) fail(opts []grpc.CallOption) error {
	for _, o := range opts {
		if p, ok := o.(grpc.PeerCallOption); ok && c.sent {
			p.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
	return status.Error(codes.Unavailable, "error reading from server: EOF")
}

// failingWatchClient is a client whose watches fail after two events.
type failingWatchClient struct{ pb.ResourceServiceClient }

func (c failingWatchClient) WatchList(
	ctx context.Context, in *pb.WatchListRequest, opts ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	s, err := c.ResourceServiceClient.WatchList(ctx, in, opts...)
	return &failingStream{ServerStreamingClient: s}, err
}

type failingStream struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
	received int
}

func (s *failingStream) Recv() (*pb.WatchEvent, error) {
	if s.received++; s.received > 2 {
		return nil, errors.New("connection lost")
	}
	return s.ServerStreamingClient.Recv()
}

// leaderlessClient is a client of a datacenter without a leader for some
// writes.
type leaderlessClient struct {
	pb.ResourceServiceClient
	writes *int // number of writes until there is a leader
}

func (c leaderlessClient) Write(ctx context.Context, in *pb.WriteRequest,
	opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	if *c.writes--; *c.writes >= 0 {
		return nil, resource.StatusError(fmt.Errorf("commit: %w", resource.ErrNotLeader))
	}
	return c.ResourceServiceClient.Write(ctx, in, opts...)
}
