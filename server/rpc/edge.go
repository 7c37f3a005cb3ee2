// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// prefaceTimeout is the maximum time from the TLS handshake to the HTTP/2
	// preface of the peer.
	prefaceTimeout = 10 * time.Second
	// stopTimeout is the time for unary calls to finish after the end of
	// Serve's context.
	stopTimeout = 2 * time.Second
)

// Leadership reports the leader of the Raft group.
type Leadership interface {
	// IsLeader reports whether this server leads its datacenter.
	IsLeader() bool
	// Leader returns the node that leads the datacenter, if one is known.
	Leader() (node string, ok bool)
	// LeaderChanged returns a channel that is closed at the next change.
	LeaderChanged() <-chan struct{}
}

// Config configures an Edge. Fields are required unless documented otherwise.
type Config struct {
	// DC and Node name this server. Domain is the domain of names on the wire.
	DC, Node, Domain string
	Leader           Leadership
	// WriteError returns the reason why this server cannot write its log, or
	// nil. The error of a call that found no leader includes the reason.
	WriteError func() error
	// Connect returns a connection to another server of this datacenter.
	Connect func(node string) (grpc.ClientConnInterface, error)
	// Forward has the calls that this server merges before it sends them to the
	// leader, by full name of the method. Each function makes a call at node for
	// the caller of ctx, and must authorize the caller. Optional.
	Forward map[string]ForwardFunc
	// Policy decides who may call, and records calls.
	Policy *policy.Engine
	// Learn records the metadata api.EpochKey of a call. from is the caller. If
	// another server of this datacenter forwarded the call, from is the
	// original caller. Optional.
	Learn func(epoch string, from tlsutil.Peer)
	// Epoch returns the value of the metadata api.EpochKey in responses to
	// servers of other datacenters. "" sends none. Optional.
	Epoch func() string
	// Calls measures calls. Optional.
	Calls *monitor.Requests
	// Tracer records spans of calls. nil: none.
	Tracer *tracing.Tracer
	Logger *slog.Logger
}

// ForwardFunc makes a call at another server.
type ForwardFunc func(ctx context.Context, node string, req any) (resp any, err error)

// Edge is the gRPC server of one datacenter server. Services must be registered
// before Serve.
type Edge struct {
	cfg    Config
	denied *denials
	grpc   *grpc.Server

	openCalls *limit.PerPeer
	responses *limit.PerPeer // responses that may be large, until they are sent
	metered   byteLimit      // of metered calls

	stopping context.Context // ends with the context of Serve; then all streams end
	stop     context.CancelFunc
}

var _ grpc.ServiceRegistrar = (*Edge)(nil)

// streamWorkers is the number of goroutines that gRPC reuses for calls. In
// contrast, a new goroutine for each call would have to grow its stack each
// time. With reused goroutines, writes of 256 clients are 5 % faster. While all
// of them are busy, each further call runs in a new goroutine.
const streamWorkers = 256

// New returns an Edge without services.
func New(cfg Config) *Edge {
	e := &Edge{
		cfg: cfg, denied: newDenials(cfg.Logger),
		openCalls: limit.New(func(p tlsutil.Peer) int64 { return maxOpenCalls(p.Role) }),
		responses: limit.New(func(tlsutil.Peer) int64 { return maxResponses }),
	}
	e.stopping, e.stop = context.WithCancel(context.Background())
	e.grpc = grpc.NewServer(
		grpc.Creds(connCredentials{api.EstablishedTLS(), cfg.Domain}),
		grpc.ConnectionTimeout(prefaceTimeout),
		grpc.ForceServerCodecV2(responseCodec{resource.Codec()}),
		grpc.ReadBufferSize(api.ReadBufferSize),
		grpc.StaticStreamWindowSize(api.InitialWindowSize),
		grpc.StaticConnWindowSize(api.InitialWindowSize),
		grpc.UnaryInterceptor(e.unary),
		grpc.StreamInterceptor(e.stream),
		grpc.InTapHandle(e.countCall),
		grpc.MaxConcurrentStreams(maxConnCalls),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxHeaderListSize(MaxHeaders),
		grpc.MaxRecvMsgSize(api.MaxMessageSize),
		grpc.MaxSendMsgSize(api.MaxMessageSize),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true,
		}),
	)
	return e
}

