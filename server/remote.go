// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// remote forwards requests to other datacenters. It forwards reads with the
// identity of this server, and writes on behalf of the caller.
type remote struct {
	dc      string
	book    *wanfed.SharedAddressBook
	calls   *dcrpc.Client
	manager *replication.PrimaryManager
	local   *resource.Service
}

// checkKnown returns an error that wraps unknown if dc is not in the address
// book.
func (r *remote) checkKnown(dc string, unknown error) error {
	if _, ok := r.book.Load().Paths[dc]; ok {
		return nil
	}
	return fmt.Errorf("%w: datacenter %q is not known in %s; see: wanfed federation list", unknown, dc, r.dc)
}

// onBehalf returns a context for calls to another datacenter on behalf of the
// caller of ctx. The other datacenter cannot verify the caller's certificate.
// This server therefore verifies that the caller is an operator of this
// datacenter. The other datacenter may reject such writes: see
// Config.AllowRemoteWritesFrom.
func (r *remote) onBehalf(ctx context.Context) (context.Context, error) {
	caller, err := rpc.Peer(ctx)
	switch {
	case err != nil:
		return nil, err
	case caller.Role != tlsutil.RoleOperator:
		return nil, resource.StatusError(fmt.Errorf("%w: %v may not write: create an operator's certificate with: "+
			"wanfed tls cert create --operator --datacenter %s", resource.ErrDenied, caller, r.dc))
	case caller.DC != r.dc:
		return nil, resource.StatusError(fmt.Errorf(
			"%w: servers of %s forward writes only for operators of %s, not for %v: "+
				"write at a server of the other datacenter", resource.ErrDenied, r.dc, r.dc, caller))
	}
	return metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, caller.String()), nil
}

// Query implements httpapi.Cluster.
func (r *remote) Query(
	ctx context.Context, dc string, req *pb.QueryRequest, timeout time.Duration,
) (*pb.QueryResponse, error) {
	if err := r.checkKnown(dc, httpapi.ErrNoPath); err != nil {
		return nil, err
	}
	resp, err := r.send(ctx, dc, req, time.Now().Add(timeout))
	switch code := status.Code(err); {
	case err == nil:
		return resp, nil
	case code == codes.PermissionDenied:
		text := strings.TrimPrefix(status.Convert(err).Message(), resource.ErrDenied.Error()+": ")
		return nil, fmt.Errorf("%w: %s", resource.ErrDenied, text)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case code == codes.DeadlineExceeded:
		return nil, context.DeadlineExceeded
	case code == codes.Unavailable, code == codes.Canceled: // Canceled: the connection was closed
		return nil, fmt.Errorf("%w: %s", httpapi.ErrUnreachable, rpctext.Plain(status.Convert(err).Message()))
	}
	return nil, err
}

