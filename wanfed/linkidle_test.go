// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// serveEchoes runs a server on ln that echoes until silent is set.
func serveEchoes(t *testing.T, a *authority, ln net.Listener, silent *atomic.Bool) {
	t.Helper()
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc2")})
	if err != nil {
		t.Fatal(err)
	}
	m.Handle(ProtoGossip, []tlsutil.Role{tlsutil.RoleServer}, false, func(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
		defer c.Close()
		for buf := make([]byte, 1024); ; {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			for frames := buf[:n]; len(frames) > 0 && !silent.Load(); {
				f, err := decodeFrame(frames)
				if err != nil {
					t.Error(err)
					return
				}
				if f.pool == poolEcho {
					c.Write(frames[:f.size])
				}
				frames = frames[f.size:]
			}
		}
	})
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
}

// An idle link sends few echo requests, but sends one with its next packet.
func TestLink_IdleEchoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.1.1:8300"))
		var silent atomic.Bool
		serveEchoes(t, a, nw.listen("10.0.2.1:8300"), &silent)
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1, tm := n1.tun.Transport(PoolWAN), n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(tm.idleAfter + 3*tm.idleEchoInterval + tm.idleEchoInterval/2)
		if l := n1.tun.Stats().Links[0]; l.ConnectedSince.IsZero() || len(nw.dialed()) != 1 {
			t.Fatalf("idle link: %+v, %d dials; want connected, 1 dial", l, len(nw.dialed()))
		}
		silent.Store(true)
		send(t, t1, "srv1.dc2", "y")
		time.Sleep(4 * MinProbeTimeout) // the replacement is silent too
		if l := n1.tun.Stats().Links[0]; l.LastError != "" || len(nw.dialed()) != 2 {
			t.Errorf("link before: %+v, %d dials", l, len(nw.dialed()))
		}
		time.Sleep(tm.echoTimeout)
		if l := n1.tun.Stats().Links[0]; !strings.Contains(l.LastError, "stopped answering") {
			t.Errorf("link after echoTimeout = %+v, want the error \"stopped answering\"", l)
		}
	})
}

// A path that dies while no packet is sent is detected by the next echo request
// of the idle link.
func TestLink_IdleOnDeadPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.1.1:8300"))
		var silent atomic.Bool
		serveEchoes(t, a, nw.listen("10.0.2.1:8300"), &silent)
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1, tm := n1.tun.Transport(PoolWAN), n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(2 * tm.idleAfter)
		silent.Store(true)
		time.Sleep(tm.idleEchoInterval + tm.echoTimeout)
		if l := n1.tun.Stats().Links[0]; !strings.Contains(l.LastError, "stopped answering") {
			t.Errorf("link = %+v, want the error \"stopped answering\"", l)
		}
	})
}

