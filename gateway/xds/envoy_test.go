// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
)

// envoyRig is a server for a real Envoy. Unlike rig, it listens on a TCP port
// and can restart.
type envoyRig struct {
	t       *testing.T
	address string
	changed broadcast.Broadcast
	stop    func() // the server

	mu      sync.Mutex
	snap    *proxycfg.Snapshot
	server  *Server
	resumed map[string]int      // number of initial versions in requests, by type URL
	sent    map[string][]string // names of resources in responses, by type URL
}

// start starts a new Server, as a server of wanfed does after a restart.
func (r *envoyRig) start() {
	r.t.Helper()
	ln, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.address = ln.Addr().String()
	s := NewServer(Config{
		Snapshot: func(string) (*proxycfg.Snapshot, <-chan struct{}) {
			changed := r.changed.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.snap, changed
		},
		Gateway: func(context.Context) (string, error) { return "gw1", nil }, Logger: slog.New(slog.DiscardHandler),
	})
	r.mu.Lock()
	r.server, r.resumed, r.sent = s, map[string]int{}, map[string][]string{}
	r.mu.Unlock()
	srv := grpc.NewServer(grpc.StreamInterceptor(
		func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, recorder{stream, r})
		}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	r.stop = sync.OnceFunc(func() { srv.Stop(); <-served })
}

// recorder records the messages of a stream.
type recorder struct {
	grpc.ServerStream
	rig *envoyRig
}

func (s recorder) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if req, ok := m.(*discoveryv3.DeltaDiscoveryRequest); ok && err == nil {
		s.rig.mu.Lock()
		defer s.rig.mu.Unlock()
		s.rig.resumed[req.TypeUrl] += len(req.InitialResourceVersions)
	}
	return err
}

func (s recorder) SendMsg(m any) error {
	if resp, ok := m.(*discoveryv3.DeltaDiscoveryResponse); ok {
		s.rig.mu.Lock()
		for _, r := range resp.Resources {
			s.rig.sent[resp.TypeUrl] = append(s.rig.sent[resp.TypeUrl], r.Name)
		}
		s.rig.mu.Unlock()
	}
	return s.ServerStream.SendMsg(m)
}

func (r *envoyRig) publish(s *proxycfg.Snapshot) {
	r.mu.Lock()
	r.snap = s
	r.mu.Unlock()
	r.changed.Notify()
}

// want waits until the state of a type satisfies is.
func (r *envoyRig) want(url, what string, is func(Type) bool) {
	r.t.Helper()
	testutil.Await(r.t, 20*time.Second, what, func(context.Context) error {
		r.mu.Lock()
		proxies := r.server.Proxies()
		r.mu.Unlock()
		for _, p := range proxies {
			for _, typ := range p.Types {
				if typ.TypeURL == url && is(typ) {
					return nil
				}
			}
		}
		return fmt.Errorf("proxies = %+v", proxies)
	})
}

func accepted(n int) func(Type) bool {
	return func(typ Type) bool { return typ.Accepted >= n && typ.Rejected == "" }
}

// startEnvoy starts Envoy with our server as its only source of configuration.
func (r *envoyRig) startEnvoy(path string) {
	r.t.Helper()
	host, port, _ := net.SplitHostPort(r.address)
	ads := map[string]any{"ads": map[string]any{}, "resource_api_version": "V3"}
	config, err := json.Marshal(map[string]any{
		"node": map[string]any{"id": "gw1", "cluster": "dc1", "metadata": map[string]any{"lan_bind": "127.0.0.1:0"}},
		"dynamic_resources": map[string]any{
			"cds_config": ads, "lds_config": ads,
			"ads_config": map[string]any{"api_type": "DELTA_GRPC", "transport_api_version": "V3",
				"grpc_services": []any{map[string]any{"envoy_grpc": map[string]any{"cluster_name": "ads"}}}},
		},
		"static_resources": map[string]any{"clusters": []any{map[string]any{
			"name": "ads", "type": "STATIC", "connect_timeout": "1s",
			"typed_extension_protocol_options": map[string]any{
				"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": map[string]any{
					"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
					"explicit_http_config": map[string]any{"http2_protocol_options": map[string]any{}},
				},
			},
			"load_assignment": map[string]any{"cluster_name": "ads", "endpoints": []any{map[string]any{
				"lb_endpoints": []any{map[string]any{"endpoint": map[string]any{"address": map[string]any{
					"socket_address": map[string]any{"address": host, "port_value": json.Number(port)},
				}}}},
			}}},
		}}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	file := filepath.Join(r.t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		r.t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(path, "-c", file, "--disable-hot-restart", "--concurrency", "1")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.t.Failed() {
			r.t.Logf("log of Envoy:\n%s", &log)
		}
	})
}

// Envoy accepts, rejects, and accepts the corrected configuration. After a
// restart of the server, Envoy receives only what has changed, and what it has
// rejected.
func TestEnvoy_ResumesAfterRestart(t *testing.T) {
	testutil.Cluster(t)
	path := testutil.Envoy(t)
	withWAN := func(wan string, dcs ...*proxycfg.Datacenter) *proxycfg.Snapshot {
		s := snapshot(three, dcs...)
		s.WAN = wan
		return s
	}
	dc3 := datacenter("dc3", "127.0.0.1:3")
	r := &envoyRig{t: t, address: "127.0.0.1:0"}
	r.start()
	defer func() { r.stop() }()
	r.publish(withWAN("127.0.0.1:0", datacenter("dc2", "127.0.0.1:2"), dc3))
	r.startEnvoy(path)
	for _, url := range typeURLs {
		r.want(url, "configuration accepted", accepted(1))
	}
	r.publish(withWAN("192.0.2.1:8443", datacenter("dc2", "127.0.0.1:2"), dc3))
	r.want(listenerType, "listener rejected", func(typ Type) bool { return strings.Contains(typ.Rejected, "192.0.2.1") })
	r.stop()
	r.start()
	r.want(listenerType, "listener rejected again", func(typ Type) bool { return strings.Contains(typ.Rejected, "192.0.2.1") })
	r.publish(withWAN("127.0.0.2:0", datacenter("dc2", "127.0.0.1:2"), dc3))
	r.want(listenerType, "corrected listener accepted", accepted(1))
	r.wantSent(map[string][]string{listenerType: {"wan", "wan"}})

	r.stop()
	r.publish(withWAN("127.0.0.2:0", datacenter("dc2", "127.0.0.1:9"), dc3))
	r.start()
	r.want(endpointType, "the change accepted", accepted(1))
	r.publish(withWAN("127.0.0.3:0", datacenter("dc2", "127.0.0.1:9"), dc3))
	r.want(listenerType, "a later change accepted", accepted(1))
	r.wantSent(map[string][]string{endpointType: {dc2}, listenerType: {"wan"}})
}

// wantSent checks the names of all resources that the last started server has
// sent, and that Envoy requested only what it lacks.
func (r *envoyRig) wantSent(want map[string][]string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, url := range typeURLs {
		if got := r.sent[url]; !slices.Equal(got, want[url]) {
			r.t.Errorf("resources of %s sent since the start of the server = %v, want %v", url, got, want[url])
		}
		if r.resumed[url] == 0 {
			r.t.Errorf("requests for %s have no initial versions, want some", url)
		}
	}
}
