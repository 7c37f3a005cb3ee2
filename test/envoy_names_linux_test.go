// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestEnvoy_Names registers the gateway of dc2 with a host name. The Envoy of dc1
// forwards to its address. When the name leads to loopback, as the owner of a name can
// arrange, the Envoy does not connect, and when the name is correct again, it does.
func TestEnvoy_Names(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	l.Envoys = "dc1"
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	server, envoy, gw := dc1.Servers[0], dc1.Gateways[0], dc2.Gateways[0]
	const name = "gw1.dc2.example"
	resolve := func(addr string) { l.Net.Hosts(server.NS, map[string]string{name: addr}) }
	resolve(gw.WAN)
	dc1.Start()
	dc2.Servers[0].StartServer()
	gw.StartGateway("--wan", net.JoinHostPort(name, strconv.Itoa(lab.WANPort)), "--wan-bind", gw.WANAddr())
	var canary atomic.Int64
	err := lab.In(envoy.NS, func() error {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lab.WANPort)))
		if err != nil {
			return err
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				canary.Add(1)
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	through := func() error {
		return tryTLS(t, l, server.NS, envoy.LANAddr(), tlsutil.ServerName("", "dc2", "wanfed"))
	}
	// A name is resolved every 5 s, and the resolver of Go keeps /etc/hosts for 5 s.
	const limit = 20 * time.Second
	testutil.Await(t, limit, "a connection through the Envoy to the name", func(context.Context) error { return through() })
	resolve("127.0.0.1")
	testutil.Await(t, limit, "no connection while the name leads to loopback", func(context.Context) error {
		if through() == nil {
			return errors.New("a connection through the Envoy succeeded")
		}
		return nil
	})
	if n := canary.Load(); n > 0 {
		t.Errorf("the Envoy connected %d times to its loopback address, want never", n)
	}
	resolve(gw.WAN)
	testutil.Await(t, limit, "a connection to the corrected name", func(context.Context) error { return through() })
}
