// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// openSilent opens n connections that send nothing, or half a ClientHello.
func openSilent(t *testing.T, addr string, n int, half bool) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if half {
			if _, err := c.Write([]byte{22, 3, 1, 2, 0, 1, 0}); err != nil {
				t.Fatal(err)
			}
		}
		conns[i] = c
	}
	return conns
}

func TestMux_ShedsSilentHandshakes(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	for name, half := range map[string]bool{"silent": false, "half a ClientHello": true} {
		t.Run(name, func(t *testing.T) {
			b := newMuxFixture(t, a, func(c *MuxConfig) { c.handshakeTimeout = 20 * time.Second }) // longer than the test
			idle := openSilent(t, b.addr, 1000, half)
			start := time.Now()
			c, err := tls.Dial("tcp", b.addr, a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			t.Logf("accepted after %v", took)
			if limit := b.m.cfg.handshakeTimeout / 2; took > limit {
				t.Errorf("accepted after %v, want at most %v", took, limit)
			}
			if n := b.m.Stats().Handshaking; n > b.m.cfg.maxHandshakes {
				t.Errorf("Handshaking = %d, above MaxHandshakes", n)
			}
			shed := uint64(len(idle) + 1 - b.m.cfg.maxHandshakes)
			testutil.Eventually(t, 5*time.Second, func() bool { return b.m.Stats().Refused[string(crowded)] == shed },
				"the silent connections to be shed")
			if log := b.log.String(); strings.Count(log, refusalText[crowded]) != 1 {
				t.Errorf("log:\n%s", log)
			}
			if !isClosedByPeer(idle[0]) {
				t.Error("the oldest silent connection is still open")
			}
			b.stop()
			if n := b.m.Stats().Handshaking; n != 0 {
				t.Errorf("Handshaking = %d after Run, want 0", n)
			}
		})
	}
}

// More peers than MaxHandshakes connect at once, and all are accepted one after
// the other. The grace periods are long, because on a busy machine some of the
// test's own handshakes would be overdue.
func TestMux_ManyHandshakesAtOnce(t *testing.T) {
	a := newAuthority(t)
	b := newMuxFixtureOn(t, a, listen(t), func(c *MuxConfig) { c.maxHandshakes, c.handshakeTimeout = 4, time.Minute },
		func(m *Mux) { m.handshakes.helloGrace, m.handshakes.grace = time.Minute, time.Minute })
	id := a.server("srv2", "dc1")
	const peers = 60
	errc := make(chan error, peers)
	for range peers {
		go func() {
			c, err := tls.Dial("tcp", b.addr, id.ClientConfig("srv1.server.dc1.wanfed", "all/1"))
			if err == nil {
				c.SetDeadline(time.Now().Add(time.Minute))
				_, err = io.ReadFull(c, make([]byte, 2))
				c.Close()
			}
			errc <- err
		}()
	}
	for range peers {
		select {
		case <-b.got:
		case <-time.After(time.Minute):
			t.Fatalf("a peer was not accepted; refused: %v", b.m.Stats().Refused)
		}
		if err := <-errc; err != nil {
			t.Error(err)
		}
	}
	if got := b.m.Stats().Refused; len(got) != 0 {
		t.Errorf("Refused = %v, want none", got)
	}
}

// fromAddr is a connection with a given remote address.
type fromAddr struct {
	net.Conn
	addr net.Addr
}

func (c fromAddr) RemoteAddr() net.Addr { return c.addr }
func (c fromAddr) Close() error         { return nil }

func TestHandshakeLimit_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHandshakeLimit(5)
		var order []*handshake
		add := func(ip string) *handshake {
			t.Helper()
			sh := s.acquire(t.Context(), fromAddr{addr: &net.TCPAddr{IP: net.ParseIP(ip)}})
			s.start(sh)
			order = append(order, sh)
			return sh
		}
		gone := func() (which []int) {
			for i, sh := range order {
				if sh.shed {
					which = append(which, i)
				}
			}
			return which
		}
		start := time.Now()
		want := func(at time.Duration, which ...int) {
			t.Helper()
			if got := gone(); !slices.Equal(got, which) || time.Since(start) != at {
				t.Fatalf("after %v: shed %v, want %v after %v", time.Since(start), got, which, at)
			}
		}
		for _, ip := range []string{"192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"} { // 0 to 3
			add(ip)
		}
		s.noteHello(add("192.0.2.2")) // 4
		add("192.0.2.3")              // 5: waits until 0 to 3 are overdue; then one of the /64 with three is shed
		want(helloGrace, 1)
		add("192.0.2.4") // 6: that /64 still has two
		want(helloGrace, 1, 2)
		add("192.0.2.5") // 7: all sources have one, and 0 is the oldest
		want(helloGrace, 0, 1, 2)
		s.noteHello(order[3])
		s.noteHello(order[5])
		s.end(order[6])
		s.noteHello(add("192.0.2.6")) // 8: there is room
		want(helloGrace, 0, 1, 2)
		add("192.0.2.7") // 9: 7 is the only one without a ClientHello, and becomes overdue
		want(2*helloGrace, 0, 1, 2, 7)
		s.end(order[9])
		s.noteHello(add("192.0.2.7")) // 10
		for range 2 {                 // all have a ClientHello: 3 and 4 are the oldest when a second has passed
			s.noteHello(add("192.0.2.8")) // 11, 12
		}
		want(handshakeGrace, 0, 1, 2, 3, 4, 7)
		for _, sh := range order {
			if sh.element != nil {
				s.end(sh)
			}
		}
		if s.len() != 0 || len(s.sources) != 0 {
			t.Errorf("%d handshakes, %d sources at the end", s.len(), len(s.sources))
		}
	})
}

func TestSourceOf(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
	} {
		if got := sourceOf(&net.TCPAddr{IP: net.ParseIP(in)}); got != netip.MustParsePrefix(want) {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
	for _, a := range []net.Addr{nameAddr("pipe"), nil, &net.TCPAddr{}} {
		if got := sourceOf(a); got.IsValid() {
			t.Errorf("%v: %v", a, got)
		}
	}
}
