// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// memPair starts srv1 of dc1, which reaches srv1 of dc2 through nw at the
// address of srv1.
func memPair(t *testing.T, nw *memNet) (n1, n2 *node) {
	t.Helper()
	a := newAuthority(t)
	use := func(c *DialerConfig) { c.DialTCP = nw.dial }
	n1 = newNode(t, a, "srv1", "dc1", use).start(nw.listen("10.0.1.1:8300"))
	n2 = newNode(t, a, "srv1", "dc2", use).start(nw.listen("10.0.2.1:8300"))
	n1.book.Store(bookOf(n2.addr))
	return n1, n2
}

func TestLink_IdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		tm := n1.tun.limits
		for range 10 { // echoes keep the connection alive while packets are sent occasionally
			send(t, t1, "srv1.dc2", "x")
			receive(t, t2)
			time.Sleep(tm.linkIdleTimeout - time.Second)
		}
		if got := len(nw.dialed()); got != 1 {
			t.Errorf("%d dials", got)
		}
		if l := n1.tun.Stats().Links; len(l) != 1 || l[0].ConnectedSince.IsZero() {
			t.Errorf("Links = %+v, want 1 connected", l)
		}
		time.Sleep(tm.echoInterval + 2*time.Second)
		if l := n1.tun.Stats().Links; len(l) != 0 {
			t.Errorf("Links after linkIdleTimeout = %+v, want none", l)
		}
		if got := n2.mux.Stats().Protocols[0]; got.ALPN != ProtoGossip || got.Open != 0 || got.Total != 1 {
			t.Errorf("connections of the peer: %+v, want none open, 1 in total", got)
		}
		send(t, t1, "srv1.dc2", "again")
		if got := receive(t, t2); got != "again" {
			t.Errorf("received %q, want %q", got, "again")
		}
		if log := n1.log.String(); strings.Contains(log, "WARN") {
			t.Errorf("log:\n%s", log)
		}
	})
}

func TestLink_Backoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		n1.book.Store(bookOf("10.0.9.9:1")) // without a listener
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		tm := n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(30 * time.Second)
		dials := nw.dialed()
		least := tm.backoffMin
		for i := 1; i < len(dials); i++ {
			if gap := dials[i].Sub(dials[i-1]); gap < least || gap > least*5/4 {
				t.Errorf("dial %d after %v, want %v and up to a quarter more", i, gap, least)
			}
			least = min(2*least, tm.backoffMax)
		}
		if len(dials) < 9 || len(dials) > 14 {
			t.Errorf("%d dials in 30 s", len(dials))
		}
		if got := strings.Count(n1.log.String(), "gossip link down"); got != 1 {
			t.Errorf("%d log lines \"gossip link down\", want 1", got)
		}
		// Without new packets the link retires, and the queued packet is
		// counted as expired.
		time.Sleep(2*tm.linkIdleTimeout + 2*tm.backoffMax)
		if got := n1.traffic(PoolWAN, "dc2").Dropped["expired"]; got != 1 || len(n1.tun.Stats().Links) != 0 {
			t.Errorf("expired %d, links %+v", got, n1.tun.Stats().Links)
		}
		n1.book.Store(bookOf(n2.addr))
		send(t, t1, "srv1.dc2", "y")
		if got := receive(t, t2); got != "y" {
			t.Errorf("received %q, want %q", got, "y")
		}
	})
}

func TestLink_EchoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.1.1:8300"))
		m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc2")})
		if err != nil {
			t.Fatal(err)
		}
		m.Handle(ProtoGossip, []tlsutil.Role{tlsutil.RoleServer}, false,
			func(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
				defer c.Close()
				for buf := make([]byte, 1024); ; { // reads and does not echo
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			})
		ln := nw.listen("10.0.2.1:8300")
		background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1 := n1.tun.Transport(PoolWAN)
		tm := n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(tm.echoTimeout - time.Millisecond)
		if l := n1.tun.Stats().Links[0]; l.LastError != "" || !l.ConnectedSince.IsZero() {
			t.Errorf("link before echoTimeout = %+v, want no error and not connected", l)
		}
		time.Sleep(2 * time.Millisecond)
		if l := n1.tun.Stats().Links[0]; !strings.Contains(l.LastError, "stopped answering") {
			t.Errorf("link after echoTimeout = %+v, want the error \"stopped answering\"", l)
		}
		if p := n1.d.Paths(); len(p) != 1 || p[0].Failures != 1 || !strings.Contains(p[0].LastError, "stopped answering") {
			t.Errorf("Paths() = %+v, want 1 failure, \"stopped answering\"", p)
		}
	})
}

