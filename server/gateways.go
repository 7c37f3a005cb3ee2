// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
)

// gatewayService answers the gateways of this datacenter. A gateway's name is its certificate's.
type gatewayService struct {
	pb.UnimplementedGatewayServiceServer
	gateways *catalog.Gateways
	book     *federation.AddressBookUpdater
}

func (s *gatewayService) Register(ctx context.Context, req *pb.RegisterGatewayRequest) (*pb.RegisterGatewayResponse, error) {
	p, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	err = s.gateways.Register(ctx, catalog.GatewayRegistration{Node: p.Node, LAN: req.Lan, WAN: req.Wan, Meta: req.Meta})
	if err != nil {
		return nil, storeOr(err, codes.InvalidArgument)
	}
	return &pb.RegisterGatewayResponse{
		Interval: durationpb.New(catalog.HeartbeatInterval), Ttl: durationpb.New(catalog.HeartbeatTTL),
	}, nil
}

func (s *gatewayService) Deregister(ctx context.Context, _ *pb.DeregisterGatewayRequest) (*pb.DeregisterGatewayResponse, error) {
	p, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.gateways.Deregister(ctx, p.Node); err != nil {
		return nil, storeOr(err, codes.Internal)
	}
	return &pb.DeregisterGatewayResponse{}, nil
}

// storeOr maps errors of the store, and gives others the code of a mistake in the call.
func storeOr(err error, code codes.Code) error {
	for _, known := range []error{
		resource.ErrNotLeader, resource.ErrReadOnly, resource.ErrUnknownOutcome, resource.ErrConflict, resource.ErrClosed,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return resource.StatusError(err)
		}
	}
	return status.Error(code, err.Error())
}

func (s *gatewayService) Watch(_ *pb.WatchGatewayRequest, stream grpc.ServerStreamingServer[pb.GatewaySnapshot]) error {
	for {
		snap, changed := s.book.Snapshot()
		if snap != nil {
			if err := stream.Send(snap); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}
