// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
)

// rig is a Server behind gRPC, with snapshots that the test publishes.
type rig struct {
	*Server
	t      *testing.T
	client discoveryv3.AggregatedDiscoveryServiceClient

	changed broadcast.Broadcast
	mu      sync.Mutex
	snap    *proxycfg.Snapshot
	refuse  error
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.Server = NewServer(Config{
		Snapshot: func(string) (*proxycfg.Snapshot, <-chan struct{}) {
			changed := r.changed.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.snap, changed
		},
		Gateway: func(context.Context) (string, error) { return "gw1", r.refuse },
		Logger:  slog.New(slog.DiscardHandler),
	})
	ln := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, r.Server)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-served })
	cc, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	r.client = discoveryv3.NewAggregatedDiscoveryServiceClient(cc)
	return r
}

func (r *rig) publish(s *proxycfg.Snapshot) {
	r.mu.Lock()
	r.snap = s
	r.mu.Unlock()
	r.changed.Notify()
}

// proxyType returns the recorded state of a type of the only proxy.
func (r *rig) proxyType(url string) (out Type) {
	for _, p := range r.Proxies() {
		for _, typ := range p.Types {
			if typ.TypeURL == url {
				return typ
			}
		}
	}
	return out
}

// deltaClient is an Envoy that uses the incremental variant.
type deltaClient struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	got    chan *discoveryv3.DeltaDiscoveryResponse // size 1: the test reads
	stop   func()
}

func (r *rig) delta() *deltaClient {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := r.client.DeltaAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &deltaClient{t: r.t, stream: stream, got: make(chan *discoveryv3.DeltaDiscoveryResponse, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case c.got <- resp:
			case <-ctx.Done():
				return
			}
		}
	})
	c.stop = func() { cancel(); wg.Wait() }
	r.t.Cleanup(c.stop)
	return c
}

func (c *deltaClient) send(req *discoveryv3.DeltaDiscoveryRequest) {
	c.t.Helper()
	if err := c.stream.Send(req); err != nil {
		c.t.Fatalf("Send() = %v, want nil", err)
	}
}

// want reads a response and checks its type and the names of its resources,
// with "-" before removed names. It returns the response without an answer.
func (c *deltaClient) want(url string, names ...string) *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	select {
	case resp := <-c.got:
		var got []string
		for _, res := range resp.Resources {
			got = append(got, res.Name)
		}
		for _, name := range resp.RemovedResources {
			got = append(got, "-"+name)
		}
		if resp.TypeUrl != url || !slices.Equal(got, names) {
			c.t.Fatalf("response = %s %v, want %s %v", resp.TypeUrl, got, url, names)
		}
		return resp
	case <-time.After(10 * time.Second):
		c.t.Fatalf("no response after 10 s, want %s %v", url, names)
	}
	return nil
}

func (c *deltaClient) wantNothing() {
	c.t.Helper()
	select {
	case resp := <-c.got:
		c.t.Fatalf("response = %v, want none", resp)
	case <-time.After(50 * time.Millisecond):
	}
}

// answer accepts a response, or rejects it if fault is not "".
func (c *deltaClient) answer(resp *discoveryv3.DeltaDiscoveryResponse, fault string) {
	c.t.Helper()
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce}
	if fault != "" {
		req.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: fault}
	}
	c.send(req)
}

const dc1, dc2, dc3, srv1 = "server.dc1.wanfed", "server.dc2.wanfed", "server.dc3.wanfed", "srv1.server.dc1.wanfed"

func TestDelta_SendsChangesOnly(t *testing.T) {
	r := newRig(t)
	c := r.delta()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: &corev3.Node{Id: "any"}})
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2, dc3}})
	c.wantNothing() // no snapshot yet
	old := datacenter("dc2", "198.51.100.2:8443")
	r.publish(snapshot(one, old))
	c.answer(c.want(clusterType, dc1, dc2, srv1), "")
	c.answer(c.want(endpointType, dc2, "-"+dc3), "")
	c.answer(c.want(listenerType, "lan", "wan"), "")
	c.wantNothing()

	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:8443")))
	c.wantNothing() // nothing has changed
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.9:8443")))
	c.answer(c.want(endpointType, dc2), "")
	c.wantNothing() // also: the server has the answer

	r.publish(snapshot(one, datacenter("dc2", "198.51.100.9:8443"), datacenter("dc3", "198.51.100.3:8443")))
	c.answer(c.want(clusterType, dc3), "")
	c.answer(c.want(endpointType, dc3), "") // although it did not exist before
	c.answer(c.want(listenerType, "lan"), "")
	c.wantNothing()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: []string{dc3},
		ResourceNamesSubscribe: []string{dc2}})
	c.answer(c.want(endpointType, dc2), "") // a subscription is always answered
	c.wantNothing()

	r.publish(snapshot(one, datacenter("dc3", "gw.example:8443")))
	c.answer(c.want(clusterType, "-"+dc2), "") // a name changes no cluster
	c.answer(c.want(endpointType, "-"+dc2), "")
	c.answer(c.want(listenerType, "lan"), "")
	c.wantNothing()
	testutil.Eventually(t, 10*time.Second, func() bool {
		typ := r.proxyType(endpointType)
		return typ.Sent == 5 && typ.Accepted == 5 && typ.Resources == 6
	}, "5 responses with 6 endpoints sent and accepted")
}

