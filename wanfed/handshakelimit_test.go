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
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
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

// TestMux_ShedsSilentHandshakes opens 1,000 connections that never complete a
// handshake. A valid client is accepted nevertheless.
func TestMux_ShedsSilentHandshakes(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	for name, half := range map[string]bool{"silent": false, "half a ClientHello": true} {
		t.Run(name, func(t *testing.T) {
			// longer than the test
			b := newMuxFixture(t, a, func(c *MuxConfig) {
				c.handshakeTimeout, c.maxHandshakes = 20*time.Second, 512
			})
			idle := openSilent(t, b.addr, 1000, half)
			start := time.Now()
			if err := dialAllowed(b.addr, a.server("srv2", "dc1"), 20*time.Second); err != nil {
				t.Fatalf("connection of a valid client: %v, want nil", err)
			}
			if got, limit := time.Since(start), b.m.cfg.handshakeTimeout/2; got > limit {
				t.Errorf("valid client was accepted after %v, want at most %v", got, limit)
			}
			if got, limit := b.m.Stats().Handshaking, b.m.cfg.maxHandshakes; got > limit {
				t.Errorf("Stats().Handshaking = %d, want at most %d", got, limit)
			}
			atLeast := uint64(len(idle) + 1 - b.m.cfg.maxHandshakes) // and those above maxPerSource that were overdue
			testutil.Eventually(t, 5*time.Second, func() bool { return b.m.Stats().Refused[refusedShed.id] >= atLeast },
				"%d silent connections to be shed", atLeast)
			if log := b.log.String(); strings.Count(log, refusedShed.text) != 1 {
				t.Errorf("log = %q, want one line %q", log, refusedShed.text)
			}
			if !isClosedByPeer(idle[0]) {
				t.Error("the oldest silent connection is open, want closed")
			}
			b.stop()
			if got := b.m.Stats().Handshaking; got != 0 {
				t.Errorf("Stats().Handshaking after Run = %d, want 0", got)
			}
		})
	}
}

// dialAllowed connects to the protocol all/1 of a muxFixture, reads its two
// bytes within limit and closes the connection.
func dialAllowed(addr string, id *tlsutil.Identity, limit time.Duration) error {
	c, err := tls.Dial("tcp", addr, id.ClientConfig("srv1.server.dc1.wanfed", "all/1"))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	_, err = io.ReadFull(c, make([]byte, 2))
	return err
}

// TestMux_ManyHandshakesAtOnce connects 60 clients at once to a Mux that allows
// 4 concurrent handshakes. All clients are accepted, one after the other. The
// grace periods are long, because handshakes on a busy machine may be slow.
func TestMux_ManyHandshakesAtOnce(t *testing.T) {
	a := newAuthority(t)
	b := newMuxFixtureOn(t, a, listen(t), func(c *MuxConfig) { c.maxHandshakes, c.handshakeTimeout = 4, time.Minute },
		func(m *Mux) { m.handshakes.helloGrace, m.handshakes.grace = time.Minute, time.Minute })
	id := a.server("srv2", "dc1")
	const clients = 60
	errc := make(chan error, clients)
	for range clients {
		go func() { errc <- dialAllowed(b.addr, id, time.Minute) }()
	}
	for i := range clients {
		select {
		case <-b.peers:
		case <-time.After(time.Minute):
			t.Fatalf("accepted clients = %d, want %d; Stats().Refused = %v", i, clients, b.m.Stats().Refused)
		}
		if err := <-errc; err != nil {
			t.Errorf("connection of a client: %v, want nil", err)
		}
	}
	if got := b.m.Stats().Refused; len(got) != 0 {
		t.Errorf("Stats().Refused = %v, want none", got)
	}
}

// fakeConn is a connection with a given remote address.
type fakeConn struct {
	net.Conn
	addr net.Addr
}

func (c fakeConn) RemoteAddr() net.Addr { return c.addr }
func (c fakeConn) Close() error         { return nil }

