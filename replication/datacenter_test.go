// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/resourcefile"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// testFederation is a set of in-memory datacenters with one server each, srv1.
// It implements Remote.
type testFederation struct {
	t      *testing.T
	mu     sync.Mutex
	byName map[string]*datacenter
	cut    map[[2]string]bool                 // pairs of datacenters that cannot connect
	open   map[[2]string][]context.CancelFunc // streams of each pair
	issuer *tlstest.CA                        // see ca
}

// ca returns the CA of the federation.
func (f *testFederation) ca() *tlstest.CA {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.issuer == nil {
		f.issuer = tlstest.NewCA(f.t)
	}
	return f.issuer
}

// pair returns the key of two datacenters in any order.
func pair(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// partition cuts all streams between a and b until heal.
func (f *testFederation) partition(a, b *datacenter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := pair(a.name, b.name)
	if f.cut == nil {
		f.cut = map[[2]string]bool{}
	}
	f.cut[p] = true
	for _, cancel := range f.open[p] {
		cancel()
	}
	delete(f.open, p)
}

func (f *testFederation) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = nil
}

// connected returns a context for a stream between a and b, which ends at a
// partition.
func (f *testFederation) connected(ctx context.Context, a, b string) (context.Context, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := pair(a, b)
	if f.cut[p] {
		return nil, fmt.Errorf("%s and %s cannot connect", a, b)
	}
	ctx, cancel := context.WithCancel(ctx)
	if f.open == nil {
		f.open = map[[2]string][]context.CancelFunc{}
	}
	f.open[p] = append(f.open[p], cancel)
	return ctx, nil
}

// datacenter is a datacenter of a testFederation, with its store and its only
// running server, srv1.
type datacenter struct {
	fed   *testFederation
	name  string
	store resource.Backend
	dir   string // data directory

	configured string // configured primary of srv1
	stop       func() // stops srv1

	mu      sync.Mutex
	manager *PrimaryManager
	source  *Source
	conn    *grpc.ClientConn  // to srv1; nil: srv1 is stopped
	others  map[string]string // configured primaries of the other servers, by node
	changed chan struct{}     // closed when others changes
	relead  func()            // starts another leader without a restart
	// route replaces the client of connection n, counted from 1. nil: no
	// connection is replaced.
	route       func(n int) pb.ReplicationServiceClient
	connections int
}

// add starts a datacenter whose server is configured with primary.
func (f *testFederation) add(name, primary string) *datacenter {
	dc := &datacenter{fed: f, name: name, store: resourcetest.NewStore(), dir: f.t.TempDir(),
		changed: make(chan struct{})}
	f.mu.Lock()
	if f.byName == nil {
		f.byName = map[string]*datacenter{}
	}
	f.byName[name] = dc
	f.mu.Unlock()
	dc.start(primary)
	return dc
}

// start starts srv1 as the leader, configured with primary.
func (dc *datacenter) start(primary string) {
	dc.fed.t.Helper()
	dc.configured = primary
	t, reg := dc.fed.t, registry(dc.fed.t)
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	p, err := NewPrimaryManager(PrimaryManagerConfig{
		DC: dc.name, ConfiguredPrimary: primary, Backend: dc.store, Registry: reg, Logger: discardLogger,
		Servers: configuredServers{dc, primary}, Remote: remoteOf{dc.fed, dc},
		DataDir: dc.dir, Identity: dc.fed.ca().Identity(t, tlsutil.RoleServer, "srv1", dc.name),
	})
	if err != nil {
		t.Fatal(err)
	}
	dc.mu.Lock()
	dc.manager = p
	dc.mu.Unlock()
	src := NewSource(p, dc.store)
	srv := grpc.NewServer(grpc.StreamInterceptor(p.streamFromPeer))
	pb.RegisterReplicationServiceServer(srv, src)
	ln, stopServing := serve(t, srv)
	stopSource, stopLeading := run(t, src.Run), run(t, p.RunLeader)
	stopManager := run(t, func(ctx context.Context) error { return p.Run(ctx, dc.store) })
	dc.mu.Lock()
	defer dc.mu.Unlock()
	dc.source, dc.conn = src, connect(t, ln)
	dc.relead = func() { stopLeading(); stopLeading = run(t, p.RunLeader) }
	dc.stop = func() {
		dc.mu.Lock()
		dc.conn = nil
		dc.mu.Unlock()
		stopLeading()
		stopServing()
		stopSource()
		stopManager()
	}
}

func (dc *datacenter) restart(primary string) { dc.fed.t.Helper(); dc.stop(); dc.start(primary) }

// configuredServers implements Servers. primary is the configured primary of
// srv1.
type configuredServers struct {
	*datacenter
	primary string
}

func (s configuredServers) ConfiguredPrimaries() (map[string]string, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byNode := map[string]string{"srv1": s.primary}
	maps.Copy(byNode, s.others)
	return byNode, nil
}

func (s configuredServers) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// configureOthers sets the configured primaries of the other servers, by node.
func (dc *datacenter) configureOthers(byNode map[string]string) {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	dc.others = byNode
	close(dc.changed)
	dc.changed = make(chan struct{})
}

// callerKey is the metadata with the datacenter of the caller. It replaces the
// certificate.
const callerKey = "test-caller"

