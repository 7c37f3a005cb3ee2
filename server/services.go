// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/rpc"
)

// gatewayService serves the gateways of this datacenter. The certificate of a
// gateway has its name.
type gatewayService struct {
	pb.UnimplementedGatewayServiceServer
	gateways *catalog.Gateways
	book     *federation.AddressBookUpdater
}

// Register implements pb.GatewayServiceServer.
func (s *gatewayService) Register(ctx context.Context,
	req *pb.RegisterGatewayRequest) (*pb.RegisterGatewayResponse, error) {
	gateway, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	err = resource.StatusError(s.gateways.Register(ctx, catalog.GatewayRegistration{
		Node: gateway.Node, LAN: req.Lan, WAN: req.Wan, Meta: req.Meta,
	}))
	if status.Code(err) == codes.Internal { // not an error of the store: the registration is invalid
		err = status.Error(codes.InvalidArgument, status.Convert(err).Message())
	}
	if err != nil {
		return nil, err
	}
	return &pb.RegisterGatewayResponse{
		Interval: durationpb.New(catalog.HeartbeatInterval), Ttl: durationpb.New(catalog.HeartbeatTTL),
	}, nil
}

// Deregister implements pb.GatewayServiceServer.
func (s *gatewayService) Deregister(
	ctx context.Context, _ *pb.DeregisterGatewayRequest,
) (*pb.DeregisterGatewayResponse, error) {
	gateway, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.gateways.Deregister(ctx, gateway.Node); err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.DeregisterGatewayResponse{}, nil
}

// Watch implements pb.GatewayServiceServer.
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

// checkService receives check results from followers and operators. It runs at
// the leader.
type checkService struct {
	pb.UnimplementedCheckServiceServer
	resources *resource.Service
	monitor   *catalog.TTLMonitor
}

// Report implements pb.CheckServiceServer.
func (s *checkService) Report(ctx context.Context, req *pb.CheckReportRequest) (*pb.CheckReportResponse, error) {
	err := s.resources.Allow(ctx, resource.VerbWrite, catalog.CheckType)
	if err == nil {
		err = s.monitor.Update(ctx, catalog.CheckUpdate{
			Node: req.GetNode(), CheckID: req.GetCheckId(), Status: req.GetStatus(), Output: req.GetOutput(),
		})
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.CheckReportResponse{}, nil
}

// checkReporter sends check results to the monitor of the leader.
type checkReporter struct {
	node    string
	store   *raftstore.Store
	monitor *catalog.TTLMonitor
	calls   *dcrpc.Client
}

func (r *checkReporter) report(ctx context.Context, u catalog.CheckUpdate) error {
	if r.store.IsLeader() {
		return r.monitor.Update(ctx, u)
	}
	leader, ok := r.store.Leader()
	if !ok || leader == r.node {
		return resource.ErrNotLeader
	}
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return err
	}
	cc, err := r.calls.Server(leader)
	if err != nil {
		return err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, caller.String())
	_, err = pb.NewCheckServiceClient(cc).Report(ctx, &pb.CheckReportRequest{
		Node: u.Node, CheckId: u.CheckID, Status: u.Status, Output: u.Output,
	})
	return resource.FromStatus(err)
}
