// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var discardLogger = slog.New(slog.DiscardHandler)

// The registered types of the tests. All types except localType are federated.
var (
	docType   = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Doc"}
	doc2Type  = &pb.Type{Group: "test", GroupVersion: "v2", Kind: "Doc"}
	siteType  = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Site"}
	zoneType  = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Zone"}
	localType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Local"}
)

// registry returns a registry of all types except those in without.
func registry(t testing.TB, without ...*pb.Type) *resource.Registry {
	t.Helper()
	reg := resource.NewRegistry()
next:
	for _, r := range []resource.Registration{
		{Type: docType, Federated: true},
		{Type: doc2Type, Federated: true},
		{Type: siteType, Federated: true, Scope: resource.ScopeCluster},
		{Type: zoneType, Federated: true, Scope: resource.ScopePartition},
		{Type: localType},
	} {
		for _, w := range without {
			if resource.SameType(w, r.Type) {
				continue next
			}
		}
		r.Message = &pb.Node{}
		if err := reg.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	return reg
}

// primary is a Source with a gRPC server over in-memory connections. It counts
// the messages of its streams.
type primary struct {
	store  resource.Backend
	source *Source
	ln     *bufconn.Listener
	srv    *grpc.Server
	open   sync.WaitGroup // open streams

	mu      sync.Mutex
	streams []context.CancelFunc

	sent      sync.Map     // number of sent upserts (int), by name of the resource
	bytesUp   atomic.Int64 // on the wire, from followers
	bytesDown atomic.Int64 // on the wire, to followers
	digests   atomic.Int64 // received digests
	cutAfter  atomic.Int64 // number of messages after which a stream fails; 0: no limit
}

func newPrimary(t testing.TB, store resource.Backend, without ...*pb.Type) *primary {
	t.Helper()
	src := NewSource(primaryManager(t, store, without...), store)
	p := &primary{store: store, source: src}
	intercept := func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		p.open.Add(1)
		defer p.open.Done()
		ctx, cancel := context.WithCancel(ss.Context())
		defer cancel()
		p.mu.Lock()
		p.streams = append(p.streams, cancel)
		p.mu.Unlock()
		return h(s, &countingStream{ServerStream: ss, p: p, ctx: ctx})
	}
	p.srv = grpc.NewServer(grpc.StatsHandler(p), grpc.StreamInterceptor(intercept))
	pb.RegisterReplicationServiceServer(p.srv, src)
	p.ln, _ = serve(t, p.srv)
	run(t, src.Run)
	return p
}

// serve runs a gRPC server over in-memory connections until the test ends.
func serve(t testing.TB, srv *grpc.Server) (ln *bufconn.Listener, stop func()) {
	t.Helper()
	ln = bufconn.Listen(1 << 20)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	stop = func() { srv.Stop(); wg.Wait() }
	t.Cleanup(stop)
	return ln, stop
}

// primary implements stats.Handler for its server.
func (p *primary) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (p *primary) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (p *primary) HandleConn(context.Context, stats.ConnStats)                       {}
func (p *primary) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		p.bytesUp.Add(int64(s.WireLength))
	case *stats.OutPayload:
		p.bytesDown.Add(int64(s.WireLength))
	}
}

// drop ends all streams.
func (p *primary) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.streams {
		cancel()
	}
	p.streams = nil
}

type countingStream struct {
	grpc.ServerStream
	p   *primary
	ctx context.Context // context of the stream, which drop ends
	n   int64
}

func (c *countingStream) Context() context.Context { return c.ctx }

func (c *countingStream) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	c.p.digests.Add(int64(len(m.(*pb.FollowRequest).GetDetails().GetDigests())))
	return err
}

func (c *countingStream) SendMsg(m any) error {
	if c.n++; c.p.cutAfter.Load() != 0 && c.n > c.p.cutAfter.Load() {
		return fmt.Errorf("the test cuts the stream after %d messages", c.n-1)
	}
	for _, r := range m.(*pb.FollowResponse).Upserts {
		n, _ := c.p.sent.LoadOrStore(r.Id.Name, 0)
		c.p.sent.Store(r.Id.Name, n.(int)+1)
	}
	return c.ServerStream.SendMsg(m)
}

func (p *primary) client(t testing.TB) *grpc.ClientConn {
	t.Helper()
	return connect(t, p.ln)
}

func connect(t testing.TB, ln *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///p", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// primaryManager returns the PrimaryManager of a primary whose configuration
// does not change.
func primaryManager(t testing.TB, store resource.Backend, without ...*pb.Type) *PrimaryManager {
	t.Helper()
	return newPrimaryManager(t, PrimaryManagerConfig{
		DC: "dc1", ConfiguredPrimary: "dc1", Backend: store, Registry: registry(t, without...), Remote: fakeRemote{},
	})
}

// newPrimaryManager sets the missing fields of cfg.
func newPrimaryManager(t testing.TB, cfg PrimaryManagerConfig) *PrimaryManager {
	t.Helper()
	if err := Register(cfg.Registry); err != nil {
		t.Fatal(err)
	}
	cfg.Servers, cfg.DataDir, cfg.Logger = struct{ Servers }{}, t.TempDir(), discardLogger
	if cfg.Identity == nil {
		cfg.Identity = tlstest.NewCA(t).Identity(t, tlsutil.RoleServer, "srv1", cfg.DC)
	}
	p, err := NewPrimaryManager(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fakeRemote is a Remote that connects to one server.
type fakeRemote struct {
	client       func() (pb.ReplicationServiceClient, error)
	pathsChanged func() <-chan struct{} // nil: the paths do not change
}

func (r fakeRemote) ReplicationClient(string) (pb.ReplicationServiceClient, error) { return r.client() }

func (r fakeRemote) Disconnect(string) {}

func (fakeRemote) Known(string) bool { return true }

func (r fakeRemote) PathsChanged() <-chan struct{} {
	if r.pathsChanged == nil {
		return nil
	}
	return r.pathsChanged()
}

// newTestFollower returns a Follower of datacenter dc2. Its store, secondary,
// is marked as a complete replica of dc1. remote connects to the primary.
func newTestFollower(t testing.TB, secondary resource.Backend, remote Remote, without ...*pb.Type) *Follower {
	t.Helper()
	p := newPrimaryManager(t, PrimaryManagerConfig{
		DC: "dc2", ConfiguredPrimary: "dc1", Backend: secondary, Registry: registry(t, without...), Remote: remote,
	})
	p.followed = "dc1"
	setPrimary(t, p, &pb.Primary{Datacenter: "dc1", Complete: true})
	return p.follower
}

// setPrimary replaces the primary resource.
func setPrimary(t testing.TB, p *PrimaryManager, want *pb.Primary) {
	t.Helper()
	err := p.update(t.Context(), func(st *pb.Primary) {
		proto.Reset(st)
		proto.Merge(st, want)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// follower returns a Follower that stores replicas in secondary. It uses the
// connection that conn returns.
func follower(t testing.TB, secondary resource.Backend, conn func() *grpc.ClientConn, without ...*pb.Type) *Follower {
	t.Helper()
	client := func() (pb.ReplicationServiceClient, error) { return pb.NewReplicationServiceClient(conn()), nil }
	return newTestFollower(t, secondary, fakeRemote{client: client}, without...)
}

func (p *primary) follower(t testing.TB, secondary resource.Backend, without ...*pb.Type) *Follower {
	t.Helper()
	cc := p.client(t)
	return follower(t, secondary, func() *grpc.ClientConn { return cc }, without...)
}

// run starts f in a goroutine. stop and the end of the test cancel the context
// of f and join the goroutine.
func run(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}
