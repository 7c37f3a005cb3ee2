// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/testutil"
)

// zone is a DNS that a test changes.
type zone struct {
	mu      sync.Mutex
	addrs   map[string][]string // a name without an entry cannot be resolved
	lookups map[string]int
}

func (z *zone) set(name string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs[name] = addrs
}

func (z *zone) lookup(_ context.Context, _, host string) (out []netip.Addr, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.lookups[host]++
	for _, a := range z.addrs[host] {
		out = append(out, netip.MustParseAddr(a))
	}
	if len(out) == 0 {
		err = errors.New("no such host")
	}
	return out, err
}

func newZone() *zone { return &zone{addrs: map[string][]string{}, lookups: map[string]int{}} }

// endpointsOf returns the addresses of a cluster in the order of their priorities,
// each with its priority.
func endpointsOf(t *testing.T, r *resources, name string) (out []string) {
	t.Helper()
	var load endpointv3.ClusterLoadAssignment
	if err := r.sets[endpointType].byName[name].body().UnmarshalTo(&load); err != nil {
		t.Fatal(err)
	}
	for _, l := range load.Endpoints {
		for _, e := range l.LbEndpoints {
			a := e.GetEndpoint().GetAddress().GetSocketAddress()
			out = append(out, strings.Repeat("+", int(l.Priority))+a.GetAddress())
		}
	}
	for _, res := range r.sets[clusterType].list {
		var c clusterv3.Cluster
		if err := res.body().UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		if c.GetType() != clusterv3.Cluster_EDS {
			t.Errorf("cluster %s has the type %v, want EDS: Envoy must not resolve names", res.name, c.GetType())
		}
	}
	return out
}

// A name of another datacenter becomes the addresses that it may resolve to. They
// follow the DNS, and stay while it does not respond.
func TestNames(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		z := newZone()
		n := newNames(slog.New(slog.DiscardHandler))
		n.lookup = z.lookup
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- n.run(ctx) }()
		defer func() { cancel(); <-ended }()
		b, last := &builder{names: n}, (*resources)(nil)
		d := datacenter("dc2", "gw.example:8443", "198.51.100.3:8443")
		d.Refuse = map[string]netaddr.Class{"gw.example:8443": netaddr.Loopback | netaddr.LinkLocal}
		own := datacenter("dc3", "gw.example:8443") // such as this datacenter itself uses
		want := func(when string, dc2, dc3 []string) {
			t.Helper()
			synctest.Wait()
			last = b.build(snapshot(one, d, own), Bind{}, last)
			for name, want := range map[string][]string{d.Name: dc2, own.Name: dc3} {
				if got := endpointsOf(t, last, name); !slices.Equal(got, want) {
					t.Errorf("%s: endpoints of %s = %v, want %v", when, name, got, want)
				}
			}
		}
		want("before the first lookup", []string{"+198.51.100.3"}, nil)
		want("without an answer", []string{"+198.51.100.3"}, nil)
		z.set("gw.example", "127.0.0.1", "198.51.100.9", "2001:db8::9", "169.254.169.254", "198.51.100.8")
		changed := n.changed.Wait()
		time.Sleep(lookupInterval)
		<-changed
		public := []string{"198.51.100.8", "198.51.100.9"}
		all := append([]string{"127.0.0.1", "169.254.169.254"}, public...)
		want("resolved", append(public, "+198.51.100.3"), all)
		set := last.sets[endpointType]
		time.Sleep(2 * lookupInterval)
		want("unchanged", append(public, "+198.51.100.3"), all)
		if last.sets[endpointType] != set {
			t.Error("resources changed without a change of the addresses")
		}
		z.set("gw.example")
		time.Sleep(2 * lookupInterval)
		want("DNS failed", append(public, "+198.51.100.3"), all)
		z.set("gw.example", "2001:db8::9")
		time.Sleep(lookupInterval)
		want("only IPv6", []string{"2001:db8::9", "+198.51.100.3"}, []string{"2001:db8::9"})
		z.set("gw.example", "::ffff:127.0.0.1")
		time.Sleep(lookupInterval)
		want("loopback in IPv6", []string{"+198.51.100.3"}, []string{"127.0.0.1"})

		d, own = datacenter("dc2", "198.51.100.3:8443"), datacenter("dc3", "198.51.100.4:8443")
		want("no name", []string{"198.51.100.3"}, []string{"198.51.100.4"})
		before := z.lookups["gw.example"]
		time.Sleep(3 * lookupInterval)
		if got := z.lookups["gw.example"]; got > before+1 {
			t.Errorf("%d lookups of a name that is not used, want none", got-before)
		}
	})
}

