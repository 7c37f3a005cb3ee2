// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	inspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// Type URLs of the resources.
const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// typeURLs has the types in the order in which they are sent: a listener refers
// to clusters, and a cluster to endpoints.
var typeURLs = []string{clusterType, endpointType, listenerType}

const (
	// connectTimeout is longer than a round trip between continents. A lost SYN
	// costs an attempt, which a connection repeats.
	connectTimeout = time.Second
	// connectAttempts is the number of addresses that one connection tries.
	connectAttempts = 4
	helloTimeout    = 10 * time.Second
	bufferLimit     = 256 << 10 // bytes per connection and direction
	// maxConnections is the limit of connections per cluster.
	maxConnections = 65536
	// maxPriority is the highest priority that Envoy accepts.
	maxPriority = 127
	// accessLogKey is the key of the runtime layer that selects the percentage
	// of connections with a line in the access log.
	accessLogKey = "wanfed.access_log"
)

// resource is a named resource with the version of its content. It is
// immutable.
type resource struct {
	name, version string
	encoded       *anypb.Any        // nil: encode returns it
	encode        func() *anypb.Any // of a resource that is too large to keep
	// unresolved is set for endpoints without an address, because names were not
	// resolved yet. A proxy keeps the endpoints that it has.
	unresolved bool
}

func (r *resource) body() *anypb.Any {
	if r.encoded != nil {
		return r.encoded
	}
	return r.encode()
}

// set contains all resources of a type, ordered by name. It is immutable.
type set struct {
	list   []*resource
	byName map[string]*resource
}

// newSet returns a set of list. It returns old, which may be nil, if old has the
// same resources.
func newSet(list []*resource, old *set) *set {
	slices.SortFunc(list, func(a, b *resource) int { return strings.Compare(a.name, b.name) })
	if old != nil && slices.Equal(old.list, list) {
		return old
	}
	s := &set{list, make(map[string]*resource, len(list))}
	for _, r := range list {
		s.byName[r.name] = r
	}
	return s
}

// newResource encodes a message. Equal messages have equal versions.
func newResource(name string, m proto.Message) *resource {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // only invalid UTF-8, and names and addresses are ASCII
		panic(fmt.Sprintf("encode %s: %v", name, err))
	}
	url := "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
	return &resource{name: name, version: versionOf(b), encoded: &anypb.Any{TypeUrl: url, Value: b}}
}

func versionOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Bind has the addresses on which a proxy listens, where they differ from its
// registration, for example behind NAT. Empty: the registered address. A
// registered host name stands for all local addresses.
type Bind struct{ LAN, WAN string }

// resources are all resources of a proxy, by type URL.
type resources struct {
	sets   map[string]*set
	shared *shared
	bind   Bind // the effective addresses
}

// shared are the parts that are equal for all proxies of a datacenter. They are
// immutable.
type shared struct {
	servers             []proxycfg.Server
	datacenters         []*proxycfg.Datacenter
	clusters, endpoints *set
	chains              *chains
}

// chains are the filter chains of both listeners, and the listeners without
// addresses.
type chains struct {
	lan, wan                 []*listenerv3.FilterChain
	lanListener, wanListener *resource
}

// destination has the resources that lead to one name.
type destination struct {
	cluster, endpoints *resource
	chain              *listenerv3.FilterChain
}

// builder builds resources. It shares the resources of equal parts among all
// proxies.
type builder struct {
	names *names

	mu       sync.Mutex
	last     *shared
	resolved uint64                               // names.changes before last
	local    []destination                        // of last, to the servers
	dcs      map[*proxycfg.Datacenter]destination // of last
}

// build returns the resources of a snapshot. It reuses the resources in last,
// which may be nil, if they have not changed.
func (b *builder) build(s *proxycfg.Snapshot, bind Bind, last *resources) *resources {
	r := &resources{shared: b.share(s), bind: Bind{listenAddress(bind.LAN, s.LAN), listenAddress(bind.WAN, s.WAN)}}
	var listeners *set
	if last != nil && last.shared.chains == r.shared.chains && last.bind == r.bind {
		listeners = last.sets[listenerType]
	} else {
		listeners = newSet([]*resource{
			listener(r.shared.chains.lanListener, r.bind.LAN), listener(r.shared.chains.wanListener, r.bind.WAN),
		}, nil)
	}
	r.sets = map[string]*set{
		clusterType: r.shared.clusters, endpointType: r.shared.endpoints, listenerType: listeners,
	}
	return r
}

func listenAddress(bind, registered string) string {
	if bind != "" {
		return bind
	}
	host, port, err := net.SplitHostPort(registered)
	if _, ipErr := netip.ParseAddr(host); err == nil && ipErr != nil {
		return net.JoinHostPort("0.0.0.0", port)
	}
	return registered
}

