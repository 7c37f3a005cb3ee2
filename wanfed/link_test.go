// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
)

// memPair starts srv1 of dc1 and srv1 of dc2 on nw. The address book of dc1
// lists the address of the server of dc2.
func memPair(t *testing.T, nw *memNet) (n1, n2 *node) {
	t.Helper()
	a := newAuthority(t)
	use := func(c *DialerConfig) { c.DialTCP = nw.dial }
	n1 = newNode(t, a, "srv1", "dc1", use).start(nw.listen("10.0.1.1:8300"))
	n2 = newNode(t, a, "srv1", "dc2", use).start(nw.listen("10.0.2.1:8300"))
	n1.book.Store(bookOf(n2.addr))
	return n1, n2
}

// checkReceived receives one packet and checks its content.
func checkReceived(t *testing.T, tr *Transport, want string) {
	t.Helper()
	if got := receive(t, tr); got != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

// firstLink returns the status of the first link of n.
func firstLink(t *testing.T, n *node) LinkStatus {
	t.Helper()
	links := n.tun.Stats().Links
	if len(links) == 0 {
		t.Fatal("Stats().Links = none, want at least 1")
	}
	return links[0]
}

// TestLink_IdleTimeout proves that a link closes after linkIdleTimeout without
// packets, without a warning in the log, and that the next packet opens a new
// connection.
func TestLink_IdleTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		lim := n1.tun.limits
		for range 10 { // echoes keep the connection alive between the packets
			send(t, t1, "srv1.dc2", "x")
			receive(t, t2)
			time.Sleep(lim.linkIdleTimeout - time.Second)
		}
		if got := len(nw.dialed()); got != 1 {
			t.Errorf("dials = %d, want 1", got)
		}
		if got := n1.tun.Stats().Links; len(got) != 1 || got[0].ConnectedSince.IsZero() {
			t.Errorf("Stats().Links = %+v, want 1 connected link", got)
		}
		time.Sleep(lim.echoInterval + 2*time.Second)
		if got := n1.tun.Stats().Links; len(got) != 0 {
			t.Errorf("Stats().Links after linkIdleTimeout = %+v, want none", got)
		}
		if got, want := n2.mux.Stats().Protocols[1], (ProtocolStats{ALPN: ProtoDuplex, Total: 1}); got != want {
			t.Errorf("Stats().Protocols[1] of the peer = %+v, want %+v", got, want)
		}
		send(t, t1, "srv1.dc2", "again")
		checkReceived(t, t2, "again")
		if log := n1.log.String(); strings.Contains(log, "WARN") {
			t.Errorf("log = %q, want no warning", log)
		}
	})
}

// TestLink_Backoff dials an address without a listener. It checks the pauses
// between the dials, and that the link retires when no packets are sent.
func TestLink_Backoff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		n1.book.Store(bookOf("10.0.9.9:1")) // without a listener
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		lim := n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(30 * time.Second)
		dials := nw.dialed()
		least := lim.backoffMin
		for i := 1; i < len(dials); i++ {
			if pause := dials[i].Sub(dials[i-1]); pause < least || pause > least*5/4 {
				t.Errorf("pause before dial %d = %v, want %v to %v", i, pause, least, least*5/4)
			}
			least = min(2*least, lim.backoffMax)
		}
		if got := len(dials); got < 9 || got > 14 {
			t.Errorf("dials in 30 s = %d, want 9 to 14", got)
		}
		if got := strings.Count(n1.log.String(), "gossip link down"); got != 1 {
			t.Errorf("log lines \"gossip link down\" = %d, want 1", got)
		}
		time.Sleep(2*lim.linkIdleTimeout + 2*lim.backoffMax)
		if got := n1.traffic(PoolWAN, "dc2").Dropped["expired"]; got != 1 {
			t.Errorf("expired packets after linkIdleTimeout = %d, want 1", got)
		}
		if got := n1.tun.Stats().Links; len(got) != 0 {
			t.Errorf("Stats().Links after linkIdleTimeout = %+v, want none", got)
		}
		n1.book.Store(bookOf(n2.addr))
		send(t, t1, "srv1.dc2", "y")
		checkReceived(t, t2, "y")
	})
}

