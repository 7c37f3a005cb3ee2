// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

// fakeGateway forwards connections by SNI, like the gateway of a datacenter. It
// can also stall.
type fakeGateway struct {
	t      testing.TB
	dc     string
	addr   string
	routes map[string]string // addresses of the servers of dc, by node name
	// remoteServers has the address of the only server of each remote
	// datacenter. If it is not nil, the gateway forwards only to these servers.
	remoteServers map[string]string
	dial          func(addr string) (net.Conn, error)

	mu         sync.Mutex
	frozen     bool
	thawed     chan struct{} // closed while the gateway is not frozen
	ln         net.Listener  // nil: stopped
	conns      map[net.Conn]bool
	nextServer int
	accepted   int // connections
	wg         sync.WaitGroup
}

func newFakeGateway(t testing.TB, ln net.Listener, dc string, routes map[string]string) *fakeGateway {
	g := &fakeGateway{t: t, dc: dc, addr: ln.Addr().String(), routes: routes, conns: map[net.Conn]bool{},
		thawed: make(chan struct{})}
	g.dial = func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }
	close(g.thawed)
	g.serve(ln)
	t.Cleanup(g.stop)
	return g
}

func (g *fakeGateway) serve(ln net.Listener) {
	g.mu.Lock()
	g.ln = ln
	g.mu.Unlock()
	g.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.relay(c) })
		}
	})
}

// stop closes the listener and all connections, like a killed process.
func (g *fakeGateway) stop() {
	g.freeze(false)
	g.mu.Lock()
	if g.ln != nil {
		g.ln.Close()
		g.ln = nil
	}
	for c := range g.conns {
		c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// restart listens on the same address again.
func (g *fakeGateway) restart() {
	g.t.Helper()
	ln, err := net.Listen("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.serve(ln)
}

// freeze(true) makes the gateway accept connections without copying bytes, like
// a stopped process. freeze(false) makes the gateway continue.
func (g *fakeGateway) freeze(frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if frozen && !g.frozen {
		g.thawed = make(chan struct{})
	}
	if !frozen && g.frozen {
		close(g.thawed)
	}
	g.frozen = frozen
}

func (g *fakeGateway) waitThawed() {
	g.mu.Lock()
	thawed := g.thawed
	g.mu.Unlock()
	<-thawed
}

// count returns the number of accepted connections.
func (g *fakeGateway) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.accepted
}

// track registers c for stop. It closes c and returns false after stop.
func (g *fakeGateway) track(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln == nil {
		c.Close()
		return false
	}
	g.conns[c] = true
	return true
}

// relay forwards the connection c.
func (g *fakeGateway) relay(c net.Conn) {
	defer c.Close()
	if !g.track(c) {
		return
	}
	g.mu.Lock()
	g.accepted++
	g.mu.Unlock()
	g.waitThawed()
	sni, hello := peekSNI(c)
	addr := g.route(sni)
	if addr == "" {
		return
	}
	out, err := g.dial(addr)
	if err != nil {
		return
	}
	defer out.Close()
	if !g.track(out) {
		return
	}
	if _, err := out.Write(hello); err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.copy(out, c) })
	g.copy(c, out)
	wg.Wait()
}

// route returns the address of a server for sni, or "" if there is none. The
// name server.<dc> selects the servers of dc in turn.
func (g *fakeGateway) route(sni string) string {
	if name, ok := strings.CutSuffix(sni, "."+tlsutil.DefaultDomain); ok && g.remoteServers != nil {
		return g.remoteServers[name[strings.LastIndex(name, ".")+1:]] // by the last label, the datacenter
	}
	node, ok := strings.CutSuffix(sni, "server."+g.dc+"."+tlsutil.DefaultDomain)
	if !ok || len(g.routes) == 0 {
		return ""
	}
	if node != "" {
		return g.routes[strings.TrimSuffix(node, ".")]
	}
	names := slices.Sorted(maps.Keys(g.routes))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextServer++
	return g.routes[names[(g.nextServer-1)%len(names)]]
}

func (g *fakeGateway) copy(dst, src net.Conn) {
	buf := make([]byte, 4096)
	for {
		g.waitThawed()
		n, err := src.Read(buf)
		g.waitThawed()
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				src.Close()
				return
			}
		}
		if err != nil {
			dst.Close() // the fake gateway has no half-close
			return
		}
	}
}

// peekConn records the bytes that are read. Writes fail.
type peekConn struct {
	net.Conn
	raw bytes.Buffer
}

func (p *peekConn) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	p.raw.Write(b[:n])
	return n, err
}

func (p *peekConn) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// peekSNI reads the ClientHello of c. It returns the SNI and all read bytes.
func peekSNI(c net.Conn) (sni string, hello []byte) {
	p := &peekConn{Conn: c}
	_ = tls.Server(p, &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		sni = info.ServerName
		return nil, errors.New("SNI is known")
	}}).Handshake()
	return sni, p.raw.Bytes()
}
