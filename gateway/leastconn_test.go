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

// New connections go to the upstream with the fewest connections. An upstream
// that stops receives no connections until it works again.
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
	check := func(what string, na, nb, nc int) { // the number of connections to each upstream
		t.Helper()
		want := map[string]int{}
		for name, n := range map[string]int{a: na, b: nb, c: nc} {
			if len(conns[name]) != n {
				t.Errorf("%s: connections to %s = %d, want %d", what, name, len(conns[name]), n)
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
	check("connections to all upstreams", 4, 4, 4)
	connect("one.example", 5)
	check("more connections to one upstream", 9, 4, 4)
	connect("all.example", 10)
	check("again to all upstreams", 9, 9, 9)

	end := func(name string) {
		for _, conn := range conns[name] {
			conn.Close()
		}
		conns[name] = nil
	}
	end(b)
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 18 }, "18 active connections")
	connect("all.example", 6)
	check("after connections ended", 9, 6, 9)

	stopThird()
	end(c)
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 15 }, "15 active connections")
	connect("all.example", 9)
	check("one upstream is stopped", 12, 12, 0)

	third, err := net.ListenTCP("tcp", third.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer serveNamed(t, third, c)()
	testutil.Eventually(t, waitLimit, func() bool { // a connection starts the probe
		conn, name := p.connect(t, "all.example", len(a))
		conn.Close()
		return name == c
	}, "a connection to the upstream that works again")
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 24 }, "24 active connections")
	connect("all.example", 15)
	check("all upstreams work again", 13, 13, 13)
	p.stop()
	p.refused(t, nil)
}

// serveNamed serves ln until stop, with a TLS server that sends name.
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
