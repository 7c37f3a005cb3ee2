// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/testutil"
)

var update = flag.Bool("update", false, "write the golden files")

func datacenter(name string, gateways ...string) *proxycfg.Datacenter {
	return &proxycfg.Datacenter{DC: name, Name: "server." + name + ".wanfed", Gateways: gateways}
}

func server(node, addr string) proxycfg.Server {
	return proxycfg.Server{Node: node, Name: node + ".server.dc1.wanfed", Address: addr}
}

func snapshot(servers []proxycfg.Server, datacenters ...*proxycfg.Datacenter) *proxycfg.Snapshot {
	return &proxycfg.Snapshot{
		Registration: proxycfg.Registration{Name: "gw1", LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443"},
		Datacenter:   "dc1", Domain: "wanfed", Servers: servers, Datacenters: datacenters,
	}
}

var (
	one   = []proxycfg.Server{server("srv1", "10.0.0.1:8300")}
	three = []proxycfg.Server{server("srv1", "10.0.0.1:8300"), server("srv2", "10.0.0.2:8300"),
		server("srv3", "[fd00::3]:8300")}
)

// scenarios have a golden file each.
var scenarios = map[string]struct {
	snap *proxycfg.Snapshot
	bind Bind
}{
	"alone":   {snap: snapshot(one)},
	"servers": {snap: snapshot(three, datacenter("dc2", "198.51.100.2:8443", "198.51.100.3:8443"))},
	"names": {snap: snapshot(one, datacenter("dc2", "gw.dc2.example:8443", "198.51.100.3:8443"),
		datacenter("dc3", "[2001:db8::3]:8443"))},
	"nat": {
		snap: func() *proxycfg.Snapshot {
			s := snapshot(one)
			s.LAN, s.WAN = "10.0.0.5:8444", "gw1.example:443"
			return s
		}(),
		bind: Bind{LAN: "127.0.0.1:8444"},
	},
}

// newBuilder returns a builder that has resolved the names of the scenarios.
func newBuilder() *builder {
	b := &builder{names: newNames(slog.New(slog.DiscardHandler))}
	b.names.known["gw.dc2.example"] = []netip.Addr{
		netip.MustParseAddr("198.51.100.4"), netip.MustParseAddr("198.51.100.5"),
	}
	return b
}

func TestResources_Golden(t *testing.T) {
	for name, test := range scenarios {
		t.Run(name, func(t *testing.T) {
			r := newBuilder().build(test.snap, test.bind, nil)
			got := dump(t, r)
			path := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(got)); d != "" {
				t.Errorf("resources (-want +got), accept with -update:\n%s", d)
			}
		})
	}
}

// dump returns resources as JSON, by kind.
func dump(t *testing.T, r *resources) []byte {
	t.Helper()
	all := map[string][]any{}
	for url, kind := range map[string]string{clusterType: "clusters", endpointType: "endpoints",
		listenerType: "listeners"} {
		for _, res := range r.sets[url].list {
			m, err := res.body().UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			if v, ok := m.(interface{ ValidateAll() error }); !ok || v.ValidateAll() != nil {
				t.Errorf("ValidateAll() of %s = %v, want nil", res.name, v.ValidateAll())
			}
			b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var v any
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatal(err)
			}
			all[kind] = append(all[kind], v)
		}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetIndent("", " ")
	if err := enc.Encode(all); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestResources_EnvoyAccepts runs envoy --mode validate with each golden file.
func TestResources_EnvoyAccepts(t *testing.T) {
	envoy := testutil.Envoy(t)
	for name := range scenarios {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var golden struct{ Clusters, Listeners []any }
			if err := json.Unmarshal(b, &golden); err != nil || len(golden.Clusters) == 0 || len(golden.Listeners) != 2 {
				t.Fatalf("golden file has %d clusters and %d listeners, error %v; want some, 2 and nil",
					len(golden.Clusters), len(golden.Listeners), err)
			}
			ads := map[string]any{"name": "ads", "type": "STATIC", "connect_timeout": "1s"}
			config, err := json.Marshal(map[string]any{
				"node":             map[string]any{"id": "gw1", "cluster": "dc1"},
				"static_resources": map[string]any{"clusters": append(golden.Clusters, ads), "listeners": golden.Listeners},
				"dynamic_resources": map[string]any{"ads_config": map[string]any{
					"api_type": "DELTA_GRPC", "transport_api_version": "V3",
					"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": "ads"}}},
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "envoy.json")
			if err := os.WriteFile(path, config, 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "-c", path).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "OK") {
				t.Errorf("envoy --mode validate = %v, want nil and OK; output:\n%s", err, out)
			}
		})
	}
}

// envoyRoutes has the filter chains of each listener by SNI or wildcard.
type envoyRoutes struct {
	*resources
	chains map[string]map[string]*listenerv3.FilterChain
}

func (r *resources) routes(t *testing.T) envoyRoutes {
	t.Helper()
	out := envoyRoutes{r, map[string]map[string]*listenerv3.FilterChain{}}
	for _, name := range []string{"lan", "wan"} {
		var l listenerv3.Listener
		r.decode(t, listenerType, name, &l)
		chains := map[string]*listenerv3.FilterChain{}
		for _, c := range l.FilterChains {
			for _, match := range c.FilterChainMatch.ServerNames {
				if chains[match] != nil {
					t.Fatalf("listener %s matches %s twice", name, match)
				}
				chains[match] = c
			}
		}
		out.chains[name] = chains
	}
	return out
}

