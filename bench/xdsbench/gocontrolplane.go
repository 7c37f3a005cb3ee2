// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

// resources are the resources of a proxy by name, by type URL.
type resources map[string]map[string]types.ResourceWithTTL

// wanfedResources returns the resources that wanfed has for proxy 0.
func wanfedResources(ctx context.Context, l load) (resources, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l.proxies = 1
	c, err := startWanfed(ctx, l)
	if err != nil {
		return nil, err
	}
	ln := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	c.register(srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Stop(); <-served }()
	if err := c.addProxies(); err != nil {
		return nil, err
	}
	cc, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		return nil, err
	}
	defer cc.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(
		metadata.AppendToOutgoingContext(ctx, gatewayKey, gatewayName(0)))
	if err != nil {
		return nil, err
	}
	all := resources{}
	for _, url := range []string{resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType} {
		err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: []string{"*"}})
		if err != nil {
			return nil, err
		}
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		all[url] = map[string]types.ResourceWithTTL{}
		for _, r := range resp.Resources {
			m, err := r.Resource.UnmarshalNew()
			if err != nil {
				return nil, err
			}
			all[url][r.Name] = types.ResourceWithTTL{Resource: m}
		}
	}
	return all, nil
}

// listenersOf returns the listeners of proxy i. They share the filter chains.
func (r resources) listenersOf(i int) map[string]types.ResourceWithTTL {
	lan, wan := addresses(i)
	out := map[string]types.ResourceWithTTL{}
	for name, addr := range map[string]string{"lan": lan, "wan": wan} {
		l := r[resourcev3.ListenerType][name].Resource.(*listenerv3.Listener)
		host, _, _ := net.SplitHostPort(addr)
		a := proto.CloneOf(l.Address)
		a.GetSocketAddress().Address = host
		out[name] = types.ResourceWithTTL{Resource: &listenerv3.Listener{
			Name: l.Name, Address: a, StatPrefix: l.StatPrefix, FilterChains: l.FilterChains,
			ListenerFilters: l.ListenerFilters, ListenerFiltersTimeout: l.ListenerFiltersTimeout,
			PerConnectionBufferLimitBytes: l.PerConnectionBufferLimitBytes, SocketOptions: l.SocketOptions,
		}}
	}
	return out
}

// changedEndpoints returns the endpoints of the datacenter that changes.
func (r resources) changedEndpoints(port uint32) (name string, m *endpointv3.ClusterLoadAssignment) {
	name = "server." + changed + ".wanfed"
	m = proto.CloneOf(r[resourcev3.EndpointType][name].Resource.(*endpointv3.ClusterLoadAssignment))
	m.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress().PortSpecifier =
		&corev3.SocketAddress_PortValue{PortValue: port}
	return name, m
}

func register(ctx context.Context, cache cachev3.Cache) func(*grpc.Server) {
	return func(srv *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, serverv3.NewServer(ctx, cache, nil))
	}
}

// startSnapshot starts a server with SnapshotCache. If shareVersions is true, all
// snapshots share the versions of clusters and endpoints.
func startSnapshot(ctx context.Context, l load, shareVersions bool) (*contender, error) {
	r, err := wanfedResources(ctx, l)
	if err != nil {
		return nil, err
	}
	cache := cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil)
	listeners := make([]map[string]types.ResourceWithTTL, l.proxies)
	listenerVersions := make([]map[string]string, l.proxies)
	generation := 0
	set := func() error {
		generation++
		version := fmt.Sprint(generation)
		clusters := cachev3.Resources{Version: version, Items: r[resourcev3.ClusterType]}
		endpoints := cachev3.Resources{Version: version, Items: r[resourcev3.EndpointType]}
		var shared map[string]map[string]string
		if shareVersions {
			s := &cachev3.Snapshot{}
			s.Resources[types.Cluster], s.Resources[types.Endpoint] = clusters, endpoints
			if err := s.ConstructVersionMap(); err != nil {
				return err
			}
			shared = s.VersionMap
		}
		for i := range l.proxies {
			s := &cachev3.Snapshot{}
			s.Resources[types.Cluster], s.Resources[types.Endpoint] = clusters, endpoints
			s.Resources[types.Listener] = cachev3.Resources{Version: "1", Items: listeners[i]}
			if shareVersions {
				s.VersionMap = map[string]map[string]string{
					resourcev3.ClusterType: shared[resourcev3.ClusterType], resourcev3.EndpointType: shared[resourcev3.EndpointType],
					resourcev3.ListenerType: listenerVersions[i],
				}
			}
			if err := cache.SetSnapshot(ctx, gatewayName(i), s); err != nil {
				return err
			}
		}
		return nil
	}
	return &contender{
		register: register(ctx, cache),
		addProxies: func() error {
			for i := range listeners {
				listeners[i] = r.listenersOf(i)
				if shareVersions {
					s := &cachev3.Snapshot{}
					s.Resources[types.Listener].Items = listeners[i]
					if err := s.ConstructVersionMap(); err != nil {
						return err
					}
					listenerVersions[i] = s.VersionMap[resourcev3.ListenerType]
				}
			}
			return set()
		},
		change: func(port uint32) error {
			name, m := r.changedEndpoints(port)
			next := make(map[string]types.ResourceWithTTL, len(r[resourcev3.EndpointType]))
			for name, r := range r[resourcev3.EndpointType] {
				next[name] = r
			}
			next[name] = types.ResourceWithTTL{Resource: m}
			r[resourcev3.EndpointType] = next
			return set()
		},
	}, nil
}

// startLinear starts a server with LinearCache for what all proxies share.
func startLinear(ctx context.Context, l load) (*contender, error) {
	r, err := wanfedResources(ctx, l)
	if err != nil {
		return nil, err
	}
	linear := map[string]*cachev3.LinearCache{}
	for _, url := range []string{resourcev3.ClusterType, resourcev3.EndpointType} {
		initial := map[string]types.Resource{}
		for name, r := range r[url] {
			initial[name] = r.Resource
		}
		linear[url] = cachev3.NewLinearCache(url, cachev3.WithInitialResources(initial))
	}
	listeners := cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil)
	mux := &cachev3.MuxCache{
		Classify:      func(req *cachev3.Request) string { return req.TypeUrl },
		ClassifyDelta: func(req *cachev3.DeltaRequest) string { return req.TypeUrl },
		Caches: map[string]cachev3.Cache{
			resourcev3.ClusterType: linear[resourcev3.ClusterType], resourcev3.EndpointType: linear[resourcev3.EndpointType],
			resourcev3.ListenerType: listeners,
		},
	}
	var mu sync.Mutex
	return &contender{
		register: register(ctx, mux),
		addProxies: func() error {
			for i := range l.proxies {
				s := &cachev3.Snapshot{}
				s.Resources[types.Listener] = cachev3.Resources{Version: "1", Items: r.listenersOf(i)}
				if err := listeners.SetSnapshot(ctx, gatewayName(i), s); err != nil {
					return err
				}
			}
			return nil
		},
		change: func(port uint32) error {
			mu.Lock()
			defer mu.Unlock()
			name, m := r.changedEndpoints(port)
			return linear[resourcev3.EndpointType].UpdateResource(name, m)
		},
	}, nil
}