// A response waits for the answer to the previous one. It then has the newest
// content.
func TestDelta_OneResponseInFlight(t *testing.T) {
	r := newRig(t)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1")))
	c := r.delta()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2}})
	first := c.want(endpointType, dc2)
	for port := 2; port < 50; port++ {
		r.publish(snapshot(one, datacenter("dc2", fmt.Sprintf("198.51.100.2:%d", port))))
	}
	c.wantNothing()
	c.answer(first, "")
	resp := c.want(endpointType, dc2)
	if body := resp.Resources[0].Resource.String(); !strings.Contains(body, "port_value:49") {
		t.Errorf("endpoints = %s, want port 49", body)
	}
	c.answer(resp, "")
	c.wantNothing()
}

func TestDelta_RecordsRejection(t *testing.T) {
	r := newRig(t)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1")))
	c := r.delta()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	c.answer(c.want(listenerType, "lan", "wan"), "cannot bind")
	c.wantNothing() // the same content would be rejected again
	if typ := r.proxyType(listenerType); typ.Rejected != "cannot bind" || typ.RejectedAt.IsZero() || typ.Accepted != 0 {
		t.Errorf("Proxies() has %+v, want the rejection: cannot bind", typ)
	}
	r.publish(snapshot(one, datacenter("dc3", "198.51.100.3:1")))
	c.answer(c.want(listenerType, "lan", "wan"), "") // wan has not changed, but was not accepted
	testutil.Eventually(t, 10*time.Second, func() bool {
		typ := r.proxyType(listenerType)
		return typ.Rejected == "" && typ.Accepted == 1
	}, "the corrected configuration is accepted")
	if d := r.Disconnected(); len(d) != 0 {
		t.Errorf("Disconnected() with a stream = %v, want none", d)
	}
	c.stop()
	testutil.Eventually(t, 10*time.Second, func() bool { return len(r.Proxies()) == 0 }, "no proxy is connected")
	if d := r.Disconnected(); len(d) != 1 || time.Since(d["gw1"]) > time.Minute {
		t.Errorf("Disconnected() = %v, want the time of gw1", d)
	}
}

// A proxy may have applied any part of a response that it rejected. So the next
// change also sends the rest of that response, and a reconnection sends what the
// proxy does not have. The same content is not sent again before.
func TestDelta_SendsRejectedResourcesWithTheNextChange(t *testing.T) {
	r := newRig(t)
	at := func(dc string, port int) *proxycfg.Datacenter {
		return datacenter(dc, fmt.Sprintf("198.51.100.2:%d", port))
	}
	r.publish(snapshot(one, at("dc2", 1), at("dc3", 1), at("dc4", 1)))
	c := r.delta()
	subscribe := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: []string{everything}}
	const dc4, dc5 = "server.dc4.wanfed", "server.dc5.wanfed"
	c.send(subscribe)
	c.answer(c.want(clusterType, dc1, dc2, dc3, dc4, srv1), "")
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2, dc3, dc4}})
	accepted := map[string]string{}
	resp := c.want(endpointType, dc2, dc3, dc4)
	for _, res := range resp.Resources {
		accepted[res.Name] = res.Version
	}
	c.answer(resp, "")

	r.publish(snapshot(one, at("dc2", 2), at("dc3", 2), at("dc5", 1)))
	c.answer(c.want(clusterType, dc5, "-"+dc4), "no memory")
	c.answer(c.want(endpointType, dc2, dc3, "-"+dc4), "invalid address")
	c.wantNothing() // not in a loop
	r.publish(snapshot(one, at("dc2", 3), at("dc3", 1), at("dc5", 1)))
	c.answer(c.want(endpointType, dc2, dc3, "-"+dc4), "invalid address") // dc3 as it was before
	r.publish(snapshot(one, at("dc2", 4), at("dc3", 1), at("dc5", 1)))
	c.answer(c.want(endpointType, dc2, dc3, "-"+dc4), "")
	r.publish(snapshot(one, at("dc2", 5), at("dc3", 1), at("dc5", 1)))
	c.answer(c.want(endpointType, dc2), "") // the rest was accepted
	r.publish(snapshot(one, at("dc2", 5), at("dc3", 1)))
	c.answer(c.want(clusterType, "-"+dc4, "-"+dc5), "")
	c.wantNothing()
	c.stop()

	c = r.delta() // as if everything after the first response was rejected
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2, dc3, dc4},
		InitialResourceVersions: accepted})
	c.answer(c.want(endpointType, dc2, "-"+dc4), "invalid address")
	c.wantNothing()
}