// RegisterService implements grpc.ServiceRegistrar.
func (e *Edge) RegisterService(desc *grpc.ServiceDesc, impl any) { e.grpc.RegisterService(desc, impl) }

// RegisterIntrospection registers the health and reflection services. It
// reports all services that were registered before.
func (e *Edge) RegisterIntrospection() error {
	descriptors, err := resource.NewDescriptors()
	if err != nil {
		return err
	}
	states := health.NewServer()
	for name := range e.grpc.GetServiceInfo() {
		states.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(e.grpc, states)
	options := reflection.ServerOptions{Services: e.grpc, DescriptorResolver: descriptors}
	reflectionpb.RegisterServerReflectionServer(e.grpc, reflection.NewServerV1(options))
	reflectionalphapb.RegisterServerReflectionServer(e.grpc, reflection.NewServer(options))
	return nil
}

// Serve serves calls on all listeners until ctx ends. Connections must be TLS
// connections with a complete handshake and a verified peer. Serve may be
// called once.
func (e *Edge) Serve(ctx context.Context, listeners ...net.Listener) error {
	served, sctx := errgroup.WithContext(ctx)
	for _, ln := range listeners {
		served.Go(func() error {
			if err := e.grpc.Serve(ln); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return err
			}
			return nil
		})
	}
	<-sctx.Done() // ctx ended, or a listener failed
	e.stop()
	timer := time.AfterFunc(stopTimeout, e.grpc.Stop)
	e.grpc.GracefulStop()
	timer.Stop()
	return served.Wait()
}

// Denied returns the number of denied calls, by method and role of the caller.
func (e *Edge) Denied() map[DeniedCall]uint64 { return e.denied.counts() }

// Responses returns the limit of the responses that may be large.
func (e *Edge) Responses() *limit.PerPeer { return e.responses }

// call is an authorized call.
type call struct {
	rule      rule
	caller    policy.Caller
	forwarded bool         // a server of this datacenter forwarded the call
	record    *policy.Call // given to policy.Engine.Record, if it is reserved or the call is refused
}

// admit identifies the caller and applies the rule of the method. Peer returns
// the caller from the returned context.
func (e *Edge) admit(ctx context.Context, method string) (context.Context, call, error) {
	r, known := rules[resource.CanonicalMethod(method)]
	who, forwarded, err := e.identify(ctx, r)
	if err == nil && !known {
		err = status.Errorf(codes.Unimplemented, "no such method: %s", method)
	}
	if err == nil {
		if denied := r.allow(e.cfg.Policy, who, method, e.cfg.DC); denied != nil {
			err = status.Error(codes.PermissionDenied, denied.Error())
		}
	}
	c := call{rule: r, caller: who, forwarded: forwarded}
	c.record = &policy.Call{Caller: who, Method: method, Addr: addrOf(ctx)}
	if forwarded {
		c.record.Forwarder, _ = holder(ctx)
		c.record.Addr = forwardedAddr(ctx)
	}
	if err != nil {
		return ctx, c, e.finish(ctx, c, method, err)
	}
	return policy.WithCall(policy.WithCaller(ctx, who), c.record), c, nil
}

// reserve reserves the record of a call that this server is about to serve. The
// record of a heartbeat is reserved when it commits.
func (e *Edge) reserve(ctx context.Context, c call) error {
	if !c.rule.recorded {
		return nil
	}
	return resource.StatusError(e.cfg.Policy.Reserve(ctx))
}