// TestHandshakeLimit_Order checks at each step which handshakes were shed. A
// handshake is called by its number, in the order of add.
func TestHandshakeLimit_Order(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		limit := newHandshakeLimit(5)
		var all []*handshake
		add := func(ip string) *handshake {
			hs := limit.acquire(t.Context(), fakeConn{addr: &net.TCPAddr{IP: net.ParseIP(ip)}})
			limit.start(hs)
			all = append(all, hs)
			return hs
		}
		start := time.Now()
		checkShed := func(after time.Duration, want ...int) {
			t.Helper()
			var got []int
			for i, hs := range all {
				if hs.shed {
					got = append(got, i)
				}
			}
			if took := time.Since(start); !slices.Equal(got, want) || took != after {
				t.Fatalf("shed after %v: handshakes %v, want %v after %v", took, got, want, after)
			}
		}
		for _, ip := range []string{"192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"} { // 0 to 3
			add(ip)
		}
		limit.noteHello(add("192.0.2.2")) // 4
		add("192.0.2.3")                  // 5 waits until 0 to 3 are overdue. 1 to 3 have one source, 2001:db8::/64.
		checkShed(helloGrace, 1)
		add("192.0.2.4") // 6: the /64 still has two handshakes
		checkShed(helloGrace, 1, 2)
		add("192.0.2.5") // 7: every source has one handshake, and 0 is the oldest
		checkShed(helloGrace, 0, 1, 2)
		limit.noteHello(all[3])
		limit.noteHello(all[5])
		limit.end(all[6])
		limit.noteHello(add("192.0.2.6")) // 8 takes the free slot
		checkShed(helloGrace, 0, 1, 2)
		add("192.0.2.7") // 9 waits until 7, the only handshake without a ClientHello, is overdue
		checkShed(2*helloGrace, 0, 1, 2, 7)
		limit.end(all[9])
		limit.noteHello(add("192.0.2.7")) // 10
		// 11 and 12: all have a ClientHello, and 3 and 4 are the first that are
		// overdue
		for range 2 {
			limit.noteHello(add("192.0.2.8"))
		}
		checkShed(handshakeGrace, 0, 1, 2, 3, 4, 7)
		for _, hs := range slices.Clone(limit.open) {
			limit.end(hs)
		}
		if got := limit.len(); got != 0 {
			t.Errorf("len() after the end of all handshakes = %d, want 0", got)
		}
	})
}

func TestSourceOf(t *testing.T) {
	for ip, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64",
	} {
		if got := sourceOf(&net.TCPAddr{IP: net.ParseIP(ip)}); got != netip.MustParsePrefix(want) {
			t.Errorf("sourceOf(%s) = %v, want %s", ip, got, want)
		}
	}
	for _, addr := range []net.Addr{nameAddr("pipe"), nil, &net.TCPAddr{}} {
		if got := sourceOf(addr); got.IsValid() {
			t.Errorf("sourceOf(%v) = %v, want the zero Prefix", addr, got)
		}
	}
}

// A source with a crowd of handshakes gives way at once to other sources, but
// not to its own next handshake.
func TestHandshakeLimit_Crowd(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		limit := newHandshakeLimit(2 * crowd)
		add := func(ip string) (*handshake, time.Duration) {
			begin := time.Now()
			hs := limit.acquire(t.Context(), fakeConn{addr: &net.TCPAddr{IP: net.ParseIP(ip)}})
			limit.start(hs)
			return hs, time.Since(begin)
		}
		var flood []*handshake
		for range 2 * crowd {
			hs, _ := add("192.0.2.1")
			flood = append(flood, hs)
		}
		for i := range 3 {
			if _, took := add("192.0.2.2"); took != 0 || !flood[i].shed || flood[i+1].shed {
				t.Errorf("handshake %d of another source: waited %v, want that only the oldest of the crowd is shed", i, took)
			}
		}
		if _, took := add("192.0.2.1"); took != helloGrace {
			t.Errorf("next handshake of the crowd waited %v, want %v", took, helloGrace)
		}
	})
}

// A source with more than maxPerSource handshakes loses those older than
// helloGrace, also after their ClientHello, and only those, before the limit of all
// handshakes is reached. The others of the source and those of another source stay.
func TestHandshakeLimit_PerSource(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		limit := newHandshakeLimit(4 * maxPerSource)
		add := func(ip string) *handshake {
			hs := limit.acquire(t.Context(), fakeConn{addr: &net.TCPAddr{IP: net.ParseIP("10.0.0.1")}}) // a gateway
			limit.start(hs)
			limit.setSource(hs, netip.MustParsePrefix(ip+"/32"))
			limit.noteHello(hs)
			return hs
		}
		other := add("192.0.2.2")
		for range maxPerSource + 10 {
			add("192.0.2.1")
		}
		if n := limit.len(); n != maxPerSource+11 {
			t.Errorf("%d handshakes, want %d: none is overdue", n, maxPerSource+11)
		}
		time.Sleep(helloGrace)
		for range 20 {
			add("192.0.2.1")
		}
		if n := limit.len(); n != maxPerSource+11 || other.shed {
			t.Errorf("%d handshakes, that of another source shed: %v; want %d and false", n, other.shed, maxPerSource+11)
		}
	})
}
