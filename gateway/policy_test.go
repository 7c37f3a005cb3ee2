// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func prefixes(t testing.TB, list ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestPolicy(t *testing.T) {
	for _, tt := range []struct {
		allow, deny []string
		addr        string
		want        bool
	}{
		{nil, nil, "192.0.2.1", true},
		{[]string{"192.0.2.0/24"}, nil, "192.0.2.255", true},
		{[]string{"192.0.2.0/24"}, nil, "192.0.3.0", false},
		{[]string{"192.0.2.7/24"}, nil, "192.0.2.255", true}, // host bits are ignored
		{[]string{"192.0.2.0/24"}, nil, "::ffff:192.0.2.1", true},
		{[]string{"::ffff:192.0.2.0/120"}, nil, "192.0.2.1", true},
		{[]string{"192.0.2.0/24"}, nil, "2001:db8::1", false},
		{[]string{"0.0.0.0/0"}, nil, "2001:db8::1", false},
		{[]string{"::/0"}, nil, "192.0.2.1", false},
		{[]string{"::/0"}, nil, "fe80::1%eth0", true},
		{nil, []string{"192.0.2.0/24", "2001:db8::/32"}, "192.0.2.1", false},
		{nil, []string{"192.0.2.0/24", "2001:db8::/32"}, "2001:db8:1::1", false},
		{nil, []string{"192.0.2.0/24", "2001:db8::/32"}, "2001:db9::1", true},
		{nil, []string{"fe80::/10"}, "fe80::1%eth0", false},
		{[]string{"10.0.0.0/8"}, []string{"10.1.0.0/16"}, "10.1.2.3", false},
		{[]string{"10.1.2.3/32"}, []string{"10.0.0.0/8"}, "10.1.2.3", false},
		{[]string{"10.0.0.0/8", "172.16.0.0/12", "192.168.1.1/32"}, nil, "192.168.1.1", true},
	} {
		s := NewListener("wan")
		s.SetPolicy(Policy{Allow: prefixes(t, tt.allow...), Deny: prefixes(t, tt.deny...)})
		reason, ok := s.admit(netip.MustParseAddr(tt.addr), time.Now())
		if ok != tt.want || !ok && reason != ReasonDenied {
			t.Errorf("admit(%s) with allow %v, deny %v = %v, %v; want %v", tt.addr, tt.allow, tt.deny, reason,
				ok, tt.want)
		}
	}
}

// A connection over a Unix socket has no IP address.
func TestPolicy_NoAddress(t *testing.T) {
	s := NewListener("wan")
	if reason, ok := s.admit(netip.Addr{}, time.Now()); !ok {
		t.Errorf("admit() without an address = %v, %v; want true", reason, ok)
	}
	if n := s.Stats().Sources; n != 0 {
		t.Errorf("Sources after admit() without an address = %d, want 0", n)
	}
	s.release(netip.Addr{})
	s.SetPolicy(Policy{Allow: prefixes(t, "::/0")})
	if reason, ok := s.admit(netip.Addr{}, time.Now()); ok || reason != ReasonDenied {
		t.Errorf("admit() without an address, Allow has networks = %v, %v; want %v, false", reason, ok, ReasonDenied)
	}
}

func TestMaxPerSource(t *testing.T) {
	s := NewListener("wan")
	s.SetPolicy(Policy{MaxPerSource: 2})
	admit := func(addr string, want bool) {
		t.Helper()
		if reason, ok := s.admit(netip.MustParseAddr(addr), time.Now()); ok != want || !ok && reason != ReasonSourceLimit {
			t.Errorf("admit(%s) = %v, %v; want %v", addr, reason, ok, want)
		}
	}
	admit("192.0.2.1", true)
	admit("::ffff:192.0.2.1", true)
	admit("192.0.2.1", false)
	admit("192.0.2.2", true)
	admit("2001:db8:1:2::1", true)
	admit("2001:db8:1:2:ffff::1", true)
	admit("2001:db8:1:2::3", false)
	admit("2001:db8:1:3::3", true)
	if n := s.Stats().Sources; n != 4 {
		t.Errorf("Sources = %d, want 4", n)
	}
	s.SetPolicy(Policy{}) // open connections still count
	admit("192.0.2.1", true)
	s.SetPolicy(Policy{MaxPerSource: 3})
	admit("192.0.2.1", false)
	for _, a := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8:1:2::1", "2001:db8:1:2::1",
		"2001:db8:1:3::9"} {
		s.release(netip.MustParseAddr(a))
	}
	if n := s.Stats().Sources; n != 0 {
		t.Errorf("Sources = %d, want 0", n)
	}
	admit("192.0.2.1", true)
}

