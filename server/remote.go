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
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// remote forwards requests to other datacenters: reads as this server, writes on
// behalf of the caller.
type remote struct {
	dc      string
	book    *wanfed.SharedAddressBook
	calls   *dcrpc.Client
	manager *replication.PrimaryManager
	local   *resource.Service
}

// known reports whether dc is in the address book.
func (r *remote) known(dc string) bool {
	_, ok := r.book.Load().Paths[dc]
	return ok
}

// onBehalf returns a context for calls to another datacenter on behalf of the
// caller of ctx. The other datacenter cannot verify the caller's certificate, so
// this server verifies that the caller is an operator of this datacenter. The
// other datacenter decides whether it accepts such writes: see
// Config.AllowRemoteWritesFrom.
func (r *remote) onBehalf(ctx context.Context) (context.Context, error) {
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case caller.Role != tlsutil.RoleOperator:
		return nil, fmt.Errorf("%w: %v may not write: create an operator's certificate with: wanfed tls cert create --operator --datacenter %s",
			resource.ErrDenied, caller, r.dc)
	case caller.DC != r.dc:
		return nil, fmt.Errorf("%w: servers of %s forward writes of operators of %s only, not of %v: "+
			"write at a server of the datacenter itself", resource.ErrDenied, r.dc, r.dc, caller)
	}
	return metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, caller.String()), nil
}

// query forwards a request of the HTTP API to any server of dc.
func (r *remote) query(ctx context.Context, dc string, req *pb.QueryRequest, limit time.Duration) (*pb.QueryResponse, error) {
	if !r.known(dc) {
		return nil, fmt.Errorf("%w: datacenter %q is not known in %s; see: wanfed federation list", httpapi.ErrNoPath, dc, r.dc)
	}
	resp, err := r.send(ctx, dc, req, time.Now().Add(limit))
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
	case code == codes.Unavailable, code == codes.Canceled: // the latter: the connection was closed
		return nil, fmt.Errorf("%w: %s", httpapi.ErrUnreachable, resource.ErrorText(status.Convert(err).Message()))
	}
	return nil, err
}

func (r *remote) send(ctx context.Context, dc string, req *pb.QueryRequest, deadline time.Time) (*pb.QueryResponse, error) {
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
	if !r.known(dc) {
		return nil, fmt.Errorf("no path to datacenter %s: it is not in the address book", dc)
	}
	return pb.NewFederationServiceClient(r.calls.Reader(dc)), nil
}

// resources returns a client of the resource service of dc. "" means this
// datacenter. Writes to another datacenter are made on behalf of the caller.
func (r *remote) resources(dc string) (pb.ResourceServiceClient, error) {
	if dc == "" || dc == r.dc {
		return r.local.Client(), nil
	}
	if !r.known(dc) {
		return nil, fmt.Errorf("%w: datacenter %q is not known in %s; see: wanfed federation list", resourcehttp.ErrNoDatacenter, dc, r.dc)
	}
	return pb.NewResourceServiceClient(&splitConn{r.calls.Reader(dc), r.calls.Writer(dc), r.onBehalf}), nil
}

// demotedGrace is the time after a demotion in which other datacenters may
// still treat the demoted datacenter as the primary.
const demotedGrace = time.Minute

// primaryResources returns a client of the resource service of the primary.
func (r *remote) primaryResources() (pb.ResourceServiceClient, error) {
	primary := r.manager.PrimaryDC()
	if primary == r.dc {
		return r.local.Client(), r.manager.Writable()
	}
	client, err := r.resources(primary)
	if err != nil || time.Since(r.manager.DemotedAt()) > demotedGrace {
		return client, err
	}
	return &demotedClient{client, r.dc, primary}, nil
}

// writeMethods are the methods of the resource service that write, or validate a
// write.
var writeMethods = []string{
	pb.ResourceService_Write_FullMethodName, pb.ResourceService_WriteStatus_FullMethodName, pb.ResourceService_Delete_FullMethodName,
	pb.ResourceService_MutateAndValidate_FullMethodName,
}

// splitConn sends reads over one connection, and writes over another on behalf
// of the caller.
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
		return resource.StatusError(err)
	}
	return c.write.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c *splitConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.read.NewStream(ctx, desc, method, opts...)
}

// demotedClient forwards writes to the primary for callers of this datacenter
// only. Callers of other datacenters still treat this datacenter as the
// primary. Their error requests a retry instead of reporting denied access.
type demotedClient struct {
	pb.ResourceServiceClient
	dc, primary string
}

func (c *demotedClient) check(ctx context.Context) error {
	if caller, err := rpc.Peer(ctx); err == nil && caller.DC != c.dc {
		return fmt.Errorf("%s is not the primary, %s is: retry in a moment, or see: wanfed status", c.dc, c.primary)
	}
	return nil
}

// Write implements pb.ResourceServiceClient.
func (c *demotedClient) Write(ctx context.Context, req *pb.WriteRequest, opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Write(ctx, req, opts...)
}

// Delete implements pb.ResourceServiceClient.
func (c *demotedClient) Delete(ctx context.Context, req *pb.DeleteRequest, opts ...grpc.CallOption) (*pb.DeleteResponse, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Delete(ctx, req, opts...)
}

// smallResponse is the size, in bytes, up to which a response needs no slot while
// it waits to be sent.
const smallResponse = 8 << 10

// queryService serves the requests that remote forwards.
type queryService struct {
	pb.UnimplementedServerServiceServer
	responses *limit.PerPeer
	query     func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error)
}

// Query implements pb.ServerServiceServer.
func (s *queryService) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.query(ctx, req)
}

// Exchange implements pb.ServerServiceServer.
func (s *queryService) Exchange(stream pb.ServerService_ExchangeServer) error {
	caller, _ := rpc.Peer(stream.Context())
	return dcrpc.ServeRequests(stream, func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, func(), error) {
		slot, err := s.responses.Acquire(ctx, caller)
		if err != nil {
			return nil, nil, err
		}
		resp, err := s.query(limit.NewContext(ctx, slot), req)
		if err != nil || len(resp.GetBody()) <= smallResponse {
			slot.Release()
			return resp, nil, err
		}
		return resp, slot.Release, nil
	})
}
