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

// tooLarge is a service whose lists are too large for a gRPC message.
type tooLarge struct{ pb.ResourceServiceClient }

func (tooLarge) List(context.Context, *pb.ListRequest, ...grpc.CallOption) (*pb.ListResponse, error) {
	return nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max (20000000 vs. 16777216)")
}

// lost is a service whose calls fail before or after they were sent.
type lost struct {
	pb.ResourceServiceClient
	sent bool
}

func (l lost) Write(_ context.Context, _ *pb.WriteRequest, opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	return nil, l.fail(opts)
}

func (l lost) Delete(_ context.Context, _ *pb.DeleteRequest, opts ...grpc.CallOption) (*pb.DeleteResponse, error) {
	return nil, l.fail(opts)
}

func (l lost) fail(opts []grpc.CallOption) error {
	for _, o := range opts {
		if p, ok := o.(grpc.PeerCallOption); ok && l.sent {
			p.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
	return status.Error(codes.Unavailable, "error reading from server: EOF")
}

// breaks is a service whose watches fail after two events.
type breaks struct{ pb.ResourceServiceClient }

func (b breaks) WatchList(ctx context.Context, in *pb.WatchListRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	s, err := b.ResourceServiceClient.WatchList(ctx, in, opts...)
	return &broken{ServerStreamingClient: s}, err
}

type broken struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
	received int
}

func (b *broken) Recv() (*pb.WatchEvent, error) {
	if b.received++; b.received > 2 {
		return nil, errors.New("the path broke")
	}
	return b.ServerStreamingClient.Recv()
}

// electing is a service that has no leader for some calls.
type electing struct {
	pb.ResourceServiceClient
	calls *int
}

func (e electing) Write(ctx context.Context, in *pb.WriteRequest, opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	if *e.calls--; *e.calls >= 0 {
		return nil, resource.StatusError(fmt.Errorf("commit: %w", resource.ErrNotLeader))
	}
	return e.ResourceServiceClient.Write(ctx, in, opts...)
}
