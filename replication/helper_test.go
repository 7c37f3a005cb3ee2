// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// Types of the tests: three kinds of every scope, one of which has two versions, and one that is not federated.
var (
	docType   = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Doc"}
	doc2Type  = &pb.Type{Group: "test", GroupVersion: "v2", Kind: "Doc"}
	siteType  = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Site"}
	zoneType  = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Zone"}
	localType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Local"}
)

// registry has all types of the tests but those left out.
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

// ways stands for the address book: Changed wakes those that retry.
type ways struct {
	mu sync.Mutex
	ch chan struct{}
}

func (w *ways) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

func (w *ways) change() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}

// primary is a real Source behind real gRPC over memory: only TLS and the tunnel are missing, which package test has.
type primary struct {
	store  resource.Backend
	source *Source
	ln     *bufconn.Listener
	srv    *grpc.Server
	open   sync.WaitGroup

	mu      sync.Mutex
	streams []context.CancelFunc

	sent sync.Map     // name → times sent as upsert
	up   atomic.Int64 // bytes on the wire from followers
	down atomic.Int64 // and to them
	ask  atomic.Int64 // digests that were told
	cut  atomic.Int64 // if not 0, streams fail after so many messages
}

func newPrimary(t testing.TB, store resource.Backend, without ...*pb.Type) *primary {
	t.Helper()
	src, err := NewSource(SourceConfig{Backend: store, Registry: registry(t, without...), Primary: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	p := &primary{store: store, source: src}
	p.srv = grpc.NewServer(grpc.StatsHandler(p), grpc.StreamInterceptor(func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		p.open.Add(1)
		defer p.open.Done()
		ctx, cancel := context.WithCancel(ss.Context())
		defer cancel()
		p.mu.Lock()
		p.streams = append(p.streams, cancel)
		p.mu.Unlock()
		return h(s, &counted{ServerStream: ss, p: p, ctx: ctx})
	}))
	pb.RegisterReplicationServiceServer(p.srv, src)
	p.ln, _ = serve(t, p.srv)
	run(t, src.Run)
	return p
}

// serve runs a gRPC server over memory until the test ends.
func serve(t testing.TB, srv *grpc.Server) (ln *bufconn.Listener, stop func()) {
	t.Helper()
	ln = bufconn.Listen(1 << 20)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	stop = func() { srv.Stop(); wg.Wait() }
	t.Cleanup(stop)
	return ln, stop
}

// primary is the stats.Handler of its server.
func (p *primary) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (p *primary) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (p *primary) HandleConn(context.Context, stats.ConnStats)                       {}
func (p *primary) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		p.up.Add(int64(s.WireLength))
	case *stats.OutPayload:
		p.down.Add(int64(s.WireLength))
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

type counted struct {
	grpc.ServerStream
	p   *primary
	ctx context.Context // of the stream: drop ends it
	n   int64
}

func (c *counted) Context() context.Context { return c.ctx }

func (c *counted) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	c.p.ask.Add(int64(len(m.(*pb.FollowRequest).GetDetails().GetDigests())))
	return err
}

func (c *counted) SendMsg(m any) error {
	if c.n++; c.p.cut.Load() != 0 && c.n > c.p.cut.Load() {
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

// follower makes one that follows whatever primary to names.
func follower(t testing.TB, secondary resource.Backend, to func() *grpc.ClientConn, without ...*pb.Type) *Follower {
	t.Helper()
	f, err := NewFollower(FollowerConfig{
		Backend: secondary, Registry: registry(t, without...), Ways: (&ways{}).Changed, Logger: quiet,
		Connect: func() (pb.ReplicationServiceClient, error) { return pb.NewReplicationServiceClient(to()), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (p *primary) follower(t testing.TB, secondary resource.Backend, without ...*pb.Type) *Follower {
	t.Helper()
	cc := p.client(t)
	return follower(t, secondary, func() *grpc.ClientConn { return cc }, without...)
}

// run runs f until the test ends and joins it.
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
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// record makes one that can be put; tenancy is partition/namespace.
func record(t testing.TB, typ *pb.Type, name, address string, tenancy ...string) *pb.Resource {
	t.Helper()
	r, err := resource.New(typ, name, &pb.Node{Node: name, Address: address})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Tenancy = &pb.Tenancy{}
	if len(tenancy) > 0 {
		r.Id.Tenancy.Partition = tenancy[0]
	}
	if len(tenancy) > 1 {
		r.Id.Tenancy.Namespace = tenancy[1]
	}
	return r
}

func commit1(t testing.TB, b resource.Backend, ops ...*pb.Op) *pb.Resource {
	t.Helper()
	out, err := b.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// put writes a record, or another address into the one that is there.
func put(t testing.TB, b resource.Backend, typ *pb.Type, name, address string, tenancy ...string) *pb.Resource {
	t.Helper()
	r := record(t, typ, name, address, tenancy...)
	byName := proto.CloneOf(r.Id)
	byName.Uid = ""
	old, err := b.Read(t.Context(), resource.Strong, byName)
	if other, ok := errors.AsType[*resource.GroupVersionError](err); ok {
		old, err = other.Stored, nil
	}
	if err == nil {
		r.Id.Uid, r.Owner, r.Metadata = old.Id.Uid, old.Owner, old.Metadata
	}
	return commit1(t, b, resource.PutOp(r, resource.AnyVersion))
}

func remove(t testing.TB, b resource.Backend, typ *pb.Type, name string, tenancy ...string) {
	t.Helper()
	id := record(t, typ, name, "", tenancy...).Id
	id.Uid = ""
	commit1(t, b, resource.RemoveOp(id, resource.AnyVersion))
}

// copies lists what a store has of the federated kinds as the primary has it: status and indexes of the store itself left out.
func copies(t testing.TB, b resource.Backend, isPrimary bool) map[string]*pb.Resource {
	t.Helper()
	out := map[string]*pb.Resource{}
	order, _ := kindsOf(registry(t))
	for _, k := range order {
		all, _, err := b.List(t.Context(), resource.Eventual, k.everywhere())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			c := outgoing(r)
			if !isPrimary {
				c.PrimaryModifyIndex = r.PrimaryModifyIndex
			}
			out[k.String()+" "+placeOf(r.Id)] = c
		}
	}
	return out
}

// unlike says in what a secondary's copies are not the primary's records.
func unlike(t testing.TB, primary, secondary resource.Backend) error {
	t.Helper()
	want, got := copies(t, primary, true), copies(t, secondary, false)
	for name, w := range want {
		if !proto.Equal(w, got[name]) {
			return fmt.Errorf("%q is %v, want %v", name, got[name], w)
		}
	}
	for name := range got {
		if want[name] == nil {
			return fmt.Errorf("%q is there, and not in the primary", name)
		}
	}
	return nil
}

// untilSame waits until the copies are the primary's records, looking after every change of the copies.
func untilSame(t testing.TB, primary, secondary resource.Backend) {
	t.Helper()
	until(t, secondary, func() error { return unlike(t, primary, secondary) })
}

// until waits until check is content, looking after every change of federated records in b.
func until(t testing.TB, b resource.Backend, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	order, _ := kindsOf(registry(t))
	for _, k := range order {
		wg.Go(func() { resource.Notify(ctx, b, k.everywhere(), wake) })
	}
	tick := time.NewTicker(50 * time.Millisecond) // for what is no change of a record
	defer tick.Stop()
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		<-time.After(2 * time.Since(began)) // looking takes no more than a third of the processor
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}
