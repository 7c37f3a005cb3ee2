// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// tooLarge is a service whose lists do not fit into a message, as gRPC says it.
type tooLarge struct{ pb.ResourceServiceClient }

func (tooLarge) List(context.Context, *pb.ListRequest, ...grpc.CallOption) (*pb.ListResponse, error) {
	return nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max (20000000 vs. 16777216)")
}

// breaks is a service whose watches break after two events.
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