// route returns the addresses to which Envoy forwards an SNI, those of one
// priority sorted. A wildcard stands for one or more labels, and the longest
// one wins.
func (r envoyRoutes) route(t *testing.T, listenerName, sni string) (addrs []string, ordered bool) {
	t.Helper()
	chains := r.chains[listenerName]
	chain := chains[sni]
	for rest := sni; chain == nil; {
		_, after, more := strings.Cut(rest, ".")
		if !more {
			return nil, false
		}
		rest = after
		chain = chains["*."+rest]
	}
	var proxy tcpproxyv3.TcpProxy
	if err := chain.Filters[0].GetTypedConfig().UnmarshalTo(&proxy); err != nil {
		t.Fatal(err)
	}
	var c clusterv3.Cluster
	r.decode(t, clusterType, proxy.GetCluster(), &c)
	load := &endpointv3.ClusterLoadAssignment{}
	r.decode(t, endpointType, c.Name, load)
	for i, level := range load.Endpoints {
		if level.Priority != uint32(i) {
			t.Errorf("priority %d of %s = %d, want ascending", i, c.Name, level.Priority)
		}
		for _, e := range level.LbEndpoints {
			a := e.GetEndpoint().Address.GetSocketAddress()
			host := a.Address
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			addrs = append(addrs, fmt.Sprintf("%s:%d", host, a.GetPortValue()))
		}
	}
	return addrs, len(load.Endpoints) > 1
}

// versions returns the versions of resources by name.
func versions(s *set) map[string]string {
	out := map[string]string{}
	for _, r := range s.list {
		out[r.name] = r.version
	}
	return out
}

func (r *resources) decode(t *testing.T, url, name string, m proto.Message) {
	t.Helper()
	res := r.sets[url].byName[name]
	if res == nil {
		t.Fatalf("%s %s does not exist", url, name)
	}
	if err := res.body().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
}

// randomSnapshot returns a snapshot with up to 4 servers and datacenters.
func randomSnapshot() *proxycfg.Snapshot {
	addr := func() string {
		return []string{"10.0.0.%d:8300", "gw%d.example:8443", "[fd00::%d]:1"}[rand.N(3)]
	}
	var servers []proxycfg.Server
	for i := range 1 + rand.N(4) {
		servers = append(servers, server(fmt.Sprintf("srv%d", i), fmt.Sprintf("10.0.0.%d:8300", rand.N(3))))
	}
	var dcs []*proxycfg.Datacenter
	for i := range rand.N(5) {
		var to []string
		for range 1 + rand.N(3) {
			if a := fmt.Sprintf(addr(), 1+rand.N(5)); !slices.Contains(to, a) {
				to = append(to, a)
			}
		}
		dcs = append(dcs, datacenter(fmt.Sprintf("dc%d", i+2), to...))
	}
	return snapshot(servers, dcs...)
}

// resolvedName is the address of gwN.example.
var resolvedName = strings.NewReplacer("gw", "198.51.100.", ".example", "")

// resolveNames resolves the names in snap.
func resolveNames(b *builder, snap *proxycfg.Snapshot) {
	hosts := hostNames(snap)
	b.names.use(hosts)
	for host := range hosts {
		ip := resolvedName.Replace(host)
		b.names.store(host, []netip.Addr{netip.MustParseAddr(ip)})
	}
}

// The native gateway and Envoy forward the same names to the same addresses.
// One builder builds all snapshots, so the test also covers reuse.
func TestResources_RouteAsNativeGateway(t *testing.T) {
	b := newBuilder()
	var last *resources
	routed := 0
	for range 200 {
		snap := randomSnapshot()
		if last != nil && rand.N(2) == 0 { // keep unchanged datacenters, as a source does
			for i := range snap.Datacenters {
				if i < len(last.shared.datacenters) && rand.N(2) == 0 {
					snap.Datacenters[i] = last.shared.datacenters[i]
				}
			}
		}
		resolveNames(b, snap)
		last = b.build(snap, Bind{}, last)
		// Another server, or this one after a restart, has the same versions.
		other := newBuilder()
		resolveNames(other, snap)
		fresh := other.build(snap, Bind{}, nil)
		if d := cmp.Diff(string(dump(t, fresh)), string(dump(t, last))); d != "" {
			t.Fatalf("reused resources differ from new ones (-new +reused):\n%s", d)
		}
		for _, url := range typeURLs {
			if d := cmp.Diff(versions(fresh.sets[url]), versions(last.sets[url])); d != "" {
				t.Fatalf("versions of reused resources differ from new ones (-new +reused):\n%s", d)
			}
		}
		lan, wan, err := proxycfg.Tables(snap, proxycfg.UpstreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		envoy := last.routes(t)
		names := []string{"server.dc1.wanfed", "x.server.dc1.wanfed", "server.dc9.wanfed", "wanfed", "a.b.server.dc2.wanfed"}
		for i := range 6 {
			names = append(names, fmt.Sprintf("srv%d.server.dc1.wanfed", i), fmt.Sprintf("server.dc%d.wanfed", i),
				fmt.Sprintf("srv1.server.dc%d.wanfed", i))
		}
		for _, name := range names {
			for listener, table := range map[string]interface {
				Lookup(string) (gateway.Route, bool)
			}{"lan": lan, "wan": wan} {
				native, _ := table.Lookup(name)
				native.To = slices.Clone(native.To)
				for i, addr := range native.To {
					native.To[i] = resolvedName.Replace(addr)
				}
				addrs, ordered := envoy.route(t, listener, name)
				if !slices.Equal(native.To, addrs) || ordered != (native.Ordered && len(native.To) > 1) {
					t.Fatalf("%s on listener %s: native gateway %v, Envoy %v (ordered %v)", name, listener, native, addrs,
						ordered)
				}
				if len(addrs) > 0 {
					routed++
				}
			}
		}
	}
	if routed < 1000 {
		t.Errorf("compared routes = %d, want at least 1000", routed)
	}
}