// share returns the shared parts of a snapshot.
func (b *builder) share(s *proxycfg.Snapshot) *shared {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, resolved := b.last, b.names.changes()
	renamed := resolved != b.resolved
	if old != nil && !renamed && slices.Equal(old.servers, s.Servers) && slices.Equal(old.datacenters, s.Datacenters) {
		return old
	}
	b.names.use(hostNames(s))
	if old == nil {
		old = &shared{chains: &chains{}}
	}
	chainOf := make(map[string]*listenerv3.FilterChain, len(old.chains.lan))
	for _, c := range old.chains.lan {
		chainOf[c.Name] = c
	}
	destinationOf := func(name string, to []upstream, ordered bool, matches ...string) destination {
		d := newDestination(name, to, ordered)
		if d.chain = chainOf[name]; d.chain == nil {
			d.chain = filterChain(name, matches)
		}
		return d
	}
	if renamed || !slices.Equal(old.servers, s.Servers) {
		b.local = []destination{destinationOf(s.LocalName(), b.upstreams(s.LocalAddresses(), nil), false, s.LocalName())}
		for _, server := range s.Servers {
			b.local = append(b.local, destinationOf(server.Name, b.upstreams([]string{server.Address}, nil), false, server.Name))
		}
	}
	var clusters, endpoints []*resource
	next := &chains{}
	add := func(d destination) {
		clusters, endpoints = append(clusters, d.cluster), append(endpoints, d.endpoints)
		next.lan = append(next.lan, d.chain)
	}
	for _, d := range b.local {
		add(d)
	}
	next.wan = slices.Clone(next.lan)
	dcs := make(map[*proxycfg.Datacenter]destination, len(s.Datacenters))
	for _, dc := range s.Datacenters {
		d, ok := b.dcs[dc]
		if !ok || renamed && slices.ContainsFunc(dc.Gateways, netaddr.IsName) {
			d = destinationOf(dc.Name, b.upstreams(dc.Gateways, dc.Refuse), true, dc.Name, "*."+dc.Name)
		}
		dcs[dc] = d
		add(d)
	}
	if slices.Equal(next.lan, old.chains.lan) && slices.Equal(next.wan, old.chains.wan) {
		next = old.chains
	} else {
		next.lanListener = newResource("lan", newListener("lan", next.lan))
		next.wanListener = newResource("wan", newListener("wan", next.wan))
	}
	b.dcs, b.resolved = dcs, resolved
	b.last = &shared{s.Servers, s.Datacenters, newSet(clusters, old.clusters), newSet(endpoints, old.endpoints), next}
	return b.last
}

// hostNames returns the host names in a snapshot, at most maxHostNames of each
// datacenter.
func hostNames(s *proxycfg.Snapshot) map[string]bool {
	out := map[string]bool{}
	add := func(addrs []string) {
		added := 0
		for _, addr := range addrs {
			if host, _, err := net.SplitHostPort(addr); err == nil && netaddr.IsName(addr) && added < maxHostNames {
				out[host] = true
				added++
			}
		}
	}
	add(s.LocalAddresses())
	for _, dc := range s.Datacenters {
		add(dc.Gateways)
	}
	return out
}

// upstream is an address of a snapshot, resolved.
type upstream struct {
	ips      []netip.Addr
	resolved bool
	port     string
}

// upstreams resolves addrs. refuse has the kinds of addresses to which each of
// them must not resolve.
func (b *builder) upstreams(addrs []string, refuse map[string]netaddr.Class) (out []upstream) {
	for _, addr := range addrs {
		host, port, _ := net.SplitHostPort(addr)
		ips, resolved := b.names.addresses(host, refuse[addr])
		out = append(out, upstream{ips, resolved, port})
	}
	return out
}

// newDestination returns a cluster and its endpoints. The first address of an
// ordered destination is preferred. Otherwise the address with the fewest
// connections is used, as among the addresses of one name.
func newDestination(name string, to []upstream, ordered bool) destination {
	load := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	waits, usable := false, false // for a name; an address
	for i, u := range to {
		waits, usable = waits || !u.resolved, usable || len(u.ips) > 0
		var endpoints []*endpointv3.LbEndpoint
		for _, ip := range u.ips {
			endpoints = append(endpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: address(ip.String(), u.port)},
			}})
		}
		last := len(load.Endpoints) - 1
		if i > 0 && (!ordered || i > maxPriority) {
			load.Endpoints[last].LbEndpoints = append(load.Endpoints[last].LbEndpoints, endpoints...)
			continue
		}
		load.Endpoints = append(load.Endpoints, &endpointv3.LocalityLbEndpoints{
			Priority: uint32(i), LbEndpoints: endpoints,
		})
	}
	c := cluster(name)
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}}
	d := destination{cluster: newResource(name, c), endpoints: newResource(name, load)}
	if d.endpoints.unresolved = waits && !usable; d.endpoints.unresolved {
		d.endpoints.version += "?" // the addresses of a resolved name may all be refused
	}
	return d
}

