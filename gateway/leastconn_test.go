// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// spread opens connections through a proxy and counts them by upstream.
type spread struct {
	*running
	to    map[string]string // addresses of the upstreams by name
	conns map[string][]*tls.Conn
}

// open opens n connections.
func (s *spread) open(t *testing.T, sni string, n int) {
	t.Helper()
	for range n {
		conn, name := s.connect(t, sni, len("srv1"))
		s.conns[name] = append(s.conns[name], conn)
	}
}

// end closes all connections to one upstream, and waits until left remain.
func (s *spread) end(t *testing.T, name string, left uint64) {
	t.Helper()
	for _, conn := range s.conns[name] {
		conn.Close()
	}
	delete(s.conns, name)
	s.waitActive(t, left)
}

func (s *spread) waitActive(t *testing.T, n uint64) {
	t.Helper()
	testutil.Eventually(t, waitLimit, func() bool { return s.listener.Stats().Active == n }, "active connections")
}

// check compares the numbers of connections to srv1, srv2 and srv3.
func (s *spread) check(t *testing.T, what string, want ...int) {
	t.Helper()
	addrs := map[string]int{}
	for i, n := range want {
		name := fmt.Sprintf("srv%d", i+1)
		if got := len(s.conns[name]); got != n {
			t.Errorf("%s: connections to %s = %d, want %d", what, name, got, n)
		}
		if n > 0 {
			addrs[s.to[name]] = n
		}
	}
	if got := s.UpstreamConns(); !maps.Equal(got, addrs) {
		t.Errorf("%s: UpstreamConns() = %v, want %v", what, got, addrs)
	}
}

// New connections go to the upstream with the fewest connections. An upstream
// that stops receives no connections until it works again.
func testLeastConnections(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	third := listen(t)
	to := map[string]string{
		"srv1": tlsUpstream(t, named("srv1")), "srv2": tlsUpstream(t, named("srv2")), "srv3": third.Addr().String(),
	}
	stopThird := serveNamed(t, third, "srv3")
	all := []string{to["srv1"], to["srv2"], to["srv3"]}
	p := start(t, Config{portable: e == portable, attemptDelay: time.Minute, ejectFor: 2 * time.Second},
		Route{Match: "all.example", To: all}, Route{Match: "one.example", To: all[:1]})
	p.setSlow(all...)
	s := &spread{running: p, to: to, conns: map[string][]*tls.Conn{}}
	s.open(t, "all.example", 12)
	s.check(t, "connections to all upstreams", 4, 4, 4)
	s.open(t, "one.example", 5)
	s.check(t, "more connections to one upstream", 9, 4, 4)
	s.open(t, "all.example", 10)
	s.check(t, "again to all upstreams", 9, 9, 9)
	s.end(t, "srv2", 18)
	s.open(t, "all.example", 6)
	s.check(t, "after connections ended", 9, 6, 9)
	stopThird()
	s.end(t, "srv3", 15)
	s.open(t, "all.example", 9)
	s.check(t, "one upstream is stopped", 12, 12, 0)

	third, err := net.ListenTCP("tcp", third.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer serveNamed(t, third, "srv3")()
	testutil.Eventually(t, waitLimit, func() bool { // a connection starts the probe
		conn, name := p.connect(t, "all.example", len("srv1"))
		conn.Close()
		return name == "srv3"
	}, "a connection to the upstream that works again")
	s.waitActive(t, 24)
	s.open(t, "all.example", 15)
	s.check(t, "all upstreams work again", 13, 13, 13)
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
