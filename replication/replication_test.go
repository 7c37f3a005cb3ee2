// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

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
	store *memory.Store
	ln    *bufconn.Listener
	srv   *grpc.Server
	sent  sync.Map // name → times sent as upsert
	open  sync.WaitGroup
}

func newPrimary(t *testing.T, store *memory.Store) *primary {
	t.Helper()
	reg := resource.NewRegistry()
	if err := errors.Join(federation.Register(reg), catalog.Register(reg)); err != nil {
		t.Fatal(err)
	}
	src, err := NewSource(SourceConfig{Backend: store, Registry: reg, Primary: true})
	if err != nil {
		t.Fatal(err)
	}
	p := &primary{store: store, ln: bufconn.Listen(1 << 20)}
	p.srv = grpc.NewServer(grpc.StreamInterceptor(func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		p.open.Add(1)
		defer p.open.Done()
		return h(s, counted{ss, p})
	}))
	pb.RegisterReplicationServiceServer(p.srv, src)
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.srv.Serve(p.ln) })
	t.Cleanup(func() { p.srv.Stop(); wg.Wait() })
	return p
}

type counted struct {
	grpc.ServerStream
	p *primary
}

func (c counted) SendMsg(m any) error {
	for _, r := range m.(*pb.FollowResponse).Upserts {
		n, _ := c.p.sent.LoadOrStore(r.Id.Name, 0)
		c.p.sent.Store(r.Id.Name, n.(int)+1)
	}
	return c.ServerStream.SendMsg(m)
}

func (p *primary) client(t *testing.T) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///p", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func state(dc string, n int) *pb.FederationState {
	return &pb.FederationState{Datacenter: dc, MeshGateways: []*pb.MeshGateway{{
		Node: &pb.Node{Node: "gw1", Datacenter: dc},
		Service: &pb.Service{Node: "gw1", Id: "gw1", Kind: catalog.KindMeshGateway, TaggedAddresses: map[string]*pb.Address{
			catalog.TagWAN: {Address: fmt.Sprintf("198.51.100.%d", n), Port: 8443},
		}},
	}}}
}

func upsert(t *testing.T, b resource.Backend, s *pb.FederationState) {
	t.Helper()
	if _, _, err := federation.Upsert(t.Context(), b, s); err != nil {
		t.Fatal(err)
	}
}

// run runs f until the test ends and joins it.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
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

// untilSame waits, by the store's own index, until the copies agree with the primary's records.
func untilSame(t *testing.T, primary, secondary resource.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		want, _, err := federation.States(ctx, primary)
		if err != nil {
			t.Fatal(err)
		}
		got, index, err := federation.States(ctx, secondary)
		if err != nil {
			t.Fatal(err)
		}
		if same(want, got) {
			return
		}
		if err := secondary.Wait(ctx, resource.Query{Type: federation.StateType}, index); err != nil {
			t.Fatalf("copies never agree: want %v, have %v", want, got)
		}
	}
}

func same(want, got []*pb.FederationState) bool {
	if len(want) != len(got) {
		return false
	}
	for i, w := range want {
		if !federation.Same(w, got[i]) || got[i].PrimaryModifyIndex != w.ModifyIndex {
			return false
		}
	}
	return true
}