func TestLink_MaxIdleLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		use := func(c *DialerConfig) { c.DialTCP = nw.dial }
		n1 := newNode(t, a, "srv1", "dc1", use).start(nw.listen("10.0.1.1:8300"), func(tm *limits) { tm.maxIdleLinks = 2 })
		t1, r := n1.tun.Transport(PoolWAN), &AddressBook{Paths: map[string][]Path{}}
		dcs := []string{"dc2", "dc3", "dc4", "dc5"}
		for i, dc := range append(dcs, "dc6") {
			n := newNode(t, a, "srv1", dc, use).start(nw.listen(fmt.Sprintf("10.0.%d.1:8300", 2+i)))
			r.Paths[dc] = []Path{{Addr: n.addr}}
		}
		n1.book.Store(r)
		connected := func() (out []string) {
			for _, l := range n1.tun.Stats().Links {
				if !l.ConnectedSince.IsZero() {
					out = append(out, l.DC)
				}
			}
			return out
		}
		for _, dc := range dcs {
			send(t, t1, "srv1."+dc, "x")
			time.Sleep(time.Second)
		}
		if got := connected(); !slices.Equal(got, dcs) {
			t.Errorf("connected = %v, want all", got)
		}
		send(t, t1, "srv1.dc2", "again")
		time.Sleep(n1.tun.limits.idleAfter + 2*n1.tun.limits.echoInterval)
		if got := connected(); !slices.Equal(got, []string{"dc2", "dc5"}) {
			t.Errorf("connected = %v, want the two that were used last", got)
		}
		for range 2 { // all at once: after some seconds, twice as many as maxIdleLinks may stay
			for _, dc := range append(dcs, "dc6") {
				send(t, t1, "srv1."+dc, "x")
			}
			time.Sleep(time.Second)
		}
		time.Sleep(n1.tun.limits.recentUse + n1.tun.limits.echoInterval)
		if got := connected(); len(got) != 5 {
			t.Errorf("connected = %v, want all five: they were used at the same moment", got)
		}
		send(t, t1, "srv1.dc6", "x")
		time.Sleep(time.Second)
		for _, dc := range dcs {
			send(t, t1, "srv1."+dc, "x")
			time.Sleep(time.Second)
		}
		time.Sleep(n1.tun.limits.recentUse)
		if got := connected(); !slices.Equal(got, dcs) {
			t.Errorf("connected = %v, want all but dc6, which was used first", got)
		}
		if log := n1.log.String(); strings.Contains(log, "WARN") {
			t.Errorf("log:\n%s", log)
		}
	})
}

// When one link detects that a gateway stalls, all links over it probe it at
// once, long before an idle one would send a request.
func TestLink_LateEchoAlertsOtherLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		use := func(c *DialerConfig) { c.DialTCP = nw.dial }
		n1 := newNode(t, a, "srv1", "dc1", use).start(nw.listen("10.0.1.1:8300"))
		r, far := &AddressBook{Paths: map[string][]Path{}}, map[string]string{}
		for i, dc := range []string{"dc2", "dc3", "dc4"} {
			far[dc] = newNode(t, a, "srv1", dc, use).start(nw.listen(fmt.Sprintf("10.0.%d.1:8300", 2+i))).addr
		}
		var gws []*fakeGateway
		for _, addr := range []string{"10.0.1.101:8443", "10.0.1.102:8443"} {
			g := newFakeGateway(t, nw.listen(addr), "dc1", nil)
			g.remoteServers, g.dial = far, func(addr string) (net.Conn, error) { return nw.dial(t.Context(), addr) }
			gws = append(gws, g)
		}
		via := func(i int) Path { return Path{Addr: gws[i].addr, Via: "local gateway", Local: true} }
		r.Paths["dc2"], r.Paths["dc3"], r.Paths["dc4"] = []Path{via(0), via(1)}, []Path{via(0), via(1)}, []Path{via(1)}
		n1.book.Store(r)
		t1, tm := n1.tun.Transport(PoolWAN), n1.tun.limits
		send(t, t1, "srv1.dc3", "x")
		send(t, t1, "srv1.dc4", "x")
		// Sleep until half-way between two echo requests of dc3's idle link.
		time.Sleep(tm.idleAfter + 2*tm.idleEchoInterval + tm.idleEchoInterval/2)
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(tm.echoInterval + time.Second)
		over := func() (out []string) {
			for _, l := range n1.tun.Stats().Links {
				if !l.ConnectedSince.IsZero() {
					out = append(out, l.Path.Addr)
				}
			}
			return out
		}
		if got := over(); !slices.Equal(got, []string{gws[0].addr, gws[0].addr, gws[1].addr}) {
			t.Fatalf("links go over %v", got)
		}
		gws[0].freeze(true)
		time.Sleep(2 * tm.echoInterval) // dc2's link sends an echo request; dc3's would not yet
		if got := over(); !slices.Equal(got, []string{gws[1].addr, gws[1].addr, gws[1].addr}) {
			t.Errorf("links over %v, want all over the second gateway", got)
		}
		if n := gws[1].count(); n != 3 {
			t.Errorf("%d connections over the second gateway, want one per link", n)
		}
		gws[0].freeze(false)
	})
}
