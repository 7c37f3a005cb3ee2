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
)

func TestLeastLoadedOrder(t *testing.T) {
	e, now, addrs := &evidence{}, time.Now(), []string{"a", "b", "c"}
	check := func(start int, want string) {
		t.Helper()
		got, _ := e.order(addrs, start, now, 8*time.Second)
		if got[0] != want {
			t.Errorf("from %d on: %v, want %s first", start, got, want)
		}
	}
	open := map[string][]*known{}
	begin := func(addr string) *known {
		k, _, err := e.begin(addr, 0, time.Second, now)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	add := func(addr string) {
		k := begin(addr)
		e.won(k, time.Millisecond)
		open[addr] = append(open[addr], k)
	}
	for n, addr := range addrs { // of equals, each in turn
		check(n, addr)
	}
	for range 3 {
		add("a")
	}
	add("b")
	for n := range addrs {
		check(n, "c")
	}
	check(inOrder, "a")
	waiting := begin("c") // what is being made counts
	check(0, "b")
	check(2, "c")
	e.gaveUp(waiting, false)
	check(0, "c")
	e.noAnswer("c", 0, now, 8*time.Second) // as few as it has, it does not work
	check(2, "b")
	add("b")
	add("b")
	check(0, "a")
	check(1, "b")
	e.noAnswer("a", 0, now, 8*time.Second)
	e.noAnswer("b", 0, now, 8*time.Second)
	check(2, "c") // it failed at the same instant as the others
	e.worked("a", time.Millisecond)
	e.closed(open["b"][0])
	check(1, "a")
}

// TestLeastLoadedOrderByTime has two addresses near by and one far away: among equals those come first.
func TestLeastLoadedOrderByTime(t *testing.T) {
	e, now, addrs := &evidence{}, time.Now(), []string{"a", "b", "c"}
	for range 50 {
		e.worked("a", 2*ms)
		e.worked("b", 40*ms) // within what a is given
		e.worked("c", 80*ms)
	}
	for start, want := range addrs {
		if want == "c" {
			want = "a"
		}
		if got, _ := e.order(addrs, start, now, 8*time.Second); got[0] != want {
			t.Errorf("from %d on: %v", start, got)
		}
	}
	var busy []*known
	for _, addr := range []string{"a", "b"} {
		k, _, _ := e.begin(addr, 0, time.Second, now)
		busy = append(busy, k)
	}
	if got, _ := e.order(addrs, 0, now, 8*time.Second); got[0] != "c" {
		t.Errorf("%v, though c has nothing to do", got)
	}
	e.gaveUp(busy[0], false)
	if got, _ := e.order(addrs, 2, now, 8*time.Second); got[0] != "a" {
		t.Errorf("%v, though a has as little to do as c", got)
	}
}

// testLeastLoaded has connections spread evenly over three upstreams, fewer new ones go to one that holds many, and one that
// died be avoided, then fill up.
func testLeastLoaded(t *testing.T, e Engine) {
	const a, b, c = "srv1", "srv2", "srv3"
	to := map[string]string{a: upstream(t, named(a)), b: upstream(t, named(b))}
	third := listen(t)
	to[c] = third.Addr().String()
	stopThird := serveNamed(t, third, c)
	all := []string{to[a], to[b], to[c]}
	p := start(t, Config{Engine: e, attemptDelay: time.Minute, ejectFor: 2 * time.Second},
		Route{Match: "all.example", To: all}, Route{Match: "one.example", To: []string{to[a]}})
	p.patient(all...)
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
			t.Errorf("%s: the gateway counts %v, want %v", what, got, want)
		}
	}
	connect("all.example", 12)
	check("evenly", 4, 4, 4)
	connect("one.example", 5)
	check("one by its own name", 9, 4, 4)
	connect("all.example", 10)
	check("the others catch up", 9, 9, 9)

	end := func(name string) {
		for _, conn := range conns[name] {
			conn.Close()
		}
		conns[name] = nil
	}
	end(b)
	until(t, func() bool { return p.side.Stats().Active == 18 })
	connect("all.example", 6)
	check("those that ended do not count", 9, 6, 9)

	stopThird()
	end(c)
	until(t, func() bool { return p.side.Stats().Active == 15 })
	connect("all.example", 9)
	check("one is dead", 12, 12, 0)

	third, err := net.ListenTCP("tcp", third.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer serveNamed(t, third, c)()
	until(t, func() bool { // somebody has to come for it to be asked again
		conn, name := p.connect(t, "all.example", len(a))
		conn.Close()
		return name == c
	})
	until(t, func() bool { return p.side.Stats().Active == 24 })
	connect("all.example", 15)
	check("it is back", 13, 13, 13)
	p.stop()
	p.refused(t, nil)
}

// serveNamed is upstream's server for a listener, until stop.
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