func (r *remote) send(ctx context.Context, dc string, req *pb.QueryRequest,
	deadline time.Time) (*pb.QueryResponse, error) {
	blocking := strings.Contains(req.RawQuery, "index=")
	if req.Method == "" && !blocking {
		return r.calls.Query(ctx, dc, req, deadline)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if req.Method == "" || req.Method == http.MethodGet {
		return pb.NewServerServiceClient(r.calls.Reader(dc)).Query(ctx, req)
	}
	ctx, err := r.onBehalf(ctx)
	if err != nil {
		return nil, err
	}
	return pb.NewServerServiceClient(r.calls.Writer(dc)).Query(ctx, req)
}

// federationStates returns a client of the federation service of dc.
func (r *remote) federationStates(dc string) (pb.FederationServiceClient, error) {
	if err := r.checkKnown(dc, httpapi.ErrNoPath); err != nil {
		return nil, err
	}
	return pb.NewFederationServiceClient(r.calls.Reader(dc)), nil
}

// resources returns a client of the resource service of dc. "" means this
// datacenter. Writes to another datacenter are made on behalf of the caller.
func (r *remote) resources(dc string) (pb.ResourceServiceClient, error) {
	if dc == "" || dc == r.dc {
		return r.local.Client(), nil
	}
	return r.resourcesOf(dc, r.onBehalf)
}

// resourcesOf returns a client of the resource service of another datacenter.
// onBehalf returns the context of a write.
func (r *remote) resourcesOf(
	dc string, onBehalf func(context.Context) (context.Context, error),
) (pb.ResourceServiceClient, error) {
	if err := r.checkKnown(dc, resourcehttp.ErrNoDatacenter); err != nil {
		return nil, err
	}
	return pb.NewResourceServiceClient(&splitConn{r.calls.Reader(dc), r.calls.Writer(dc), onBehalf}), nil
}

// demotedGrace is the time after a demotion in which other datacenters may
// still treat the demoted datacenter as the primary.
const demotedGrace = time.Minute

// primaryResources returns a client of the resource service of the primary.
// During demotedGrace, a caller of another datacenter gets an error that
// requests a retry, because the caller may treat this datacenter as the
// primary.
func (r *remote) primaryResources() (pb.ResourceServiceClient, error) {
	primary := r.manager.PrimaryDC()
	switch {
	case primary == r.dc:
		return r.local.Client(), r.manager.Writable()
	case time.Since(r.manager.DemotedAt()) > demotedGrace:
		return r.resourcesOf(primary, r.onBehalf)
	}
	return r.resourcesOf(primary, func(ctx context.Context) (context.Context, error) {
		if caller, err := rpc.Peer(ctx); err == nil && caller.DC != r.dc {
			return nil, fmt.Errorf("the primary is %s, no longer %s: retry later, or see: wanfed status", primary, r.dc)
		}
		return r.onBehalf(ctx)
	})
}

// writeMethods are the methods of the resource service that write, or validate
// a write.
var writeMethods = []string{
	pb.ResourceService_Write_FullMethodName, pb.ResourceService_WriteStatus_FullMethodName,
	pb.ResourceService_Delete_FullMethodName, pb.ResourceService_MutateAndValidate_FullMethodName,
}

// splitConn sends reads over one connection, and writes over another connection
// on behalf of the caller.
type splitConn struct {
	read, write grpc.ClientConnInterface
	onBehalf    func(context.Context) (context.Context, error)
}

// Invoke implements grpc.ClientConnInterface.
func (c *splitConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if !slices.Contains(writeMethods, method) {
		return c.read.Invoke(ctx, method, args, reply, opts...)
	}
	ctx, err := c.onBehalf(ctx)
	if err != nil {
		return err
	}
	return c.write.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c *splitConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.read.NewStream(ctx, desc, method, opts...)
}

// queryService serves the requests of other servers.
type queryService struct {
	pb.UnimplementedServerServiceServer
	responses *limit.PerPeer
	query     func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error)
	names     *nameCheck
	describe  func(node string) (*pb.DescribeCallerResponse, error)
	reach     func(dc string) *pb.ReachabilityResponse
}

// Reachability implements pb.ServerServiceServer.
func (s *queryService) Reachability(
	ctx context.Context, _ *pb.ReachabilityRequest,
) (*pb.ReachabilityResponse, error) {
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	return s.reach(caller.DC), nil
}

// Identify implements pb.ServerServiceServer.
func (s *queryService) Identify(ctx context.Context, other *pb.ServerIdentity) (*pb.ServerIdentity, error) {
	if caller, err := rpc.Peer(ctx); err != nil || caller.Node != s.names.node {
		return nil, status.Errorf(codes.PermissionDenied, "only a server with the name %s may call Identify here",
			s.names.node)
	}
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	self := s.names.self()
	s.names.compare(ctx, other)
	return self, nil
}

// DescribeCaller implements pb.ServerServiceServer.
func (s *queryService) DescribeCaller(
	ctx context.Context, _ *pb.DescribeCallerRequest,
) (*pb.DescribeCallerResponse, error) {
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	return s.describe(caller.Node)
}

// Query implements pb.ServerServiceServer.
func (s *queryService) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.query(ctx, req)
}

// Exchange implements pb.ServerServiceServer.
func (s *queryService) Exchange(stream pb.ServerService_ExchangeServer) error {
	caller, _ := rpc.Peer(stream.Context())
	return dcrpc.ServeRequests(stream,
		func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, func(), error) {
			slot, err := s.responses.Acquire(ctx, caller)
			if err != nil {
				return nil, nil, err
			}
			resp, err := s.query(limit.NewContext(ctx, slot), req)
			if err != nil || len(resp.GetBody()) <= rpc.SmallResponse {
				slot.Release()
				return resp, nil, err
			}
			return resp, slot.Release, nil
		})
}
