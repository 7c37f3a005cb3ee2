// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/gateway/xds"
)

// startPort is the port of the gateway that changes, before the first change.
const startPort = 8443

// gatewayKey is the key of the metadata with the name of the gateway. A server of
// wanfed has it from the certificate.
const gatewayKey = "gateway"

func startWanfed(ctx context.Context, l load) (*contender, error) {
	logger := slog.New(slog.DiscardHandler)
	inputs := &proxycfg.Inputs{}
	manager := proxycfg.NewManager("dc", "wanfed", inputs)
	var mu sync.Mutex
	m, changed := message(l, startPort), make(chan struct{})
	go manager.Run(ctx)
	go inputs.Follow(ctx, "bench", func() (*pb.GatewaySnapshot, <-chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		return m, changed
	}, logger)
	s := xds.NewServer(xds.Config{
		Snapshot: manager.Snapshot, Logger: logger,
		Gateway: func(ctx context.Context) (string, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if v := md.Get(gatewayKey); len(v) == 1 {
				return v[0], nil
			}
			return "", status.Error(codes.Unauthenticated, "no gateway")
		},
	})
	return &contender{
		register: func(srv *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, s) },
		addProxies: func() error {
			for i := range l.proxies {
				lan, wan := addresses(i)
				if err := manager.Register(proxycfg.Registration{Name: gatewayName(i), LAN: lan, WAN: wan}); err != nil {
					return err
				}
			}
			return nil
		},
		change: func(port uint32) error {
			next := message(l, port)
			mu.Lock()
			defer mu.Unlock()
			m = next
			close(changed)
			changed = make(chan struct{})
			return nil
		},
	}, nil
}

// addresses returns the addresses of the listeners of proxy i.
func addresses(i int) (lan, wan string) {
	host := fmt.Sprintf("10.%d.%d.1", i/256, i%256)
	return host + ":8444", host + ":8443"
}