// A server that was cut off has queued messages that all others are dead. It
// must not send them when it is reconnected.
func TestLink_DropsStalePackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		send(t, t1, "srv1.dc2", "before")
		receive(t, t2)
		heal := nw.cut(n2.addr)
		synctest.Wait()
		send(t, t1, "srv1.dc2", "srv1.dc3 is dead")
		time.Sleep(20 * time.Second)
		send(t, t1, "srv1.dc2", "so is srv1.dc4")
		time.Sleep(n1.tun.limits.maxQueueAge + time.Millisecond)
		heal()
		time.Sleep(n1.tun.limits.backoffMax)
		if l := n1.tun.Stats().Links[0]; l.ConnectedSince.IsZero() || l.Queued != 0 {
			t.Errorf("link = %+v, want connected with an empty queue", l)
		}
		send(t, t1, "srv1.dc2", "news")
		if got := receive(t, t2); got != "news" {
			t.Errorf("received %q, want %q", got, "news")
		}
		if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["expired"] != 2 {
			t.Errorf("traffic = %+v, want 2 expired", got)
		}
	})
}

func TestPacketConn_IdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		t2 := n2.tun.Transport(PoolWAN)
		raw, err := nw.dial(t.Context(), n2.addr)
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(raw, n1.id.ClientConfig("srv1.server.dc2.wanfed", ProtoGossip))
		defer c.Close()
		if _, err := c.Write(appendFrame(nil, PoolWAN, "", []byte("x"))); err != nil {
			t.Fatal(err)
		}
		receive(t, t2)
		start := time.Now()
		if !isClosedByPeer(c) {
			t.Error("the connection is still open, want closed")
		}
		if took := time.Since(start).Round(time.Second); took != n2.tun.limits.acceptedIdleTimeout {
			t.Errorf("closed after %v, want acceptedIdleTimeout", took)
		}
		if got := n2.tun.Stats().Closed; len(got) != 0 {
			t.Errorf("Closed = %v, want none: idleness is not a fault", got)
		}
	})
}

func TestLink_ConsulMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.1.1:8300"))
		n2 := newNode(t, a, "srv1", "dc2").asConsulOn(nw.listen("10.0.2.1:8300"))
		n1.book.Store(bookOf(n2.addr))
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		start := time.Now()
		for time.Since(start) < 5*time.Minute {
			send(t, t1, "srv1.dc2", "x")
			receive(t, t2)
			time.Sleep(time.Second)
		}
		// One dial to detect the protocol, then one for each 30 s.
		if got := len(nw.dialed()); got < 10 || got > 12 {
			t.Errorf("%d dials in 5 min", got)
		}
		if got := n1.traffic(PoolWAN, "dc2"); len(got.Dropped) != 0 || got.Sent != 300 {
			t.Errorf("traffic = %+v, want 300 sent and none dropped", got)
		}
	})
}

func TestRunGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRunGroup()
		ended := make(chan string, 2) // one for each goroutine
		early := func(ctx context.Context) { <-ctx.Done(); ended <- "early" }
		if !l.spawn(early) {
			t.Error("spawn() before run = false, want true")
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.run(ctx); close(done) }()
		synctest.Wait()
		if !l.spawn(func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second); ended <- "slow" }) {
			t.Error("spawn() during run = false, want true")
		}
		cancel()
		synctest.Wait()
		if l.spawn(early) {
			t.Error("spawn() after run = true, want false")
		}
		select {
		case <-done:
			t.Error("run returned before its goroutines")
		default:
		}
		<-done
		if a, b := <-ended, <-ended; a != "early" || b != "slow" {
			t.Errorf("ended: %s, %s", a, b)
		}
	})
}

// Packets that waited for the first dial of a link are sent, however long it
// took. After an outage they are dropped.
func TestLink_FirstDialKeepsPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		const slow = 4 * time.Second
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
				time.Sleep(slow)
				return nw.dial(ctx, addr)
			}
		}).start(nw.listen("10.0.1.1:8300"))
		n2 := newNode(t, a, "srv1", "dc2", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.2.1:8300"))
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		send(t, t1, "srv1.dc2", "first")
		time.Sleep(slow + time.Second)
		if got := n1.traffic(PoolWAN, "dc2"); got.Sent != 1 || len(got.Dropped) != 0 || slow <= n1.tun.limits.maxQueueAge {
			t.Fatalf("the first dial took %v: %+v", slow, got)
		}
		if got := receive(t, t2); got != "first" {
			t.Errorf("received %q, want %q", got, "first")
		}

		nw.cut("10.0.2.1:8300")()
		send(t, t1, "srv1.dc2", "after a break") // the link detects it by this write
		time.Sleep(time.Second)
		send(t, t1, "srv1.dc2", "late")
		time.Sleep(2 * slow)
		if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["expired"] == 0 || got.Received != 0 {
			t.Errorf("after an outage and a dial of %v: %+v, want expired packets", slow, got)
		}
		if got := n2.traffic(PoolWAN, "dc1").Received; got != 1 {
			t.Errorf("Received = %d, want 1", got)
		}
	})
}
