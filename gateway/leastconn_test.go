// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"crypto/tls"
	"io"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// Connections are spread evenly over three upstreams. An upstream with many
// connections gets fewer new ones. One that dies is avoided, and catches up
// when it is back.
func testLeastConnections(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	const a, b, c = "srv1", "srv2", "srv3"
	to := map[string]string{a: tlsUpstream(t, named(a)), b: tlsUpstream(t, named(b))}
	third := listen(t)
	to[c] = third.Addr().String()
	stopThird := serveNamed(t, third, c)
	all := []string{to[a], to[b], to[c]}
	p := start(t, Config{engine: e, attemptDelay: time.Minute, ejectFor: 2 * time.Second},
		Route{Match: "all.example", To: all}, Route{Match: "one.example", To: []string{to[a]}})
	p.setSlow(all...)
	conns := map[string][]*tls.Conn{}
	connect := func(sni string, n int) {
		t.Helper()
		for range n {
			conn, name := p.connect(t, sni, len(a))
			conns[name] = append(conns[name], conn)
		}
	}
	check := func(what string, na, nb, nc int) {
		t.Helper()
		want := map[string]int{}
		for name, n := range map[string]int{a: na, b: nb, c: nc} {
			if len(conns[name]) != n {
				t.Errorf("%s: %s has %d connections, want %d", what, name, len(conns[name]), n)
			}
			if n > 0 {
				want[to[name]] = n
			}
		}
		if got := p.UpstreamConns(); !maps.Equal(got, want) {
			t.Errorf("%s: UpstreamConns() = %v, want %v", what, got, want)
		}
	}
	connect("all.example", 12)
	check("evenly", 4, 4, 4)
	connect("one.example", 5)
	check("one upstream has a second route", 9, 4, 4)
	connect("all.example", 10)
	check("the others catch up", 9, 9, 9)

	end := func(name string) {
		for _, conn := range conns[name] {
			conn.Close()
		}
		conns[name] = nil
	}
	end(b)
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 18 }, "18 active connections")
	connect("all.example", 6)
	check("ended connections do not count", 9, 6, 9)

	stopThird()
	end(c)
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 15 }, "15 active connections")
	connect("all.example", 9)
	check("one is dead", 12, 12, 0)

	third, err := net.ListenTCP("tcp", third.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer serveNamed(t, third, c)()
	testutil.Eventually(t, waitLimit, func() bool { // a connection starts the probe
		conn, name := p.connect(t, "all.example", len(a))
		conn.Close()
		return name == c
	}, "a connection to the upstream that is back")
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 24 }, "24 active connections")
	connect("all.example", 15)
	check("it is back", 13, 13, 13)
	p.stop()
	p.refused(t, nil)
}

// serveNamed serves ln as tlsUpstream does, until stop.
func serveNamed(t testing.TB, ln *net.TCPListener, name string) (stop func()) {
	t.Helper()
	cert := testCert(t)
	var mu sync.Mutex
	var open []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
				s.Write([]byte(name))
				io.Copy(io.Discard, s)
			})
		}
	})
	stop = sync.OnceFunc(func() {
		ln.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}