// from connects to the proxy from a local address. It reports whether the
// connection was served.
func (r *running) from(t testing.TB, local, sni string) (*tls.Conn, bool) {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	c, err := tls.DialWithDialer(&d, "tcp", r.addr, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
	if err != nil {
		return nil, false
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c, true
}

func testSourcesOfConnections(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable}, Route{Match: "source.example", To: []string{addr}})
	p.listener.SetPolicy(Policy{Deny: prefixes(t, "127.0.0.3/32"), MaxPerSource: 1})
	a, ok := p.from(t, "127.0.0.1", "source.example")
	if !ok {
		t.Fatal("first connection: served = false, want true")
	}
	for local, want := range map[string]bool{"127.0.0.1": false, "127.0.0.2": true, "127.0.0.3": false} {
		if _, ok := p.from(t, local, "source.example"); ok != want {
			t.Errorf("connection from %s served = %v, want %v", local, ok, want)
		}
	}
	p.refused(t, map[Reason]uint64{ReasonDenied: 1, ReasonSourceLimit: 1})
	if st := p.listener.Stats(); st.Sources != 2 || st.Active != 2 || st.Accepted != 4 {
		t.Errorf("Stats() = %+v, want 2 sources, 2 active, 4 accepted", st)
	}
	a.CloseWrite()
	if b, err := io.ReadAll(a); err != nil || string(b) != "srv1bye" {
		t.Errorf("ReadAll() = %q, %v; want srv1bye", b, err)
	}
	a.Close()
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Sources == 1 }, "one source")
	if _, ok := p.from(t, "127.0.0.1", "source.example"); !ok {
		t.Error("connection after the end of the first one: served = false, want true")
	}
	p.stop()
	if n := p.listener.Stats().Sources; n != 0 {
		t.Errorf("Sources after Run = %d, want 0", n)
	}
}

func testSetMaxConns(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, MaxConns: 1}, Route{Match: "limit.example", To: []string{addr}})
	p.connect(t, "limit.example", 4)
	if _, ok := p.from(t, "127.0.0.1", "limit.example"); ok {
		t.Error("connection above the limit: served = true, want false")
	}
	p.SetMaxConns(2)
	p.connect(t, "limit.example", 4)
	p.SetMaxConns(1)
	if _, ok := p.from(t, "127.0.0.1", "limit.example"); ok {
		t.Error("connection above the lower limit: served = true, want false")
	}
	p.refused(t, map[Reason]uint64{ReasonLimit: 2})
}

func testSetDrain(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, Drain: time.Hour}, Route{Match: "drain.example", To: []string{addr}})
	c, _ := p.connect(t, "drain.example", 4)
	stopped := make(chan struct{})
	go func() { p.stop(); close(stopped) }()
	p.waitClosed()
	c.Write([]byte("late"))
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Errorf("read while draining = %v, want nil", err)
	}
	p.SetDrain(0)
	<-stopped
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("read after the drain time = nil, want an error")
	}
}

// BenchmarkAdmit measures the admission of one source with many networks.
func BenchmarkAdmit(b *testing.B) {
	var list []netip.Prefix
	for i := range 1000 {
		list = append(list, netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/%d", i/256, i%256, 16+i%9)))
	}
	s := NewListener("wan")
	s.SetPolicy(Policy{Allow: list, Deny: prefixes(b, "192.0.2.0/24"), MaxPerSource: 100})
	addr := netip.MustParseAddr("10.1.2.3")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.admit(addr, time.Now()); !ok {
			b.Fatalf("admit(%s) = false, want true", addr)
		}
		s.release(addr)
	}
}

// BenchmarkConnection measures connections that end when their upstream has
// answered.
func BenchmarkConnection(b *testing.B) {
	ln := listen(b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Read(buf)
			c.Close()
		}
	}()
	defer func() { ln.Close(); <-done }()
	p := start(b, Config{}, Route{Match: "bench.example", To: []string{ln.Addr().String()}})
	hello := goHello(b, &tls.Config{ServerName: "bench.example"})
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			b.Fatal(err)
		}
		c.(*net.TCPConn).SetLinger(0) // leaves no socket in TIME_WAIT
		c.Write(withNewRandom(hello))
		c.Read(buf)
		c.Close()
	}
}
