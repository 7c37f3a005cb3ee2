// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway/xds"
)

// deltaClient is a client of the incremental variant. It is written for these
// tests from the specification of the protocol ("xDS REST and gRPC protocol",
// section "Incremental xDS"), on the generated messages. It shares no code with
// package gateway/xds. The clients of go-control-plane v0.14.0 and gRPC v1.85.0
// speak only the state-of-the-world variant. Envoy speaks this one: see
// TestEnvoy_ResumesAfterRestart in gateway/xds.
//
// A response is applied as a whole or rejected as a whole. The client subscribes
// the endpoints of its clusters by name.
type deltaClient struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	stop   func()
	// has are the accepted resources by name, by type URL. They outlive a stream.
	has map[string]map[string]held
	// Of the current stream, by type URL.
	subscribed map[string]bool
	received   map[string]int // number of resources and removals
	// reject returns why the client rejects a resource, or "".
	reject func(name string, m proto.Message) string
}

// held is an accepted resource.
type held struct {
	version string
	m       proto.Message
}

func newDeltaClient(t *testing.T) *deltaClient {
	c := &deltaClient{t: t, has: map[string]map[string]held{}, stop: func() {}}
	for _, url := range []string{resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType} {
		c.has[url] = map[string]held{}
	}
	t.Cleanup(func() { c.stop() })
	return c
}

// connect opens a stream in place of the current one, and subscribes with the
// versions of all accepted resources.
func (c *deltaClient) connect(address string) {
	c.t.Helper()
	c.stop()
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	c.stop = func() { cancel(); cc.Close() }
	c.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		c.t.Fatal(err)
	}
	c.subscribed, c.received = map[string]bool{}, map[string]int{}
	c.request(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourcev3.ClusterType})
	if clusters := c.has[resourcev3.ClusterType]; len(clusters) > 0 {
		c.request(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourcev3.EndpointType,
			ResourceNamesSubscribe: slices.Sorted(maps.Keys(clusters))})
	}
	c.request(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourcev3.ListenerType})
}

// request sends a request. The first one of a type has the versions.
func (c *deltaClient) request(req *discoveryv3.DeltaDiscoveryRequest) {
	c.t.Helper()
	if len(c.subscribed) == 0 {
		req.Node = &corev3.Node{Id: gatewayName(0)}
	}
	if !c.subscribed[req.TypeUrl] {
		c.subscribed[req.TypeUrl] = true
		req.InitialResourceVersions = map[string]string{}
		for name, h := range c.has[req.TypeUrl] {
			req.InitialResourceVersions[name] = h.version
		}
	}
	if err := c.stream.Send(req); err != nil {
		c.t.Fatalf("Send() = %v, want nil", err)
	}
}

// until receives and answers responses until done returns true.
func (c *deltaClient) until(what string, done func() bool) {
	c.t.Helper()
	for !done() {
		resp, err := c.stream.Recv()
		if err != nil {
			c.t.Fatalf("Recv() = %v, want %s; received %v", err, what, c.received)
		}
		c.answer(resp)
	}
}

func (c *deltaClient) answer(resp *discoveryv3.DeltaDiscoveryResponse) {
	c.t.Helper()
	url, next := resp.TypeUrl, map[string]held{}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: resp.Nonce}
	for _, r := range resp.Resources {
		m, err := r.Resource.UnmarshalNew()
		if err != nil || r.Resource.TypeUrl != url || r.Version == "" {
			c.t.Fatalf("resource %s = %s, version %q, %v; want %s with a version", r.Name, r.Resource.TypeUrl, r.Version, err, url)
		}
		if v, ok := m.(interface{ ValidateAll() error }); !ok || v.ValidateAll() != nil {
			c.t.Errorf("resource %v is not valid, want nil from ValidateAll()", m)
		}
		if _, twice := next[r.Name]; twice || slices.Contains(resp.RemovedResources, r.Name) {
			c.t.Errorf("response has %s twice, want once: %v", r.Name, resp)
		}
		next[r.Name] = held{r.Version, m}
		if c.reject != nil && req.ErrorDetail == nil {
			if fault := c.reject(r.Name, m); fault != "" {
				req.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: fault}
			}
		}
	}
	c.received[url] += len(resp.Resources) + len(resp.RemovedResources)
	if req.ErrorDetail != nil {
		c.request(req)
		return
	}
	before := slices.Sorted(maps.Keys(c.has[url]))
	maps.Copy(c.has[url], next)
	for _, name := range resp.RemovedResources {
		delete(c.has[url], name)
	}
	c.request(req)
	if url != resourcev3.ClusterType {
		return
	}
	now := slices.Sorted(maps.Keys(c.has[url]))
	without := func(all, other []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(other, name) })
	}
	add, remove := without(now, before), without(before, now)
	if !c.subscribed[resourcev3.EndpointType] {
		add = now
	}
	for _, name := range remove {
		delete(c.has[resourcev3.EndpointType], name)
	}
	if len(add)+len(remove) > 0 {
		c.request(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resourcev3.EndpointType, ResourceNamesSubscribe: add,
			ResourceNamesUnsubscribe: remove})
	}
}

