// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestMaxRatePerSource(t *testing.T) {
	l := NewListener("wan")
	l.SetPolicy(Policy{MaxRatePerSource: 5})
	now := time.Now()
	admitted := func(addr string, tries, want int) {
		t.Helper()
		n := 0
		for range tries {
			reason, ok := l.admit(netip.MustParseAddr(addr), now)
			if ok {
				n++
			} else if reason != ReasonSourceRate {
				t.Fatalf("admit(%s) = %v, want %v", addr, reason, ReasonSourceRate)
			}
		}
		if n != want {
			t.Errorf("admit(%s): %d of %d admitted, want %d", addr, n, tries, want)
		}
	}
	admitted("192.0.2.1", 60, 50) // the burst
	admitted("192.0.2.2", 3, 3)
	admitted("2001:db8::1", 60, 50)
	admitted("2001:db8::ffff:1", 1, 0) // the same /64
	now = now.Add(time.Second)
	admitted("192.0.2.1", 20, 5)
	l.SetPolicy(Policy{MaxRatePerSource: 5, MaxPerSource: 1000}) // the same rate: buckets stay
	admitted("192.0.2.1", 1, 0)
	l.SetPolicy(Policy{})
	admitted("192.0.2.1", 100, 100)
}

// The memory for sources is bounded, and a source that is active keeps its
// bucket when the generations change.
func TestMaxRatePerSource_ManySources(t *testing.T) {
	r := sourceRates{perSecond: 1}
	now, active := time.Now(), netip.MustParseAddr("192.0.2.1")
	for range rateBurst {
		r.allow(active, now)
	}
	for i := range uint32(3 * maxRatedSources) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], 10<<24|i)
		if !r.allow(netip.AddrFrom4(b), now) {
			t.Fatalf("allow() of new source %d = false, want true", i)
		}
		if i%(maxRatedSources/2) == 0 && r.allow(active, now) {
			t.Fatalf("allow() of the active source after %d others = true, want false", i)
		}
	}
	if len(r.young) > maxRatedSources || len(r.old) > maxRatedSources {
		t.Errorf("remembered sources = %d and %d, want at most %d each", len(r.young), len(r.old), maxRatedSources)
	}
}

func testSourceRate(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable}, Route{Match: "rate.example", To: []string{addr}})
	p.listener.SetPolicy(Policy{MaxRatePerSource: 1})
	const tries = 50
	begin, served := time.Now(), 0
	for range tries {
		if c, ok := p.from(t, "127.0.0.1", "rate.example"); ok {
			served++
			c.Close()
		}
	}
	if most := rateBurst + 1 + int(time.Since(begin)/time.Second); served < rateBurst || served > most {
		t.Errorf("connections served at once = %d, want %d to %d", served, rateBurst, most)
	}
	if _, ok := p.from(t, "127.0.0.2", "rate.example"); !ok {
		t.Error("connection of another source: served = false, want true")
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonSourceRate: uint64(tries - served)})
}

// A client that stops in the middle of many ClientHellos displaces its own
// connections, and not those of another client.
func testUnfinishedHellos(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, HelloTimeout: time.Minute, Drain: -1},
		Route{Match: "x.example", To: []string{addr}})
	const limit = 4
	p.unfinished.mu.Lock()
	p.unfinished.max = limit
	p.unfinished.mu.Unlock()
	hello := helloFor(t, "x.example")
	open := func(local string) net.Conn {
		d := net.Dialer{Timeout: waitLimit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
		c, err := d.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(2 * waitLimit))
		c.Write(hello[:100])
		return c
	}
	var flood []net.Conn
	for i := range limit {
		flood = append(flood, open("127.0.0.1"))
		testutil.Eventually(t, waitLimit, func() bool { return p.unfinished.len() == i+1 }, "%d unfinished hellos", i+1)
	}
	for i := range 2 {
		c := open("127.0.0.2")
		if _, err := flood[i].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read() of the oldest connection of the flood = %v, want %v", err, io.EOF)
		}
		c.Write(hello[100:])
		if n, err := c.Read(make([]byte, 1)); n != 1 {
			t.Errorf("Read() of the other client = %d, %v; want the answer of the upstream", n, err)
		}
		hello = withNewRandom(hello)
		flood = append(flood, open("127.0.0.1"))
		testutil.Eventually(t, waitLimit, func() bool { return p.unfinished.len() == limit }, "unfinished hellos at the limit")
	}
	if n := p.unfinished.len(); n != limit {
		t.Errorf("unfinished hellos = %d, want %d", n, limit)
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonLimit: 2})
	if n := p.unfinished.len(); n != 0 {
		t.Errorf("unfinished hellos after Run = %d, want 0", n)
	}
}

// The source with most unfinished ClientHellos gives way, and among equal
// sources that with the oldest one.
func TestUnfinishedHellos_Order(t *testing.T) {
	u := newUnfinishedHellos(5)
	begin := time.Now()
	var closed []int
	var all []*unfinishedHello
	add := func(addr string) {
		n := len(all)
		h := &unfinishedHello{begin: begin.Add(time.Duration(n)), close: func(error) { closed = append(closed, n) }}
		all = append(all, h)
		u.add(h, netip.MustParseAddr(addr))
	}
	for _, addr := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.2", "192.0.2.3"} {
		add(addr)
	}
	for i, tt := range []struct {
		addr string
		want int
	}{
		{"192.0.2.4", 1}, // .2 has 3, and its oldest gives way
		{"192.0.2.5", 2}, // .2 has 2
		{"192.0.2.6", 0}, // all have 1: the oldest of all
		{"2001:db8::1", 3},
		{"2001:db8::2", 4},
		{"2001:db8::3", 8}, // the /64 has 2
	} {
		if add(tt.addr); len(closed) != i+1 || closed[i] != tt.want {
			t.Fatalf("closed after %s = %v, want %d", tt.addr, closed, tt.want)
		}
	}
	for _, h := range all {
		u.remove(h)
		u.remove(h)
	}
	if u.len() != 0 || len(u.bySource) != 0 || len(u.order) != 0 {
		t.Errorf("after remove of all: %d hellos, %d sources, want none", u.len(), len(u.bySource))
	}
}