// finish counts and records a call that this server has served or refused. It
// returns the error of the call.
func (e *Edge) finish(ctx context.Context, c call, method string, err error) error {
	refused := status.Code(err) == codes.PermissionDenied
	if refused {
		e.denied.record(c.caller.Peer, method, err)
	}
	if !refused && !c.record.Reserved() {
		return err
	}
	if recordErr := e.cfg.Policy.Record(ctx, c.record, err); err == nil {
		err = resource.StatusError(recordErr)
	}
	return err
}

// addrOf returns the address of the other end of the connection.
func addrOf(ctx context.Context) string {
	if p, ok := grpcpeer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// unary is the interceptor of calls with one request and one response. Only
// methods of registered services reach it.
func (e *Edge) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (resp any, err error) {
	start := time.Now()
	ctx, span := e.trace(ctx, info.FullMethod)
	if err = e.meter(ctx, req, info.FullMethod); err == nil {
		resp, err = e.call(ctx, req, info, next)
	}
	code := status.Code(err).String()
	e.cfg.Calls.Observe(info.FullMethod, code, time.Since(start))
	span.Set(tracing.GRPCCode, code)
	span.End(err != nil)
	return resp, err
}

// trace returns a context with the span of a call. Calls of servers have a span
// only if they are part of a trace: most are not made for a request.
func (e *Edge) trace(ctx context.Context, method string) (context.Context, tracing.Span) {
	if e.cfg.Tracer == nil {
		return ctx, tracing.Span{}
	}
	p, err := holder(ctx)
	md, _ := metadata.FromIncomingContext(ctx)
	parent := tracing.Parent{Trusted: e.exempt(p), Source: p.DC}
	if values := md.Get(tracing.Header); len(values) > 0 {
		parent.Header = values[0]
	}
	if err != nil || p.Role == tlsutil.RoleServer && parent.Header == "" {
		return ctx, tracing.Span{}
	}
	return e.cfg.Tracer.Request(ctx, method, parent)
}

// call authorizes a call and serves it, here or at the leader.
func (e *Edge) call(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (resp any, err error) {
	ctx, c, err := e.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer e.sendEpoch(ctx)
	serve := func() (err error) {
		resp, err = e.serve(ctx, c, req, info.FullMethod, next)
		return err
	}
	switch {
	case c.rule.waitsForLeader:
		err = e.retryUntilLeader(ctx, serve)
	case c.rule.leader:
		err = e.atLeader(ctx, c.forwarded, serve, func(node string) (retry bool, err error) {
			resp, err = e.forward(ctx, c, node, info.FullMethod, req)
			if notDone(err) || c.rule.idempotent && status.Code(err) == codes.Unavailable {
				return true, err
			}
			return false, e.unknownOutcome(node, err)
		})
	default:
		err = serve()
	}
	return resp, err
}

// sendEpoch adds the epoch to the response of a call, if the caller's connection
// is from a server of another datacenter.
func (e *Edge) sendEpoch(ctx context.Context) {
	if p, err := holder(ctx); err != nil || p.Role != tlsutil.RoleServer || p.DC == e.cfg.DC || e.cfg.Epoch == nil {
		return
	}
	if epoch := e.cfg.Epoch(); epoch != "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs(api.EpochKey, epoch)) // fails only after the response
	}
}

// serve calls the service at this server. A response that may be large holds a
// slot until it is sent.
func (e *Edge) serve(ctx context.Context, c call, req any, method string, next grpc.UnaryHandler) (any, error) {
	slot, err := e.responseSlot(ctx, c)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	ctx = resource.WithListLimit(ctx, api.MaxMessageSize)
	if slot != nil {
		ctx = limit.NewContext(ctx, slot)
	}
	var resp any
	if err = e.reserve(ctx, c); err == nil {
		c.record.Target = targetOf(req)
		resp, err = next(ctx, req)
	}
	if err == nil {
		err = resource.CheckListSize(resp, api.MaxMessageSize)
	}
	err = e.finish(ctx, c, method, err)
	switch {
	case err != nil:
		if slot != nil {
			slot.Release()
		}
		return nil, err
	case slot == nil:
		return resp, nil
	}
	return newLimitedResponse(ctx, resp, slot), nil
}

// stream is the interceptor of streams.
func (e *Edge) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	err := e.callStream(srv, ss, info, next)
	e.cfg.Calls.Count(info.FullMethod, status.Code(err).String())
	return err
}