// Another datacenter cannot make a server resolve many names, or send many addresses.
func TestNames_Limit(t *testing.T) {
	d := datacenter("dc2")
	for i := range 10 * maxHostNames {
		d.Gateways = append(d.Gateways, strings.Repeat("a", i%60+1)+strings.Repeat("b", i/60+1)+".example:1")
	}
	if got := len(hostNames(snapshot(one, d, datacenter("dc3", "c.example:1")))); got != maxHostNames+1 {
		t.Errorf("%d names in use, want %d", got, maxHostNames+1)
	}
	n := newNames(slog.New(slog.DiscardHandler))
	n.use(map[string]bool{"c.example": true})
	var ips []netip.Addr
	for i := range 10 * maxHostAddrs {
		ips = append(ips, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	n.store("c.example", ips)
	if got, _ := n.addresses("c.example", 0); len(got) != maxHostAddrs {
		t.Errorf("%d addresses of a name, want %d", len(got), maxHostAddrs)
	}
}

// A proxy receives the addresses of a name when they are known.
func TestServer_ResolvesNames(t *testing.T) {
	z := newZone()
	z.set("gw.example", "198.51.100.8")
	r := newRig(t)
	r.builder.names.lookup = z.lookup
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	r.publish(snapshot(one, datacenter("dc2", "gw.example:8443")))
	got := make(chan string)
	go func() {
		defer close(got)
		stream, err := r.client.StreamAggregatedResources(ctx)
		if err != nil {
			return
		}
		send := &discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: []string{"server.dc2.wanfed"}}
		for stream.Send(send) == nil {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			for _, res := range resp.Resources {
				got <- string(res.Value)
			}
			send.VersionInfo, send.ResponseNonce = resp.VersionInfo, resp.Nonce
		}
	}()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case text, ok := <-got:
			if !ok {
				t.Fatal("the stream ended before the endpoints had the address of the name")
			}
			if strings.Contains(text, "198.51.100.8") {
				return
			}
		case <-deadline:
			t.Fatal("no endpoint with the address of the name after 20 s")
		}
	}
}

// A proxy keeps the endpoints that it has while a name was not resolved yet, for
// example after a restart of the server. It loses them if the addresses of the name
// are all refused.
func TestDelta_UnresolvedName(t *testing.T) {
	named := func(refuse netaddr.Class) *proxycfg.Snapshot {
		d := datacenter("dc2", "gw.example:8443")
		d.Refuse = map[string]netaddr.Class{"gw.example:8443": refuse}
		return snapshot(one, d)
	}
	for name, initial := range map[string]map[string]string{"connected": nil, "reconnected": {dc2: "earlier"}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.delta()
			if initial == nil {
				r.publish(snapshot(one, datacenter("dc2", "198.51.100.2:8443")))
			} else {
				r.publish(named(0))
			}
			c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2},
				InitialResourceVersions: initial})
			if initial == nil {
				c.answer(c.want(endpointType, dc2), "")
				r.publish(named(0))
			}
			c.wantNothing()
			endpoints := func(addr string) {
				t.Helper()
				r.builder.names.store("gw.example", []netip.Addr{netip.MustParseAddr(addr)})
				resp := c.want(endpointType, dc2)
				if body := resp.Resources[0].Resource.String(); !strings.Contains(body, addr) {
					t.Errorf("endpoints = %s, want %s", body, addr)
				}
				c.answer(resp, "")
			}
			endpoints("198.51.100.8")
			endpoints("127.0.0.1")
			r.publish(named(netaddr.Loopback))
			resp := c.want(endpointType, dc2)
			if body := resp.Resources[0].Resource.String(); strings.Contains(body, "127.0.0.1") {
				t.Errorf("endpoints = %s, want none", body)
			}
			c.answer(resp, "")
			c.wantNothing()
		})
	}
	r := newRig(t)
	r.publish(named(0))
	c := r.delta()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesSubscribe: []string{dc2}})
	c.answer(c.want(endpointType, dc2), "") // a new proxy does not wait for the name
}