// fault returns how the accepted resources differ from those of a message, or "".
func (c *deltaClient) fault(m *pb.GatewaySnapshot) string {
	want := map[string]string{"server.dc.wanfed": "", "srv0.server.dc.wanfed": "", "srv1.server.dc.wanfed": "",
		"srv2.server.dc.wanfed": ""}
	for i, s := range m.Servers {
		want["server.dc.wanfed"] += " " + s.Address
		want[fmt.Sprintf("srv%d.server.dc.wanfed", i)] = " " + s.Address
	}
	for _, d := range m.Datacenters {
		want["server."+d.Name+".wanfed"] = " " + strings.Join(d.Gateways, " ")
	}
	got := map[string]string{}
	for name, h := range c.has[resourcev3.EndpointType] {
		for _, e := range h.m.(*endpointv3.ClusterLoadAssignment).Endpoints {
			for _, lb := range e.LbEndpoints {
				a := lb.GetEndpoint().Address.GetSocketAddress()
				got[name] += " " + net.JoinHostPort(a.Address, strconv.Itoa(int(a.GetPortValue())))
			}
		}
	}
	clusters := slices.Sorted(maps.Keys(c.has[resourcev3.ClusterType]))
	switch {
	case !maps.Equal(want, got):
		return fmt.Sprintf("endpoints = %v, want %v", got, want)
	case !slices.Equal(clusters, slices.Sorted(maps.Keys(want))):
		return fmt.Sprintf("clusters = %v, want those of %v", clusters, want)
	case len(c.has[resourcev3.ListenerType]) != 2:
		return fmt.Sprintf("listeners = %v, want 2", c.has[resourcev3.ListenerType])
	}
	var chains []string
	for _, chain := range c.has[resourcev3.ListenerType]["lan"].m.(*listenerv3.Listener).FilterChains {
		chains = append(chains, chain.Name)
	}
	if slices.Sort(chains); !slices.Equal(chains, clusters) {
		return fmt.Sprintf("filter chains = %v, want %v", chains, clusters)
	}
	return ""
}

// equals waits until the accepted resources are those of a message.
func (c *deltaClient) equals(m *pb.GatewaySnapshot) {
	c.t.Helper()
	var fault string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("last difference: %s", fault)
		}
	}()
	c.until("the resources of the message", func() bool { fault = c.fault(m); return fault == "" })
}

// wantReceived checks the number of resources that the current stream has
// received of each type.
func (c *deltaClient) wantReceived(clusters, endpoints, listeners int) {
	c.t.Helper()
	got := []int{c.received[resourcev3.ClusterType], c.received[resourcev3.EndpointType], c.received[resourcev3.ListenerType]}
	if want := []int{clusters, endpoints, listeners}; !slices.Equal(got, want) {
		c.t.Errorf("received %v clusters, endpoints and listeners, want %v", got, want)
	}
}

// rejectPort makes the client reject endpoints with a port.
func (c *deltaClient) rejectPort(port uint32) {
	c.reject = func(_ string, m proto.Message) string {
		if e, ok := m.(*endpointv3.ClusterLoadAssignment); ok && strings.Contains(e.String(), fmt.Sprintf("port_value:%d", port)) {
			return "refused by the test"
		}
		return ""
	}
}

// endpointsReceived waits until the current stream has received n endpoints.
func (c *deltaClient) endpointsReceived(n int) {
	c.t.Helper()
	c.until(fmt.Sprintf("%d endpoints", n), func() bool { return c.received[resourcev3.EndpointType] >= n })
}

func TestDeltaClient(t *testing.T) {
	r, c := newRig(t), newDeltaClient(t)
	with := func(datacenters int, port uint32) *pb.GatewaySnapshot {
		m := message(load{datacenters: datacenters}, port)
		r.publish(m)
		return m
	}
	c.connect(r.address)
	c.equals(message(load{datacenters: 2}, startPort))
	c.wantReceived(6, 6, 2)
	c.equals(with(2, 2))
	c.wantReceived(6, 7, 2)

	c.rejectPort(3)
	with(2, 3)
	c.endpointsReceived(8)
	r.wantType(t, resourcev3.EndpointType, "the rejection", func(typ xds.Type) bool { return typ.Rejected == "refused by the test" })
	with(3, 3) // another datacenter, with the rejected one again
	c.endpointsReceived(10)
	c.equals(with(3, 4))
	c.wantReceived(7, 12, 3)

	c.stop() // and again, to a new server, with nothing in between
	r.restart()
	c.connect(r.address)
	c.equals(with(3, 5))
	c.wantReceived(0, 1, 0)

	c.stop() // a datacenter is removed, another one added, a third one changed
	m := message(load{datacenters: 4}, 6)
	m.Datacenters = slices.Delete(m.Datacenters, 1, 2)
	r.publish(m)
	r.restart()
	c.connect(r.address)
	c.equals(m)
	c.wantReceived(2, 3, 1)

	m = proto.CloneOf(m)
	m.Datacenters[0].Gateways[0] = "198.51.100.1:3"
	r.publish(m)
	c.endpointsReceived(4)
	c.stop() // after a rejection
	r.restart()
	c.connect(r.address)
	c.endpointsReceived(1)
	m = proto.CloneOf(m)
	m.Datacenters[0].Gateways[0] = "198.51.100.1:7"
	r.publish(m)
	c.equals(m)
	c.wantReceived(0, 2, 0)
}

// TestDeltaClient_Random changes datacenters, rejects, disconnects and restarts
// the server in random order. The client always ends with the resources of the
// last message.
func TestDeltaClient_Random(t *testing.T) {
	r, c := newRig(t), newDeltaClient(t)
	c.connect(r.address)
	for port := range uint32(100) {
		m := message(load{datacenters: 8}, 1000+port)
		kept := m.Datacenters[:1]
		for _, d := range m.Datacenters[1:] {
			if rand.N(3) > 0 {
				kept = append(kept, d)
			}
		}
		m.Datacenters = kept
		if rand.N(3) == 0 {
			c.stop()
			if rand.N(2) == 0 {
				r.restart()
			}
			c.connect(r.address)
		}
		c.reject = nil
		if rand.N(3) == 0 {
			c.rejectPort(1000 + port)
			r.publish(m)
			c.endpointsReceived(c.received[resourcev3.EndpointType] + 1)
			continue
		}
		r.publish(m)
		c.equals(m)
	}
}
