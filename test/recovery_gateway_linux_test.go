// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestGatewayOutages kills all gateways between two datacenters and restarts
// them: at once, after their checks became critical, and after each datacenter
// marked the servers of the other failed.
func TestGatewayOutages(t *testing.T) {
	t.Parallel()
	overGateways(t, gatewayOutages, lab.AllEnvoys)
}

func gatewayOutages(t *testing.T, envoys lab.Envoys) {
	for _, tc := range []struct {
		name    string
		servers int
		outage  time.Duration
		failed  bool
	}{
		{"at once", 1, 0, false},
		{"when they are critical", 1, 15 * time.Second, false},
		{"when members are failed", 1, 0, true},
		{"when members are failed, three servers each", 3, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.failed && (tc.servers > 1 || envoys != lab.NoEnvoy) {
				onlyChaos(t) // marking six members failed takes two minutes
			}
			l := lab.New(t)
			l.Envoys = envoys
			dc1, dc2 := l.Add(tc.servers, 1), l.Add(tc.servers, 1)
			dc1.Start()
			dc2.Start()
			awaitWhole(t, l, 2*promptly, "start")
			gateways := []*lab.Node{dc1.Gateways[0], dc2.Gateways[0]}
			for _, g := range gateways {
				g.Kill()
			}
			if tc.outage > 0 {
				outage(t, tc.outage)
			}
			if tc.failed {
				for i := range tc.servers {
					awaitStatus(t, 2*failure, dc2.Servers[i], api.MemberFailed, dc1.Servers...)
					awaitStatus(t, 2*failure, dc1.Servers[i], api.MemberFailed, dc2.Servers...)
				}
			}
			for _, g := range gateways {
				g.StartGateway()
			}
			awaitWhole(t, l, promptly, "gateways restarted "+tc.name)
		})
	}
}

// TestGatewayRoutesFromDisk restarts dc2's gateway while dc2 has no server. A
// stand-in for the server only completes TLS handshakes, so the gateway can
// read its routes from its disk alone. A connection from dc1 must reach the
// stand-in. When the server is back, the federation recovers.
func TestGatewayRoutesFromDisk(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, promptly, "start")
	srv, gw := dc2.Servers[0], dc2.Gateways[0]
	srv.Kill()
	gw.Kill()
	gw.StartGateway()

	stop := standIn(t, srv)
	took := throughGateway(t, l, dc1, srv, standInProto)
	t.Logf("routed from disk after %v", took)
	stop()
	srv.StartServer()
	awaitWhole(t, l, promptly, "server restarted")
}

// throughGateway waits until a connection from dc through its gateway reaches
// the given server of another datacenter. It returns how long that took.
func throughGateway(t *testing.T, l *lab.Lab, dc *lab.Datacenter, srv *lab.Node, proto string) time.Duration {
	t.Helper()
	files, err := l.PKI.Issue(tlsutil.RoleOperator, dc.Name, "operator")
	if err != nil {
		t.Fatal(err)
	}
	id, err := tlsutil.Load(files, "wanfed", quiet)
	if err != nil {
		t.Fatal(err)
	}
	sni := tlsutil.ServerName(srv.Name, srv.DC().Name, "wanfed")
	return testutil.Await(t, promptly, "connection to "+srv.WANName(), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, pollTimeout)
		defer cancel()
		raw, err := lab.DialIn(lab.One(dc).NS)(ctx, "tcp", dc.Gateways[0].LANAddr())
		if err != nil {
			return err
		}
		c, err := handshake(ctx, raw, id.ClientConfig(sni, proto))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

const standInProto = "stand-in"

// standIn accepts TLS connections in place of a server, with its certificate,
// until stop is called.
func standIn(t *testing.T, srv *lab.Node) (stop func()) {
	t.Helper()
	id, err := tlsutil.Load(srv.TLS, "wanfed", quiet)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := lab.ListenIn(srv.NS, net.JoinHostPort(srv.LAN, strconv.Itoa(lab.ServerPort)))
	if err != nil {
		t.Fatal(err)
	}
	ln := tls.NewListener(raw, id.ServerConfig(standInProto))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				ctx, cancel := context.WithTimeout(t.Context(), pollTimeout)
				defer cancel()
				_ = c.(*tls.Conn).HandshakeContext(ctx) // the client reports the error
			})
		}
	})
	return sync.OnceFunc(func() { ln.Close(); wg.Wait() })
}

// TestPrimaryReAddressed changes the WAN addresses of the primary's gateways
// while dc2 is connected, cut off or down. dc2 is configured with the initial
// address of the primary's second gateway.
func TestPrimaryReAddressed(t *testing.T) {
	t.Parallel()
	overGateways(t, primaryReAddressed, lab.MixedEnvoys)
}

func primaryReAddressed(t *testing.T, envoys lab.Envoys) {
	for _, tc := range []struct {
		while  string
		all    bool // the second gateway as well: the configured address becomes invalid
		both   bool // dc2's gateway as well: only dc3 learns both changes
		third  bool // dc3 exists; without it only the primary has the new addresses
		always bool // not only in long variants
	}{
		{"connected", false, false, true, false},
		{"cut off", false, false, true, false},
		{"down", false, false, true, true},
		{"connected", true, false, true, true},
		{"cut off", true, false, true, false},
		{"down", true, false, true, false},
		{"cut off", true, true, true, true},
		{"down", true, true, true, false},
		{"cut off", true, false, false, true},
		{"down", true, false, false, false},
	} {
		t.Run(fmt.Sprintf("%s, all %v, both %v, third %v", tc.while, tc.all, tc.both, tc.third), func(t *testing.T) {
			t.Parallel()
			if !tc.always {
				onlyChaos(t)
			}
			l := lab.New(t)
			l.Envoys = envoys
			dc1, dc2 := l.Add(1, 2), l.Add(1, 1)
			knows := dc1
			if tc.third {
				knows = l.Add(1, 1)
			}
			l.PrimaryGateways = []string{dc1.Gateways[1].WANAddr()}
			for _, dc := range l.Datacenters() {
				dc.Start()
			}
			awaitWhole(t, l, promptly, "start")
			far := dc2.Gateways[0]
			switch tc.while {
			case "cut off":
				far.Stop()
			case "down":
				far.Stop()
				dc2.Servers[0].Stop()
			}
			moved := dc1.Gateways[:1]
			if tc.all {
				moved = dc1.Gateways
			}
			for i, g := range moved {
				g.Stop()
				g.ReAddress(fmt.Sprintf("198.18.1.%d", 71+i))
				g.StartGateway()
			}
			awaitShown(t, promptly, dc1, lab.One(knows))
			if tc.both {
				far.ReAddress("198.18.2.71")
			}
			if tc.while == "down" {
				dc2.Servers[0].StartServer()
			}
			if tc.while != "connected" {
				far.StartGateway()
			}
			awaitWhole(t, l, promptly, "gateways moved while dc2 was "+tc.while)
		})
	}
}
