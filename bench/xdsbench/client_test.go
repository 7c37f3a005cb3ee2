// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	grpcxds "google.golang.org/grpc/xds"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/gateway/xds"
	"github.com/wanfed/wanfed/internal/testutil"
)

// rig is an xds.Server with the snapshot of one gateway, on a TCP port.
type rig struct {
	*xds.Server
	address string
	publish func(*pb.GatewaySnapshot)
	// restart replaces the Server by a new one at the same address.
	restart func()
}

func newRig(t *testing.T) *rig {
	logger := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	inputs := &proxycfg.Inputs{}
	manager := proxycfg.NewManager("dc", "wanfed", inputs)
	var mu sync.Mutex
	m, changed := message(load{datacenters: 2}, startPort), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { manager.Run(ctx) })
	running.Go(func() {
		inputs.Follow(ctx, "test", func() (*pb.GatewaySnapshot, <-chan struct{}) {
			mu.Lock()
			defer mu.Unlock()
			return m, changed
		}, logger)
	})
	lan, wan := addresses(0)
	if err := manager.Register(proxycfg.Registration{Name: gatewayName(0), LAN: lan, WAN: wan}); err != nil {
		t.Fatal(err)
	}
	r := &rig{
		address: "127.0.0.1:0",
		publish: func(next *pb.GatewaySnapshot) {
			mu.Lock()
			defer mu.Unlock()
			m = next
			close(changed)
			changed = make(chan struct{})
		},
	}
	stop := func() {}
	r.restart = func() {
		t.Helper()
		stop()
		ln, err := net.Listen("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		r.address = ln.Addr().String()
		r.Server = xds.NewServer(xds.Config{
			Snapshot: manager.Snapshot, Logger: logger,
			Gateway: func(context.Context) (string, error) { return gatewayName(0), nil },
		})
		srv := grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, r.Server)
		running.Go(func() { srv.Serve(ln) })
		stop = srv.Stop
	}
	r.restart()
	t.Cleanup(func() { stop(); cancel(); running.Wait() })
	return r
}

// wantType waits until the only stream has a type in a state.
func (r *rig) wantType(t *testing.T, url, want string, is func(xds.Type) bool) {
	t.Helper()
	testutil.Await(t, 20*time.Second, url+" has "+want, func(context.Context) error {
		for _, p := range r.Proxies() {
			if slices.ContainsFunc(p.Types, func(typ xds.Type) bool { return typ.TypeURL == url && is(typ) }) {
				return nil
			}
		}
		return fmt.Errorf("Proxies() = %+v", r.Proxies())
	})
}

// The client of go-control-plane subscribes, accepts, rejects, and connects
// again. It speaks the state-of-the-world variant.
func TestGoControlPlaneClient(t *testing.T) {
	for _, url := range []string{resourcev3.ClusterType, resourcev3.ListenerType} {
		t.Run(url[strings.LastIndexByte(url, '.')+1:], func(t *testing.T) {
			r := newRig(t)
			// fetch returns the names of the resources of the next response.
			fetch := func(c sotwv3.ADSClient) (names []string) {
				t.Helper()
				resp, err := c.Fetch()
				if err != nil {
					t.Fatal(err)
				}
				for _, any := range resp.Resources {
					m, err := any.UnmarshalNew()
					if err != nil {
						t.Fatal(err)
					}
					if v, ok := m.(interface{ ValidateAll() error }); !ok || v.ValidateAll() != nil {
						t.Errorf("resource %v is not valid, want nil from ValidateAll()", m)
					}
					names = append(names, m.(interface{ GetName() string }).GetName())
				}
				return names
			}
			connect := func(c sotwv3.ADSClient) (disconnect func()) {
				t.Helper()
				cc, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					t.Fatal(err)
				}
				if err := c.InitConnect(cc); err != nil {
					t.Fatal(err)
				}
				return func() { cc.Close() }
			}
			c := sotwv3.NewADSClient(t.Context(), &corev3.Node{Id: gatewayName(0)}, url)
			disconnect := connect(c)
			first := fetch(c)
			if err := c.Ack(); err != nil {
				t.Fatal(err)
			}
			r.wantType(t, url, "1 accepted", func(typ xds.Type) bool { return typ.Accepted == 1 && typ.Rejected == "" })

			r.publish(message(load{datacenters: 3}, startPort))
			second := fetch(c)
			if url == resourcev3.ClusterType && len(second) != len(first)+1 {
				t.Errorf("clusters after the change = %v, want one more than %v", second, first)
			}
			if err := c.Nack("refused by the test"); err != nil {
				t.Fatal(err)
			}
			r.wantType(t, url, "the rejection", func(typ xds.Type) bool { return typ.Rejected == "refused by the test" })

			r.publish(message(load{datacenters: 4}, startPort))
			fetch(c)
			if err := c.Ack(); err != nil {
				t.Fatal(err)
			}
			r.wantType(t, url, "2 accepted", func(typ xds.Type) bool { return typ.Accepted == 2 && typ.Rejected == "" })

			disconnect() // the client keeps its version
			disconnect = connect(c)
			defer disconnect()
			r.wantType(t, url, "a new stream without a response", func(typ xds.Type) bool { return typ.Sent == 0 })
			r.publish(message(load{datacenters: 5}, startPort))
			fetch(c)
			r.wantType(t, url, "1 response", func(typ xds.Type) bool { return typ.Sent == 1 })
		})
	}
}

// The client of gRPC subscribes a listener by its name, and rejects it: gRPC
// accepts only HTTP listeners. The message is recorded. The client then receives
// the next version, and connects again.
func TestGRPCClient(t *testing.T) {
	r := newRig(t)
	bootstrap := fmt.Sprintf(`{"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}],
		"server_features": ["xds_v3"]}], "node": {"id": %q}}`, r.address, gatewayName(0))
	builder, err := grpcxds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient("xds:///lan", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithResolvers(builder))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	cc.Connect()
	rejected := func(sent int) func(xds.Type) bool {
		return func(typ xds.Type) bool {
			return typ.Sent == sent && typ.Accepted == 0 && strings.Contains(typ.Rejected, "lan")
		}
	}
	r.wantType(t, resourcev3.ListenerType, "1 response, rejected", rejected(1))
	r.publish(message(load{datacenters: 3}, startPort))
	r.wantType(t, resourcev3.ListenerType, "2 responses, rejected", rejected(2))
}