// callStream authorizes a stream and serves it, here or at the leader. Streams
// end when the server stops.
func (e *Edge) callStream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) error {
	ctx, c, err := e.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.stopping, cancel)()
	serve := func() error {
		err := e.reserve(ctx, c)
		if err == nil {
			err = next(srv, streamWithContext{ss, ctx})
		}
		return e.finish(ctx, c, info.FullMethod, err)
	}
	if c.rule.leader {
		err = e.streamAtLeader(ctx, c, info, ss, serve)
	} else {
		err = serve()
	}
	if e.stopping.Err() != nil {
		return status.Error(codes.Unavailable, "server is stopping")
	}
	return err
}

// streamWithContext replaces the context of a stream.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamWithContext) Context() context.Context { return s.ctx }

// Limits of each peer: see the package documentation.
const (
	// manyCalls is the maximum number of open calls of an operator, and of a
	// server of another datacenter. These peers make calls for many clients, or
	// run many watches.
	manyCalls = 16384
	// fewCalls is the maximum number of open calls of a gateway or a client.
	fewCalls = 1024
	// maxConnCalls bounds the calls of one connection. It includes cancelled
	// calls that have not ended yet, and calls whose response was not sent yet.
	maxConnCalls = 2 * manyCalls
	// maxResponses bounds the responses to one peer that may be large.
	maxResponses = 32
	// SmallResponse is the maximum size, in bytes, of a response that needs no
	// slot while it waits to be sent.
	SmallResponse = 8 << 10
	// MaxHeaders bounds the headers of a call, or of an HTTP request with its
	// URL, in bytes. Each connection may use this amount of memory for headers.
	MaxHeaders = 64 << 10
)

// maxOpenCalls returns the maximum number of open calls of a peer with this
// role. It does not apply to servers of this datacenter.
func maxOpenCalls(r tlsutil.Role) int64 {
	if r == tlsutil.RoleServer || r == tlsutil.RoleOperator || r == tlsutil.RoleSync {
		return manyCalls
	}
	return fewCalls
}

// exempt reports whether p is exempt from all limits.
func (e *Edge) exempt(p tlsutil.Peer) bool { return p.Role == tlsutil.RoleServer && p.DC == e.cfg.DC }

// meter counts the bytes of a request, or rejects the call.
func (e *Edge) meter(ctx context.Context, req any, method string) error {
	p, err := holder(ctx)
	if err != nil || e.exempt(p) || !isMetered(method) {
		return err
	}
	m, _ := req.(proto.Message) // all requests are
	return e.metered.take(p, proto.Size(m), time.Now())
}

func isMetered(method string) bool { return rules[resource.CanonicalMethod(method)].metered }

// countCall counts a call from its headers to its end, or rejects the call.
// gRPC calls countCall from the goroutine that reads the connection, before it
// allocates memory for the call and reads the request. The context ends with the
// call.
func (e *Edge) countCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	p, err := holder(ctx)
	if err != nil || e.exempt(p) {
		return ctx, err
	}
	if isMetered(info.FullMethodName) {
		if err := e.metered.check(p, time.Now()); err != nil {
			e.denied.record(p, info.FullMethodName, err)
			return ctx, err
		}
	}
	slot := e.openCalls.TryAcquire(p)
	if slot == nil {
		err := status.Errorf(codes.ResourceExhausted,
			"%v already has %d open calls, which is the limit: end some, or use another certificate",
			p, maxOpenCalls(p.Role))
		e.denied.record(p, info.FullMethodName, err)
		return ctx, err
	}
	context.AfterFunc(ctx, slot.Release)
	return ctx, nil
}