// With many links, the pause after a failed dial is longer.
func TestLink_BackoffOfMany(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		n1, _ := memPair(t, nw)
		n1.tun.limits.echoesPerRound = 1
		n1.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: "10.0.9.9:1"}}, "dc3": {{Addr: "10.0.9.9:1"}}}})
		tr, lim := n1.tun.Transport(PoolWAN), n1.tun.limits
		send(t, tr, "srv1.dc2", "x")
		send(t, tr, "srv1.dc3", "x")
		time.Sleep(lim.idleAfter / 2)
		before := len(nw.dialed())
		time.Sleep(lim.idleAfter / 2)
		most := 2 * int(lim.idleAfter/2/(2*lim.backoffMax)) // of two links with twice the pause
		if got := len(nw.dialed()) - before; got == 0 || got > most {
			t.Errorf("dials of two links in %v = %d, want 1 to %d", lim.idleAfter/2, got, most)
		}
	})
}

// TestLink_EchoTimeout sends a packet to a peer that reads and never echoes.
func TestLink_EchoTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = nw.dial
		}).start(nw.listen("10.0.1.1:8300"))
		var silent atomic.Bool
		silent.Store(true)
		serveEchoes(t, a, nw.listen("10.0.2.1:8300"), &silent)
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1 := n1.tun.Transport(PoolWAN)
		lim := n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(lim.echoTimeout - time.Millisecond)
		if got := firstLink(t, n1); got.LastError != "" || !got.ConnectedSince.IsZero() {
			t.Errorf("link before echoTimeout = %+v, want no error and not connected", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := firstLink(t, n1); !strings.Contains(got.LastError, "stopped answering") {
			t.Errorf("link after echoTimeout = %+v, want the error %q", got, "stopped answering")
		}
		got := n1.d.Paths()
		if len(got) != 1 || got[0].Failures != 1 || !strings.Contains(got[0].LastError, "stopped answering") {
			t.Errorf("Paths() = %+v, want 1 path with 1 failure, %q", got, "stopped answering")
		}
	})
}

// TestLink_DropsStalePackets cuts a server off. The packets that it queues,
// such as reports that other servers are dead, must not be sent after the cut.
func TestLink_DropsStalePackets(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		n1, n2 := memPair(t, nw)
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		send(t, t1, "srv1.dc2", "before")
		receive(t, t2)
		heal := nw.cut(n2.addr)
		synctest.Wait()
		send(t, t1, "srv1.dc2", "srv1.dc3 is dead")
		time.Sleep(20 * time.Second)
		send(t, t1, "srv1.dc2", "srv1.dc4 is dead")
		time.Sleep(n1.tun.limits.maxQueueAge + time.Millisecond)
		heal()
		time.Sleep(n1.tun.limits.backoffMax * 5 / 4) // with jitter: see backoff.Jitter
		if got := firstLink(t, n1); got.ConnectedSince.IsZero() || got.Queued != 0 {
			t.Errorf("link = %+v, want connected with an empty queue", got)
		}
		send(t, t1, "srv1.dc2", "after")
		checkReceived(t, t2, "after")
		if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["expired"] != 2 {
			t.Errorf("traffic = %+v, want 2 expired packets", got)
		}
	})
}

// TestPacketConn_IdleTimeout proves that a server closes an accepted connection
// after acceptedIdleTimeout without data.
func TestPacketConn_IdleTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
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
			t.Error("the idle connection is open, want closed")
		}
		if got, want := time.Since(start).Round(time.Second), n2.tun.limits.acceptedIdleTimeout; got != want {
			t.Errorf("the idle connection was closed after %v, want %v", got, want)
		}
		if got := n2.tun.Stats().Closed; len(got) != 0 {
			t.Errorf("Stats().Closed = %v, want none, because an idle connection is not a fault", got)
		}
	})
}