func follow(t *testing.T, secondary resource.Backend, p *primary, w *ways) *Follower {
	t.Helper()
	cc := p.client(t)
	f, err := NewFollower(FollowerConfig{
		Backend: secondary, Type: federation.StateType, Ways: w.Changed, Logger: quiet,
		Connect: func() (pb.ReplicationServiceClient, error) { return pb.NewReplicationServiceClient(cc), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFollow(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	for i := range 300 { // more than one chunk
		upsert(t, store, state(fmt.Sprintf("dc%d", i), 1))
	}
	// What the primary does not have must go; what it has otherwise must change.
	upsert(t, secondary, state("stale", 1))
	p := newPrimary(t, store)
	f := follow(t, secondary, p, &ways{})
	stop := run(t, f.Run)
	untilSame(t, store, secondary)

	upsert(t, store, state("dc7", 2))
	upsert(t, store, state("dc300", 1))
	if _, err := store.Commit(t.Context(), resource.RemoveOp(resource.ID(federation.StateType, "dc8"), resource.AnyVersion)); err != nil {
		t.Fatal(err)
	}
	untilSame(t, store, secondary)
	if st := f.Status(); !st.Connected || st.LastError != nil || st.LastContact.IsZero() {
		t.Errorf("status while following: %+v", st)
	}
	stop()
	p.open.Wait() // the source has noticed

	// After a break only the difference travels.
	p.sent.Clear()
	upsert(t, store, state("dc9", 3))
	run(t, f.Run)
	untilSame(t, store, secondary)
	n := 0
	p.sent.Range(func(name, times any) bool {
		if name != "dc9" || times != 1 {
			t.Errorf("%v was sent %v times", name, times)
		}
		n++
		return true
	})
	if n != 1 {
		t.Errorf("%d records were sent after the break, want 1", n)
	}
}

func TestFollowRecoversWhenTheWayChanges(t *testing.T) {
	store, secondary := memory.New(), memory.New()
	upsert(t, store, state("dc1", 1))
	p := newPrimary(t, store)
	cc := p.client(t)
	w := &ways{}
	var mu sync.Mutex
	reachable, tries := false, make(chan struct{}, 100)
	f, err := NewFollower(FollowerConfig{
		Backend: secondary, Type: federation.StateType, Ways: w.Changed, Logger: quiet,
		Connect: func() (pb.ReplicationServiceClient, error) {
			tries <- struct{}{}
			mu.Lock()
			defer mu.Unlock()
			if !reachable {
				return nil, errors.New("no way")
			}
			return pb.NewReplicationServiceClient(cc), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f.Run)
	for range 5 { // by now it waits for more than a second
		<-tries
	}
	mu.Lock()
	reachable = true
	mu.Unlock()
	start := time.Now()
	w.change()
	untilSame(t, store, secondary)
	if took := time.Since(start); took > time.Second {
		t.Errorf("a changed way was used after %v: not at once", took)
	}
}

func TestSourceRefuses(t *testing.T) {
	store := memory.New()
	p := newPrimary(t, store)
	client := pb.NewReplicationServiceClient(p.client(t))
	for _, typ := range []*pb.Type{nil, catalog.NodeType, {Group: "x", GroupVersion: "v1", Kind: "Y"}} {
		stream, err := client.Follow(t.Context(), &pb.FollowRequest{Type: typ})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := stream.Recv(); err == nil {
			t.Errorf("following %v gave %v", typ, m)
		}
	}
}

func TestAntiEntropy(t *testing.T) {
	store, up := memory.New(), memory.New()
	g, err := catalog.NewGateways(catalog.GatewaysConfig{Backend: store, DC: "dc2", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	run(t, g.Run)
	var mu sync.Mutex
	var failing error
	applied := make(chan *pb.FederationState, 100)
	w := &ways{}
	ae, err := NewAntiEntropy(AntiEntropyConfig{
		DC: "dc2", Backend: store, Ways: w.Changed, Logger: quiet,
		Apply: func(ctx context.Context, s *pb.FederationState) error {
			mu.Lock()
			defer mu.Unlock()
			if failing != nil {
				return failing
			}
			_, _, err := federation.Upsert(ctx, up, s)
			applied <- s
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, ae.Run)
	register := func(wan string) {
		t.Helper()
		reg := catalog.Registration{Node: "gw1", LAN: "10.0.0.1:8444", WAN: wan}
		for err := g.Register(t.Context(), reg); err != nil; err = g.Register(t.Context(), reg) {
			if !errors.Is(err, resource.ErrNotLeader) { // Run has not begun yet
				t.Fatal(err)
			}
		}
	}
	next := func() *pb.FederationState {
		t.Helper()
		select {
		case s := <-applied:
			return s
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was applied")
			return nil
		}
	}

	register("198.51.100.1:8443")
	if s := next(); len(s.MeshGateways) != 1 || s.UpdatedAt == nil {
		t.Fatalf("applied %v", s)
	}
	// The copy arrives; somebody deletes the record in the primary, and the loss arrives too: it is written again.
	copyDown(t, up, store)
	remove := resource.RemoveOp(resource.ID(federation.StateType, "dc2"), resource.AnyVersion)
	for _, b := range []resource.Backend{up, store} {
		if _, err := b.Commit(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
	}
	next()
	copyDown(t, up, store)

	// The way is gone, the address changes, the way comes back.
	mu.Lock()
	failing = errors.New("no way")
	mu.Unlock()
	register("198.51.100.2:8443")
	mu.Lock()
	failing = nil
	mu.Unlock()
	w.change()
	if s := next(); catalog.TaggedAddr(s.MeshGateways[0], catalog.TagWAN) != "198.51.100.2:8443" {
		t.Errorf("applied %v", s)
	}
	select {
	case s := <-applied:
		t.Errorf("applied again without a reason: %v", s)
	default:
	}
}

// copyDown does what a Follower would, in one step.
func copyDown(t *testing.T, from, to resource.Backend) {
	t.Helper()
	rs, _, err := from.List(t.Context(), resource.Eventual, resource.Query{Type: federation.StateType})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if _, err := to.Commit(t.Context(), resource.ReplicaOp(outgoing(r))); err != nil {
			t.Fatal(err)
		}
	}
}
