// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// crowd is the WAN pool of a large federation. Its servers run in this process.
// Each server has a tunnel and a memberlist with the settings for wide area
// networks. The gateway of each datacenter is a real process. There is no
// store: the test sets the address books and routes that a federation would
// have. A server reaches another datacenter through the gateways of both
// datacenters.
type crowd struct {
	t        testing.TB
	servers  []*crowdServer
	gateways []string // admin addresses of the gateways
}

type crowdServer struct {
	name, dc string
	addr     string
	tunnel   *wanfed.Tunnel
	list     *memberlist.Memberlist
	bytes    atomic.Int64 // sent and received over connections to other datacenters that this server opened
}

// countedConn counts the bytes of a TCP connection, in both directions.
type countedConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// dial opens a connection for s. It counts the bytes of connections to own, the
// gateway of the datacenter.
func (s *crowdServer) dial(ctx context.Context, addr, own string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil || addr != own {
		return conn, err
	}
	return countedConn{conn, &s.bytes}, nil
}

// runAll runs parts until the end of the test. It then cancels and joins all.
func runAll(t testing.TB, parts []func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// newCrowd starts dcs datacenters with perDC servers each.
func newCrowd(t testing.TB, dcs, perDC int) *crowd {
	t.Helper()
	c := &crowd{t: t}
	ca := tlstest.NewCA(t)
	gateways, own := map[string]net.Listener{}, map[string]map[string]net.Listener{}
	for i := range dcs {
		dc := fmt.Sprintf("dc%d", i+1)
		gateways[dc], own[dc] = listen(t), map[string]net.Listener{}
		for n := range perDC {
			own[dc][fmt.Sprintf("srv%d", n+1)] = listen(t)
		}
	}
	var servers []func(context.Context) error
	for dc := range own {
		routes := wanfed.AddressBook{Servers: map[string]string{}, Paths: map[string][]wanfed.Path{}}
		for name, ln := range own[dc] {
			routes.Servers[name] = ln.Addr().String()
		}
		for other := range own {
			if other != dc {
				routes.Paths[other] = []wanfed.Path{{Addr: gateways[dc].Addr().String(), Via: "own"}}
			}
		}
		c.startGateway(dc, gateways, routes.Servers)
		for name, ln := range own[dc] {
			servers = append(servers, c.server(ca, dc, name, ln, &routes, gateways[dc].Addr().String())...)
		}
	}
	runAll(t, servers)
	for _, s := range c.servers {
		s.list = s.member(t)
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, s := range c.servers {
			wg.Go(func() { _ = s.list.Shutdown() })
		}
		wg.Wait()
	})
	return c
}

// startGateway starts the gateway of dc. The gateway has one port, for its
// servers and for other gateways. The listeners in gateways reserve the ports
// of gateways that are not started yet.
func (c *crowd) startGateway(dc string, gateways map[string]net.Listener, servers map[string]string) {
	c.t.Helper()
	var file strings.Builder
	all := slices.Sorted(maps.Values(servers))
	fmt.Fprintf(&file, "route %q { to = [\"%s\"] }\n", tlsutil.ServerName("", dc, tlsutil.DefaultDomain),
		strings.Join(all, "\", \""))
	for name, addr := range servers {
		fmt.Fprintf(&file, "route %q { to = [%q] }\n", tlsutil.ServerName(name, dc, tlsutil.DefaultDomain), addr)
	}
	for other, ln := range gateways {
		if other != dc {
			fmt.Fprintf(&file, "route %q { to = [%q] }\n", "*."+other+"."+tlsutil.DefaultDomain, ln.Addr())
		}
	}
	dir, ln, admin := c.t.TempDir(), gateways[dc], listen(c.t)
	routes := filepath.Join(dir, "routes.hcl")
	if err := os.WriteFile(routes, []byte(file.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	ln.Close()
	admin.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name: dc + "'s gateway", LogPath: filepath.Join(dir, "gateway.log"),
		Command: []string{
			lab.Binary(c.t), "gateway", "--listen", ln.Addr().String(), "--routes", routes,
			"--admin-addr", admin.Addr().String(), "--" + subprocess.StopOnEOF,
		},
		Ready: func(line string) bool { return strings.Contains(line, "listening on") },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(p.Kill)
	c.gateways = append(c.gateways, admin.Addr().String())
}

// server creates the tunnel and the mux of a server, and returns their Run
// methods.
func (c *crowd) server(
	ca *tlstest.CA, dc, name string, ln net.Listener, routes *wanfed.AddressBook, gateway string,
) []func(context.Context) error {
	c.t.Helper()
	id := ca.Identity(c.t, tlsutil.RoleServer, name, dc)
	book := &wanfed.SharedAddressBook{}
	book.Store(routes)
	s := &crowdServer{name: name, dc: dc, addr: ln.Addr().String()}
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: id})
	if err != nil {
		c.t.Fatal(err)
	}
	dialer, err := wanfed.NewDialer(wanfed.DialerConfig{
		Identity: id, AddressBook: book, DialTCP: func(ctx context.Context, addr string) (net.Conn, error) {
			return s.dial(ctx, addr, gateway)
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	s.tunnel, err = wanfed.NewTunnel(wanfed.TunnelConfig{Identity: id, Dialer: dialer, Mux: mux, Advertise: s.addr})
	if err != nil {
		c.t.Fatal(err)
	}
	c.servers = append(c.servers, s)
	return []func(context.Context) error{s.tunnel.Run, func(ctx context.Context) error { return mux.Run(ctx, ln) }}
}

// member creates the memberlist of s.
func (s *crowdServer) member(t testing.TB) *memberlist.Memberlist {
	t.Helper()
	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames = s.name+"."+s.dc, true
	conf.Transport = s.tunnel.Transport(wanfed.PoolWAN)
	conf.LogOutput = io.Discard
	list, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// join lets each server join the pool through any server of dc1.
func (c *crowd) join() {
	c.t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for _, s := range c.servers {
		to := "*.dc1/192.0.2.2:1" // never dialed
		if s.dc == "dc1" {
			to = "srv1.dc1/" + c.addr("srv1", "dc1")
		}
		g.Go(func() error {
			_, err := s.list.Join([]string{to})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

// addr returns the address of a server.
func (c *crowd) addr(name, dc string) string {
	for _, s := range c.servers {
		if s.name == name && s.dc == dc {
			return s.addr
		}
	}
	c.t.Fatalf("no server %s.%s", name, dc)
	return ""
}

// converged returns nil if at least the given share of all pairs of servers are
// members of each other's list.
func (c *crowd) converged(share float64) error {
	seen, all := 0, len(c.servers)*len(c.servers)
	for _, s := range c.servers {
		seen += s.list.NumMembers()
	}
	if float64(seen) < share*float64(all) {
		return fmt.Errorf("%d of %d pairs of servers have converged, want %.0f %%", seen, all, 100*share)
	}
	return nil
}