// TestLink_ConsulMaxAge proves that a link to a Consul server replaces its
// connection every consulMaxAge without the loss of a packet.
func TestLink_ConsulMaxAge(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = nw.dial
		}).start(nw.listen("10.0.1.1:8300"))
		n2 := newNode(t, a, "srv1", "dc2").asConsulOn(nw.listen("10.0.2.1:8300"))
		n1.book.Store(bookOf(n2.addr))
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		start := time.Now()
		for time.Since(start) < 5*time.Minute {
			send(t, t1, "srv1.dc2", "x")
			receive(t, t2)
			time.Sleep(time.Second)
		}
		// One dial detects the protocol. After that there is one dial each 30
		// s.
		if got := len(nw.dialed()); got < 10 || got > 12 {
			t.Errorf("dials in 5 min = %d, want 10 to 12", got)
		}
		if got := n1.traffic(PoolWAN, "dc2"); len(got.Dropped) != 0 || got.Sent != 300 {
			t.Errorf("traffic = %+v, want 300 sent packets and none dropped", got)
		}
	})
}

// TestRunGroup proves that run waits for all goroutines, and that spawn starts
// none after the end of run.
func TestRunGroup(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		g := newRunGroup()
		ended := make(chan string, 2) // one value per goroutine
		early := func(ctx context.Context) { <-ctx.Done(); ended <- "early" }
		slow := func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second); ended <- "slow" }
		if !g.spawn(early) {
			t.Error("spawn() before run = false, want true")
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { g.run(ctx); close(done) }()
		synctest.Wait()
		if !g.spawn(slow) {
			t.Error("spawn() during run = false, want true")
		}
		cancel()
		synctest.Wait()
		if g.spawn(early) {
			t.Error("spawn() after the end of the context = true, want false")
		}
		if broadcast.IsClosed(done) {
			t.Error("run() returned before the slow goroutine, want after it")
		}
		<-done
		if first, second := <-ended, <-ended; first != "early" || second != "slow" {
			t.Errorf("goroutines ended in the order %s, %s, want early, slow", first, second)
		}
	})
}

// TestLink_FirstDialKeepsPackets proves that packets wait for the first dial of
// a link without a limit. After an outage, packets that waited are dropped.
func TestLink_FirstDialKeepsPackets(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		const dialTime = 4 * time.Second
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
				time.Sleep(dialTime)
				return nw.dial(ctx, addr)
			}
		}).start(nw.listen("10.0.1.1:8300"))
		n2 := newNode(t, a, "srv1", "dc2", func(c *DialerConfig) {
			c.DialTCP = nw.dial
		}).start(nw.listen("10.0.2.1:8300"))
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		send(t, t1, "srv1.dc2", "first")
		time.Sleep(dialTime + time.Second) // much longer than maxQueueAge
		if got := n1.traffic(PoolWAN, "dc2"); got.Sent != 1 || len(got.Dropped) != 0 {
			t.Fatalf("traffic after a first dial of %v = %+v, want 1 sent packet and none dropped", dialTime, got)
		}
		checkReceived(t, t2, "first")

		nw.cut("10.0.2.1:8300")()
		send(t, t1, "srv1.dc2", "lost") // this write detects the cut
		time.Sleep(time.Second)
		send(t, t1, "srv1.dc2", "late")
		time.Sleep(2 * dialTime)
		if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["expired"] == 0 || got.Received != 0 {
			t.Errorf("traffic after an outage and a dial of %v = %+v, want expired packets", dialTime, got)
		}
		if got := n2.traffic(PoolWAN, "dc1").Received; got != 1 {
			t.Errorf("packets that dc2 received = %d, want 1", got)
		}
	})
}
