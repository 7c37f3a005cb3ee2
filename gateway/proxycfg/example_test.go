// SPDX-License-Identifier: MPL-2.0

package proxycfg_test

import (
	"context"
	"log"
	"log/slog"
	"net"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/tlsutil"
)

// A gateway of a datacenter: a proxy with two listeners, and a client that sets
// their route tables.
func ExampleClient() {
	id, err := tlsutil.Load(tlsutil.Files{CA: "ca.pem", Cert: "gw1.pem", Key: "gw1-key.pem"}, tlsutil.DefaultDomain,
		slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	lanSocket, err := net.Listen("tcp", "10.0.0.5:8444")
	if err != nil {
		log.Fatal(err)
	}
	wanSocket, err := net.Listen("tcp", "198.51.100.1:8443")
	if err != nil {
		log.Fatal(err)
	}
	lan, wan := gateway.NewListener("lan", lanSocket), gateway.NewListener("wan", wanSocket)
	proxy, err := gateway.New(gateway.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client, err := proxycfg.New(proxycfg.Config{
		Identity: id, Servers: []string{"10.0.0.1:8300"}, LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443",
		DataDir: "/var/lib/wanfed/gateway", LANListener: lan, WANListener: wan, Logger: slog.Default(),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return client.Run(ctx) })
	group.Go(func() error { return proxy.Run(ctx, lan, wan) })
	if err := group.Wait(); err != nil {
		log.Fatal(err)
	}
}
