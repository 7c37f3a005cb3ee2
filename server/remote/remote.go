// SPDX-License-Identifier: MPL-2.0

package remote

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
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/wanfed"
)

// Forwarder forwards requests to other datacenters, and names the caller.
type Forwarder struct{ Config }

// Config configures a Forwarder. Fields are required unless documented otherwise.
type Config struct {
	DC      string // name of this datacenter
	Book    *wanfed.SharedAddressBook
	Calls   *dcrpc.Client
	Manager *replication.PrimaryManager
	Local   *resource.Service // of this server
	// Requests measures the requests to other datacenters. Optional.
	Requests *monitor.Requests
}

// New returns a Forwarder.
func New(cfg Config) *Forwarder { return &Forwarder{cfg} }

// checkKnown returns an error that wraps unknown if dc is not in the address
// book.
func (r *Forwarder) checkKnown(dc string, unknown error) error {
	if _, ok := r.Book.Load().Paths[dc]; ok {
		return nil
	}
	return fmt.Errorf("%w: datacenter %q is not known in %s; see: wanfed federation list", unknown, dc, r.DC)
}

// caller returns the caller of ctx, for whom this server makes a request to
// another datacenter. The other datacenter cannot verify the certificate of the
// caller, and trusts this server only for callers of this datacenter: see
// policy.Named.
func (r *Forwarder) caller(ctx context.Context) (string, error) {
	c, err := rpc.Peer(ctx)
	if err != nil {
		return "", err
	}
	if c.DC != r.DC {
		return "", resource.StatusError(fmt.Errorf("%w: servers of %s forward requests only for callers of %s, not for %v: "+
			"call a server of the other datacenter", resource.ErrDenied, r.DC, r.DC, c))
	}
	return c.String(), nil
}

// onBehalf returns a context for calls to another datacenter for the caller of
// ctx.
func (r *Forwarder) onBehalf(ctx context.Context) (context.Context, error) {
	caller, err := r.caller(ctx)
	if err != nil {
		return nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, caller), nil
}

// Query implements httpapi.Cluster.
func (r *Forwarder) Query(
	ctx context.Context, dc string, req *pb.QueryRequest, timeout time.Duration,
) (*pb.QueryResponse, error) {
	if err := r.checkKnown(dc, httpapi.ErrNoPath); err != nil {
		return nil, err
	}
	caller, err := r.caller(ctx)
	var resp *pb.QueryResponse
	if err == nil {
		sctx, span := tracing.StartCall(ctx, "forward")
		span.Set(tracing.Datacenter, dc)
		req.Caller, req.Traceparent = caller, tracing.HeaderOf(sctx)
		start := time.Now()
		resp, err = r.send(sctx, dc, req, start.Add(timeout))
		span.End(err != nil)
		if result := httpResult(ctx, resp, err); blocks(req) {
			r.Requests.Count(dc, result)
		} else {
			r.Requests.Observe(dc, result, time.Since(start))
		}
	}
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

func (r *Forwarder) send(ctx context.Context, dc string, req *pb.QueryRequest,
	deadline time.Time) (*pb.QueryResponse, error) {
	if req.Method == "" && !blocks(req) {
		return r.Calls.Query(ctx, dc, req, deadline)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if req.Method == "" || req.Method == http.MethodGet {
		return pb.NewServerServiceClient(r.Calls.Reader(dc)).Query(ctx, req)
	}
	return pb.NewServerServiceClient(r.Calls.Writer(dc)).Query(ctx, req)
}

// FederationClient returns a client of the federation service of dc.
func (r *Forwarder) FederationClient(dc string) (pb.FederationServiceClient, error) {
	if err := r.checkKnown(dc, httpapi.ErrNoPath); err != nil {
		return nil, err
	}
	return pb.NewFederationServiceClient(r.Calls.Reader(dc)), nil
}

// ResourceClient returns a client of the resource service of dc. "" means this
// datacenter. Calls to another datacenter are made on behalf of the caller.
func (r *Forwarder) ResourceClient(dc string) (pb.ResourceServiceClient, error) {
	if dc == "" || dc == r.DC {
		return r.Local.Client(), nil
	}
	return r.resourcesOf(dc, r.onBehalf)
}

// resourcesOf returns a client of the resource service of another datacenter.
// onBehalf returns the context of a call.
func (r *Forwarder) resourcesOf(
	dc string, onBehalf func(context.Context) (context.Context, error),
) (pb.ResourceServiceClient, error) {
	if err := r.checkKnown(dc, resourcehttp.ErrNoDatacenter); err != nil {
		return nil, err
	}
	return pb.NewResourceServiceClient(&splitConn{
		read: r.Calls.Reader(dc), write: r.Calls.Writer(dc), onBehalf: onBehalf, dc: dc, requests: r.Requests,
	}), nil
}

// demotedGrace is the time after a demotion in which other datacenters may
// still treat the demoted datacenter as the primary.
const demotedGrace = time.Minute

// PrimaryClient returns a client of the resource service of the primary.
// During demotedGrace, a caller of another datacenter gets an error that
// requests a retry, because the caller may treat this datacenter as the
// primary.
func (r *Forwarder) PrimaryClient() (pb.ResourceServiceClient, error) {
	primary := r.Manager.PrimaryDC()
	switch {
	case primary == r.DC:
		return r.Local.Client(), r.Manager.Writable()
	case time.Since(r.Manager.DemotedAt()) > demotedGrace:
		return r.resourcesOf(primary, r.onBehalf)
	}
	return r.resourcesOf(primary, func(ctx context.Context) (context.Context, error) {
		if caller, err := rpc.Peer(ctx); err == nil && caller.DC != r.DC {
			return nil, fmt.Errorf("the primary is %s, no longer %s: retry later, or see: wanfed status", primary, r.DC)
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

// splitConn sends reads over one connection and writes over another, both on
// behalf of the caller.
type splitConn struct {
	read, write grpc.ClientConnInterface
	onBehalf    func(context.Context) (context.Context, error)
	dc          string
	requests    *monitor.Requests
}

// Invoke implements grpc.ClientConnInterface.
func (c *splitConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, err := c.onBehalf(ctx)
	if err != nil {
		return err
	}
	cc := c.read
	if slices.Contains(writeMethods, method) {
		cc = c.write
	}
	start := time.Now()
	err = cc.Invoke(ctx, method, args, reply, opts...)
	c.requests.Observe(c.dc, callResult(ctx, err), time.Since(start))
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c *splitConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, err := c.onBehalf(ctx)
	if err != nil {
		return nil, err
	}
	return c.read.NewStream(ctx, desc, method, opts...)
}
