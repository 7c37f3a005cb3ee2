// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/server/raftgroup"
	"github.com/wanfed/wanfed/server/rpc"
)

// Service serves the requests of other servers.
type Service struct {
	pb.UnimplementedServerServiceServer
	ServiceConfig
}

// ServiceConfig configures a Service. Fields are required unless documented otherwise.
type ServiceConfig struct {
	// Responses limits the responses of Exchange that a peer has not read.
	Responses *limit.PerPeer
	// HTTP serves a request that a server has forwarded for the caller of ctx.
	HTTP func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error)
	// Record records a request that was refused because its server may not name
	// the caller.
	Record func(ctx context.Context, c *policy.Call, err error) error
	// Tracer continues the traces of other datacenters. nil: none.
	Tracer *tracing.Tracer
	// Names checks a server with the name of this server.
	Names *raftgroup.Names
	// Describe returns what this server knows of the server node of its
	// datacenter.
	Describe func(node string) (*pb.DescribeCallerResponse, error)
	// Reach returns whether this server reaches the servers of dc. It blocks
	// while it reaches them, for up to wait.
	Reach func(ctx context.Context, dc string, wait time.Duration) *pb.ReachabilityResponse
}

// NewService returns a Service.
func NewService(cfg ServiceConfig) *Service { return &Service{ServiceConfig: cfg} }

// Reachability implements pb.ServerServiceServer.
func (s *Service) Reachability(
	ctx context.Context, req *pb.ReachabilityRequest,
) (*pb.ReachabilityResponse, error) {
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	return s.Reach(ctx, caller.DC, req.GetWait().AsDuration()), nil
}

// Identify implements pb.ServerServiceServer.
func (s *Service) Identify(ctx context.Context, other *pb.ServerIdentity) (*pb.ServerIdentity, error) {
	return s.Names.Identify(ctx, other)
}

// DescribeCaller implements pb.ServerServiceServer.
func (s *Service) DescribeCaller(
	ctx context.Context, _ *pb.DescribeCallerRequest,
) (*pb.DescribeCallerResponse, error) {
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	return s.Describe(caller.Node)
}

// Query implements pb.ServerServiceServer.
func (s *Service) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.serve(ctx, req)
}

// serve serves a request for the caller that the server of ctx names.
func (s *Service) serve(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	server, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	caller, err := policy.Named(server, req.GetCaller())
	if err != nil {
		call := &policy.Call{Caller: policy.Caller{Peer: server}, Method: cmp.Or(req.GetMethod(), http.MethodGet) + " " + req.GetPath()}
		_ = s.Record(ctx, call, err) // a refused call does not wait for its record
		return &pb.QueryResponse{Status: http.StatusForbidden, Body: []byte(err.Error())}, nil
	}
	ctx = s.Tracer.Remote(ctx, tracing.Parent{Header: req.GetTraceparent(), Source: server.DC})
	return s.HTTP(policy.WithCaller(ctx, caller), req)
}

// Exchange implements pb.ServerServiceServer.
func (s *Service) Exchange(stream pb.ServerService_ExchangeServer) error {
	caller, _ := rpc.Peer(stream.Context())
	return dcrpc.ServeRequests(stream,
		func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, func(), error) {
			slot, err := s.Responses.Acquire(ctx, caller)
			if err != nil {
				return nil, nil, err
			}
			resp, err := s.serve(limit.NewContext(ctx, slot), req)
			if err != nil || len(resp.GetBody()) <= rpc.SmallResponse {
				slot.Release()
				return resp, nil, err
			}
			return resp, slot.Release, nil
		})
}