func TestDelta_ResumesAfterReconnection(t *testing.T) {
	r := newRig(t)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1"), datacenter("dc3", "198.51.100.3:1")))
	c := r.delta()
	names := []string{dc2, dc3}
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names})
	versions := map[string]string{}
	for _, res := range c.want(endpointType, names...).Resources {
		versions[res.Name] = res.Version
	}
	c.stop()
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1"), datacenter("dc3", "198.51.100.3:2")))
	c = r.delta()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: names,
		InitialResourceVersions: versions})
	c.answer(c.want(endpointType, dc3), "")
	c.wantNothing()
}

func TestStateOfTheWorld(t *testing.T) {
	r := newRig(t)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1"), datacenter("dc3", "198.51.100.3:1")))
	connect := func() (discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		stream, err := r.client.StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stream, cancel
	}
	stream, cancel := connect()
	want := func(url string, count int) *discoveryv3.DiscoveryResponse {
		t.Helper()
		resp, err := stream.Recv()
		if err != nil || resp.TypeUrl != url || len(resp.Resources) != count {
			t.Fatalf("Recv() = %s with %d resources, %v; want %s with %d", resp.GetTypeUrl(), len(resp.GetResources()),
				err, url, count)
		}
		return resp
	}
	send := func(url, version, nonce string, names ...string) {
		t.Helper()
		err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: url, VersionInfo: version, ResponseNonce: nonce,
			ResourceNames: names})
		if err != nil {
			t.Fatal(err)
		}
	}
	send(clusterType, "", "")
	clusters := want(clusterType, 4)
	send(clusterType, clusters.VersionInfo, clusters.Nonce)
	send(endpointType, "", "", dc2)
	resp := want(endpointType, 1)
	send(endpointType, resp.VersionInfo, resp.Nonce, dc2, dc3) // accepts, and subscribes more
	second := want(endpointType, 2)
	send(endpointType, resp.VersionInfo, resp.Nonce, dc2) // stale: ignored
	send(endpointType, second.VersionInfo, second.Nonce, dc2, dc3)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1"), datacenter("dc3", "198.51.100.3:2")))
	third := want(endpointType, 2)
	cancel()

	stream, cancel = connect() // with the versions that it has
	defer cancel()
	send(clusterType, clusters.VersionInfo, "")
	send(endpointType, third.VersionInfo, "", dc2, dc3)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1"), datacenter("dc3", "198.51.100.3:3")))
	want(endpointType, 2) // and no clusters before
}

func TestStream_RefusesOthers(t *testing.T) {
	r := newRig(t)
	r.refuse = status.Error(codes.PermissionDenied, "not a gateway")
	stream, err := r.client.DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Recv() = %v, want PermissionDenied", err)
	}
}