// streamFromPeer sets the caller of a stream, and records the epoch in its
// metadata.
func (p *PrimaryManager) streamFromPeer(
	srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler,
) error {
	md, _ := metadata.FromIncomingContext(ss.Context())
	for _, v := range md.Get(api.EpochKey) {
		if e, err := ParseEpoch(v); err == nil {
			p.Report(e, "peer")
		}
	}
	for _, dc := range md.Get(callerKey) {
		ss = streamFrom{ss, serverOf(ss.Context(), dc)}
	}
	return next(srv, ss)
}

// serverOf returns a context in which the server srv1 of dc is the caller.
func serverOf(ctx context.Context, dc string) context.Context {
	return tlsutil.WithPeer(ctx, tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: dc})
}

// streamFrom is a stream with another context.
type streamFrom struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamFrom) Context() context.Context { return s.ctx }

// remoteOf implements Remote for datacenter from.
type remoteOf struct {
	*testFederation
	from *datacenter
}

// epochClient is a client of datacenter to in datacenter from. It adds the epoch
// that from knows, and from, to the metadata.
type epochClient struct {
	pb.ReplicationServiceClient
	from *datacenter
	to   string
}

func (c epochClient) Follow(
	ctx context.Context, opts ...grpc.CallOption,
) (grpc.BidiStreamingClient[pb.FollowRequest, pb.FollowResponse], error) {
	ctx, err := c.from.fed.connected(ctx, c.from.name, c.to)
	if err != nil {
		return nil, err
	}
	c.from.mu.Lock()
	m := c.from.manager
	c.from.mu.Unlock()
	return c.ReplicationServiceClient.Follow(metadata.AppendToOutgoingContext(ctx,
		api.EpochKey, m.KnownEpoch().String(), callerKey, c.from.name), opts...)
}

func (remoteOf) Disconnect(string) {}

func (r remoteOf) ReplicationClient(name string) (pb.ReplicationServiceClient, error) {
	client, err := r.testFederation.ReplicationClient(name)
	return epochClient{client, r.from, name}, err
}

func (f *testFederation) Known(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byName[name] != nil
}

func (f *testFederation) PathsChanged() <-chan struct{} { return nil }

func (f *testFederation) ReplicationClient(name string) (pb.ReplicationServiceClient, error) {
	f.mu.Lock()
	dc := f.byName[name]
	f.mu.Unlock()
	if dc == nil {
		return nil, errors.New("unknown datacenter " + name)
	}
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if dc.conn == nil {
		return nil, errors.New(name + " is down")
	}
	if dc.connections++; dc.route != nil {
		if c := dc.route(dc.connections); c != nil {
			return c, nil
		}
	}
	return pb.NewReplicationServiceClient(dc.conn), nil
}

// waitUntil waits until done returns true. condition describes done.
func (dc *datacenter) waitUntil(condition string, done func() bool) {
	dc.fed.t.Helper()
	waitUntil(dc.fed.t, dc.store, func() error {
		if !done() {
			return fmt.Errorf("%s: primary resource = %v, pending reason = %q, want %s",
				dc.name, dc.manager.stored(), dc.manager.PendingReason(), condition)
		}
		return nil
	})
}

// takeOver makes dc the primary in place of from.
func (dc *datacenter) takeOver(from string) {
	dc.fed.t.Helper()
	if err := dc.tryTakeOver(dc.fed.t.Context(), from); err != nil {
		dc.fed.t.Fatal(err)
	}
}

// tryTakeOver calls TakeOver as an operator of dc.
func (dc *datacenter) tryTakeOver(ctx context.Context, from string) error {
	dc.fed.t.Helper()
	state, err := dc.manager.TakeOver(ctx, &pb.TakeOverRequest{From: from, Check: true})
	if err != nil {
		return err
	}
	operator := dc.fed.ca().Identity(dc.fed.t, tlsutil.RoleOperator, "", dc.name)
	proof, err := SignEpoch(operator, Epoch{state.NextEpoch, dc.name}, "")
	if err != nil {
		dc.fed.t.Fatal(err)
	}
	_, err = dc.manager.TakeOver(ctx, &pb.TakeOverRequest{From: from, Proof: proof})
	return err
}

// discarded returns the addresses in the discarded resources, by name.
func (dc *datacenter) discarded() map[string]string {
	dc.fed.t.Helper()
	out := map[string]string{}
	for _, file := range dc.manager.DiscardFiles() {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			dc.fed.t.Errorf("Stat(%s) = %v, %v, want the mode 0600", file, info, err)
		}
		documents, err := resourcefile.Read(file, nil)
		if err != nil {
			dc.fed.t.Fatal(err)
		}
		for _, d := range documents {
			r, err := d.Resource(func(string) (api.ResourceTypeName, error) { return api.ResourceTypeName{}, nil })
			var data struct{ Address string }
			if err = errors.Join(err, json.Unmarshal(r.Data, &data)); err != nil {
				dc.fed.t.Fatal(err)
			}
			out[r.ID.Name] = data.Address
		}
	}
	return out
}

// waitPrimary waits until all federated resources belong to the given primary.
func (dc *datacenter) waitPrimary(primary string) {
	dc.fed.t.Helper()
	dc.waitUntil("complete replicas of "+primary, func() bool {
		st := dc.manager.stored()
		return st.GetDatacenter() == primary && st.GetComplete()
	})
}
