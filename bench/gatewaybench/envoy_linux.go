// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/gateway/xds"
)

const envoyName = "envoy"

// envoyBinary returns the path of Envoy's binary: $WANFED_ENVOY, or envoy in
// the PATH.
func envoyBinary() (string, error) {
	if path := os.Getenv("WANFED_ENVOY"); path != "" {
		return path, nil
	}
	return exec.LookPath("envoy")
}

// envoy returns Envoy with two workers. It receives the listeners and clusters
// that wanfed's servers send.
func envoy(binary string) contender {
	return contender{
		name: envoyName, role: peer, xds: true,
		command: []string{binary, "-c", "{dir}/envoy.json", "--concurrency", "2", "--disable-hot-restart",
			"--log-level", "error"},
		files: map[string]string{"envoy.json": `{
  "node": {"id": "gw1", "cluster": "bench"},
  "dynamic_resources": {
    "cds_config": {"ads": {}, "resource_api_version": "V3"},
    "lds_config": {"ads": {}, "resource_api_version": "V3"},
    "ads_config": {
      "api_type": "DELTA_GRPC", "transport_api_version": "V3",
      "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]
    }
  },
  "static_resources": {"clusters": [{
    "name": "xds", "type": "STATIC",
    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address":
      {"socket_address": {"address": "127.0.0.1", "port_value": {xdsport}}}}}]}]},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
      "explicit_http_config": {"http2_protocol_options": {}}
    }}
  }]}
}
`},
	}
}

// serveXDS serves the configuration of a gateway with the routes of all
// contenders, until the caller calls stop. The LAN listener is that of the
// measurement.
func serveXDS(ph placeholders) (port string, stop func(), err error) {
	wan, err := freeAddr()
	if err != nil {
		return "", nil, err
	}
	snap := &proxycfg.Snapshot{
		Registration: proxycfg.Registration{Name: "gw1", LAN: ph.listen, WAN: wan},
		Datacenter:   "bench", Domain: "wanfed",
		Servers: []proxycfg.Server{{Node: "raw", Name: load.RawName, Address: ph.raw}},
		Datacenters: []*proxycfg.Datacenter{{
			DC: "dc1", Name: strings.TrimPrefix(load.TLSRoute, "*."), Gateways: []string{ph.tls},
		}},
	}
	server := xds.NewServer(xds.Config{
		Snapshot: func(string) (*proxycfg.Snapshot, <-chan struct{}) { return snap, nil },
		Gateway:  func(context.Context) (string, error) { return snap.Name, nil },
		Logger:   slog.New(slog.DiscardHandler),
	})
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, server)
	done := make(chan error, 1)
	go func() { done <- g.Serve(ln) }()
	_, port, err = net.SplitHostPort(ln.Addr().String())
	return port, func() {
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			fmt.Fprintln(os.Stderr, "gatewaybench: configuration of Envoy:", err)
		}
	}, err
}