// TestIncremental_RandomRequests compares what a client has after random changes
// and subscriptions with what it wants. The client rejects some responses, of
// which it applies any part. Then it has what it wants after the next response
// that it accepts.
func TestIncremental_RandomRequests(t *testing.T) {
	compared := 0
	for range 50 {
		b := newBuilder()
		var last *resources
		sub := &subscription{first: true}
		all, names, has, rejected := false, map[string]bool{}, map[string]string{}, false
		random := func() (out []string) {
			for range rand.N(3) {
				out = append(out, []string{everything, dc1, dc2, dc3, "server.dc4.wanfed", srv1}[rand.N(6)])
			}
			return out
		}
		for range 30 {
			snap := randomSnapshot()
			resolveNames(b, snap)
			last = b.build(snap, Bind{}, last)
			set := last.sets[clusterType]
			add, remove := random(), random()
			remove = slices.DeleteFunc(remove, func(name string) bool { return slices.Contains(add, name) })
			req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: add,
				ResourceNamesUnsubscribe: remove}
			all = (all || sub.first && len(add) == 0 || slices.Contains(add, everything)) && !slices.Contains(remove, everything)
			if sub.first && rand.N(2) == 0 { // as after a reconnection
				has = map[string]string{dc1: set.byName[dc1].version, dc2: "outdated", "absent": "1"}
			}
			for _, name := range add {
				names[name] = name != everything
			}
			for _, name := range remove {
				delete(names, name)
			}
			maps.DeleteFunc(has, func(name, _ string) bool { return !all && !names[name] })
			if sub.first {
				req.InitialResourceVersions = maps.Clone(has)
			}
			if err := (incremental{}).subscribe(sub, req); err != nil {
				t.Fatal(err)
			}
			sub.first = false
			if rand.N(3) == 0 {
				continue // no response, as while another one is in flight
			}
			resp, _, _ := incremental{}.response(sub, set, clusterType)
			if resp != nil {
				rejected = rand.N(4) == 0
				for _, r := range resp.Resources {
					if !rejected || rand.N(2) == 0 {
						has[r.Name] = r.Version
					}
				}
				for _, name := range resp.RemovedResources {
					if !rejected || rand.N(2) == 0 {
						delete(has, name)
					}
				}
				sub.answered(rejected)
			}
			if rejected {
				continue
			}
			compared++
			want := map[string]string{}
			for _, r := range set.list {
				if all || names[r.name] {
					want[r.name] = r.version
				}
			}
			if d := cmp.Diff(want, has); d != "" {
				t.Fatalf("resources of the client (-want +got):\n%s", d)
			}
			for _, name := range add { // always answered, also without a resource
				if name == everything {
					continue
				}
				answered := resp != nil && (slices.Contains(resp.RemovedResources, name) || slices.ContainsFunc(resp.Resources,
					func(r *discoveryv3.Resource) bool { return r.Name == name }))
				if !answered && len(req.InitialResourceVersions) == 0 {
					t.Fatalf("response to %v = %v, want one with %s", req, resp, name)
				}
			}
		}
	}
	if compared < 100 {
		t.Errorf("%d comparisons, want at least 100", compared)
	}
}

// A proxy that unsubscribes a name while it wants everything does not know
// whether it still has the resource. The next response has it.
func TestDelta_UnsubscribeWithinEverything(t *testing.T) {
	r := newRig(t)
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:1")))
	c := r.delta()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType,
		ResourceNamesSubscribe: []string{everything, dc2, dc3}})
	c.answer(c.want(endpointType, dc1, dc2, srv1, "-"+dc3), "")
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: []string{dc2, dc3}})
	c.answer(c.want(endpointType, dc2, "-"+dc3), "")
	c.wantNothing()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: []string{everything},
		ResourceNamesSubscribe: []string{dc3}})
	c.answer(c.want(endpointType, "-"+dc3), "")
	r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:2")))
	c.wantNothing()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{everything}})
	c.answer(c.want(endpointType, dc1, dc2, srv1, "-"+dc3), "")
}

// Requests with any content neither fail the server nor leave it without the
// resources for the next request.
func FuzzRequests(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2, "absent", "*"},
			ResourceNamesUnsubscribe: []string{dc2, "*"}, InitialResourceVersions: map[string]string{dc2: "", "x": "1"}},
		&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: []string{dc1, "*"}, VersionInfo: "1"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	all := newBuilder().build(snapshot(one, datacenter("dc2", "198.51.100.2:8443")), Bind{}, nil).sets[clusterType]
	f.Fuzz(func(t *testing.T, first, second []byte) {
		delta, sotw := &subscription{first: true}, &subscription{first: true}
		for _, b := range [][]byte{first, second, nil} {
			d, w := &discoveryv3.DeltaDiscoveryRequest{}, &discoveryv3.DiscoveryRequest{}
			if b == nil { // the last request subscribes everything
				d.ResourceNamesSubscribe = []string{everything, dc1, dc2, srv1}
				w.ResourceNames = []string{everything}
			}
			if b == nil || proto.Unmarshal(b, d) == nil {
				if err := (incremental{}).subscribe(delta, d); err != nil {
					return
				}
				delta.first = false
				resp, _, ok := incremental{}.response(delta, all, clusterType)
				if b == nil && (!ok || len(resp.Resources) != len(all.list)) {
					t.Errorf("response to a subscription of everything = %v, want %d resources", resp, len(all.list))
				}
			}
			if b == nil || proto.Unmarshal(b, w) == nil {
				if err := (stateOfTheWorld{}).subscribe(sotw, w); err != nil {
					return
				}
				sotw.first = false
				stateOfTheWorld{}.response(sotw, all, clusterType)
				if b == nil && !sotw.all {
					t.Error("subscription of everything has all = false, want true")
				}
			}
		}
	})
}