func cluster(name string) *clusterv3.Cluster {
	limit := wrapperspb.UInt32(maxConnections)
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connectTimeout), LbPolicy: clusterv3.Cluster_LEAST_REQUEST,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: limit, MaxPendingRequests: limit, MaxRequests: limit, MaxRetries: limit,
		}}},
		// An address that fails is ejected for 2 s, then longer, up to 10 s. If
		// all addresses are ejected, all are used.
		OutlierDetection: &clusterv3.OutlierDetection{
			SplitExternalLocalOriginErrors:         true,
			ConsecutiveLocalOriginFailure:          wrapperspb.UInt32(1),
			EnforcingConsecutiveLocalOriginFailure: wrapperspb.UInt32(100),
			EnforcingLocalOriginSuccessRate:        wrapperspb.UInt32(0),
			EnforcingSuccessRate:                   wrapperspb.UInt32(0),
			Interval:                               durationpb.New(time.Second),
			BaseEjectionTime:                       durationpb.New(2 * time.Second),
			MaxEjectionTime:                        durationpb.New(10 * time.Second),
			MaxEjectionPercent:                     wrapperspb.UInt32(100),
		},
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 1}},
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
			KeepaliveTime: wrapperspb.UInt32(15), KeepaliveInterval: wrapperspb.UInt32(5),
			KeepaliveProbes: wrapperspb.UInt32(3),
		}},
	}
}

// filterChain forwards connections with one of the SNIs to the cluster name.
func filterChain(name string, matches []string) *listenerv3.FilterChain {
	proxy := &tcpproxyv3.TcpProxy{
		StatPrefix: "gateway", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: name},
		IdleTimeout: durationpb.New(0), MaxConnectAttempts: wrapperspb.UInt32(connectAttempts),
		AccessLog: []*accesslogv3.AccessLog{accessLog()},
	}
	return &listenerv3.FilterChain{
		Name: name, FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: matches},
		Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.tcp_proxy",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: newResource("", proxy).encoded}}},
	}
}

// accessLog has the fields of the native gateway's access log.
func accessLog() *accesslogv3.AccessLog {
	fields := map[string]*structpb.Value{}
	for key, format := range map[string]string{
		"time":   "%START_TIME(%Y-%m-%dT%H:%M:%E6SZ)%",
		"remote": "%DOWNSTREAM_REMOTE_ADDRESS%", "sni": "%REQUESTED_SERVER_NAME%", "upstream": "%UPSTREAM_HOST%",
		"bytes_up": "%BYTES_RECEIVED%", "bytes_down": "%BYTES_SENT%", "duration_ms": "%DURATION%",
		"end": "%RESPONSE_FLAGS%",
	} {
		fields[key] = structpb.NewStringValue(format)
	}
	log := &streamv3.StdoutAccessLog{AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{
		LogFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}},
		},
	}}
	return &accesslogv3.AccessLog{
		Name:       "envoy.access_loggers.stdout",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: newResource("", log).encoded},
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_RuntimeFilter{
			RuntimeFilter: &accesslogv3.RuntimeFilter{RuntimeKey: accessLogKey},
		}},
	}
}

// Socket options of Linux. Envoy has no other setting for accepted connections.
const (
	solSocket, soKeepalive                            = 1, 9
	ipprotoTCP, tcpKeepidle, tcpKeepintvl, tcpKeepcnt = 6, 4, 5, 6
)

// listener adds an address to a listener. The encoding is not kept: with 1000
// datacenters it has 0.4 MB. An encoded message is a series of fields, so the
// address precedes the shared fields.
func listener(shared *resource, addr string) *resource {
	host, port, _ := net.SplitHostPort(addr)
	own := newResource("", &listenerv3.Listener{Address: address(host, port)})
	return &resource{
		name: shared.name, version: versionOf([]byte(shared.version + " " + addr)),
		encode: func() *anypb.Any {
			return &anypb.Any{TypeUrl: listenerType, Value: slices.Concat(own.encoded.Value, shared.encoded.Value)}
		},
	}
}

// newListener returns a listener without an address.
func newListener(name string, chains []*listenerv3.FilterChain) *listenerv3.Listener {
	option := func(level, name, value int64) *corev3.SocketOption {
		return &corev3.SocketOption{Level: level, Name: name, Value: &corev3.SocketOption_IntValue{IntValue: value}}
	}
	return &listenerv3.Listener{
		Name: name, StatPrefix: name, FilterChains: chains,
		ListenerFilters: []*listenerv3.ListenerFilter{{
			Name: "envoy.filters.listener.tls_inspector",
			ConfigType: &listenerv3.ListenerFilter_TypedConfig{
				TypedConfig: newResource("", &inspectorv3.TlsInspector{}).encoded,
			},
		}},
		ListenerFiltersTimeout:        durationpb.New(helloTimeout),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		SocketOptions: []*corev3.SocketOption{
			option(solSocket, soKeepalive, 1), option(ipprotoTCP, tcpKeepidle, 15),
			option(ipprotoTCP, tcpKeepintvl, 5), option(ipprotoTCP, tcpKeepcnt, 3),
		},
	}
}

func address(host, port string) *corev3.Address {
	n, _ := strconv.ParseUint(port, 10, 16) // the snapshot has valid addresses
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}
