// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

// authority issues certificates.
type authority struct {
	t  testing.TB
	ca tlsutil.KeyPair
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, ca}
}

// identity issues a certificate for role/dc/node and loads it.
func (a *authority) identity(role tlsutil.Role, node, dc string) *tlsutil.Identity {
	a.t.Helper()
	p, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: role, Node: node, DC: dc, CA: a.ca})
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	f := tlsutil.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"),
		Key: filepath.Join(dir, "key.pem")}
	for path, b := range map[string][]byte{f.CA: a.ca.Cert, f.Cert: p.Cert, f.Key: p.Key} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	id, err := tlsutil.Load(f, tlsutil.DefaultDomain, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	return id
}

func (a *authority) server(node, dc string) *tlsutil.Identity {
	return a.identity(tlsutil.RoleServer, node, dc)
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// listen listens on loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// background runs f until stop is called or the test ends, and waits for it.
func background(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			t.Errorf("background function = %v, want nil", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// node is a server with all parts of this package, on one loopback port.
type node struct {
	t    testing.TB
	dc   string
	name string
	addr string
	id   *tlsutil.Identity
	book *SharedAddressBook
	d    *Dialer
	mux  *Mux
	tun  *Tunnel
	log  *logBuffer
	stop func()

	reconnected atomic.Int32 // calls of TunnelConfig.Reconnected
}

// newNode returns a server that does not run yet.
func newNode(t testing.TB, a *authority, name, dc string, change ...func(*DialerConfig)) *node {
	t.Helper()
	n := &node{t: t, dc: dc, name: name, id: a.server(name, dc), book: &SharedAddressBook{}, log: &logBuffer{}}
	cfg := DialerConfig{Identity: n.id, AddressBook: n.book, Logger: n.log.logger()}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if n.d, err = NewDialer(cfg); err != nil {
		t.Fatal(err)
	}
	if n.mux, err = NewMux(MuxConfig{Identity: n.id, Logger: n.log.logger()}); err != nil {
		t.Fatal(err)
	}
	return n
}

// start creates the tunnel, and runs the tunnel and the Mux on ln.
func (n *node) start(ln net.Listener, change ...func(*limits)) *node {
	n.t.Helper()
	n.addr = ln.Addr().String()
	var err error
	n.tun, err = NewTunnel(TunnelConfig{Identity: n.id, Dialer: n.d, Mux: n.mux, Advertise: n.addr,
		Reconnected: func(string) { n.reconnected.Add(1) }, Logger: n.log.logger()})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range change {
		f(&n.tun.limits)
	}
	stopMux := background(n.t, func(ctx context.Context) error { return n.mux.Run(ctx, ln) })
	stopTunnel := background(n.t, n.tun.Run)
	n.stop = func() { stopTunnel(); stopMux() }
	return n
}

// traffic returns the counters of pool and dc.
func (n *node) traffic(pool Pool, dc string) Traffic {
	for _, tr := range n.tun.Stats().Traffic {
		if tr.Pool == pool && tr.DC == dc {
			return tr
		}
	}
	return Traffic{}
}

// world is a set of servers with one gateway per datacenter.
type world struct {
	t     testing.TB
	a     *authority
	nodes map[string]*node // by <node>.<dc>
	gws   map[string]*fakeGateway
}

// newWorld starts servers srv1 to srv<perDC> in each datacenter. Their address
// books list the gateways of the other datacenters.
func newWorld(t testing.TB, perDC int, dcs []string, change ...func(*limits)) *world {
	t.Helper()
	w := &world{t: t, a: newAuthority(t), nodes: map[string]*node{}, gws: map[string]*fakeGateway{}}
	servers := map[string]map[string]string{}
	for _, dc := range dcs {
		servers[dc] = map[string]string{}
		for i := range perDC {
			name := "srv" + string(rune('1'+i))
			ln := listen(t)
			servers[dc][name] = ln.Addr().String()
			w.nodes[name+"."+dc] = newNode(t, w.a, name, dc).start(ln, change...)
		}
		w.gws[dc] = newFakeGateway(t, listen(t), dc, servers[dc])
	}
	for _, n := range w.nodes {
		r := &AddressBook{Servers: servers[n.dc], Paths: map[string][]Path{}}
		for _, dc := range dcs {
			if dc != n.dc {
				r.Paths[dc] = []Path{{Addr: w.gws[dc].addr, Via: "remote gateway"}}
			}
		}
		n.book.Store(r)
	}
	return w
}
