// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestLink_SendsQueueAfterGatewayRestart(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.backoffMax = 50 * time.Millisecond })
	n1 := w.nodes["srv1.dc1"]
	t1, t2 := n1.tun.Transport(PoolWAN), w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "before")
	receive(t, t2)
	testutil.Eventually(t, 5*time.Second, func() bool { return !n1.tun.Stats().Links[0].ConnectedSince.IsZero() },
		"link up")
	w.gws["dc2"].stop()
	testutil.Eventually(t, 5*time.Second, func() bool { return n1.tun.Stats().Links[0].ConnectedSince.IsZero() },
		"link down")
	send(t, t1, "srv1.dc2", "after")
	w.gws["dc2"].restart()
	if got := receive(t, t2); got != "after" {
		t.Errorf("received %q, want %q", got, "after")
	}
	log := n1.log.String()
	if strings.Count(log, "gossip link up") < 1 || strings.Count(log, "gossip link down") != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestLink_AddressBookChangeEndsBackoff(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.backoffMin, tm.backoffMax = time.Hour, time.Hour })
	n1 := w.nodes["srv1.dc1"]
	t1, t2 := n1.tun.Transport(PoolWAN), w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	good := n1.book.Load()
	n1.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: closedPort(t)}}}})
	send(t, t1, "srv1.dc2", "x")
	testutil.Eventually(t, 5*time.Second, func() bool { return !n1.tun.Stats().Links[0].LastErrorAt.IsZero() },
		"a failed dial")
	n1.book.Store(good)
	if got := receive(t, t2); got != "x" {
		t.Errorf("received %q, want %q", got, "x")
	}
}

// A stopped gateway process keeps its connections open and swallows what is
// written to them.
func TestLink_FrozenGatewayTimeout(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"},
		func(tm *limits) { tm.echoInterval, tm.echoTimeout = 50*time.Millisecond, 300*time.Millisecond })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	second := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	r := *n1.book.Load()
	r.Paths = map[string][]Path{"dc2": {{Addr: w.gws["dc2"].addr, Via: "local gateway"},
		{Addr: second.addr, Via: "local gateway"}}}
	n1.book.Store(&r)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "one")
	receive(t, t2)
	w.gws["dc2"].freeze(true)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for sent := 0; ; sent++ {
		select {
		case <-tick.C:
			send(t, t1, "srv1.dc2", "again")
			continue
		case <-t2.PacketCh():
		case <-time.After(10 * time.Second):
			t.Fatal("no packet over the second gateway")
		}
		break
	}
	if l := n1.tun.Stats().Links[0]; l.Path.Addr != second.addr || !strings.Contains(l.LastError, "stopped answering") {
		t.Errorf("link = %+v, want one over the second gateway after \"stopped answering\"", l)
	}
	for _, p := range n1.d.Paths() {
		if p.Addr == w.gws["dc2"].addr && p.LastErrorAt.IsZero() {
			t.Errorf("status of the frozen gateway = %+v, want a failure", p)
		}
	}
}

// A link whose echo is late uses another path long before echoTimeout.
func TestLink_FrozenGatewayReplacedEarly(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"},
		func(tm *limits) { tm.echoInterval, tm.echoTimeout = 50*time.Millisecond, time.Hour })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	first, second := w.gws["dc2"], newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	r := *n1.book.Load()
	r.Paths = map[string][]Path{"dc2": {{Addr: first.addr, Via: "local gateway"},
		{Addr: second.addr, Via: "local gateway"}}}
	n1.book.Store(&r)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "one")
	receive(t, t2)
	echoes := func() bool { return n1.tun.Stats().Links[0].RTT > 0 }
	testutil.Eventually(t, 10*time.Second, echoes, "an echo")
	first.freeze(true)
	testutil.Eventually(t, 10*time.Second, func() bool {
		return n1.tun.Stats().Links[0].Path.Addr == second.addr
	}, "the link is over the second gateway")
	send(t, t1, "srv1.dc2", "two")
	if got := receive(t, t2); got != "two" {
		t.Errorf("received %q, want %q", got, "two")
	}
	for _, p := range n1.d.Paths() {
		if p.Addr == first.addr && p.LastErrorAt.IsZero() {
			t.Errorf("status of the frozen gateway = %+v, want a failure", p)
		}
	}
	testutil.Eventually(t, 10*time.Second, echoes, "an echo over the second gateway")
	// With one path that stalls briefly, the replacement stalls too, and the
	// connection stays in use when the echo arrives.
	r.Paths = map[string][]Path{"dc2": {{Addr: second.addr, Via: "local gateway"}}}
	n1.book.Store(&r)
	second.freeze(true)
	send(t, t1, "srv1.dc2", "three")
	testutil.Eventually(t, 10*time.Second, func() bool { return second.count() > 1 }, "a replacement dial")
	second.freeze(false)
	if got := receive(t, t2); got != "three" {
		t.Errorf("received %q, want %q", got, "three")
	}
}

// A peer that accepts and never reads affects only its own datacenter.
func TestLink_PeerThatNeverReads(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 1, []string{"dc1", "dc2", "dc3"},
		func(tm *limits) { tm.writeTimeout, tm.echoTimeout = 5*time.Second, time.Minute })
	n1 := w.nodes["srv1.dc1"]
	t1, t3 := n1.tun.Transport(PoolWAN), w.nodes["srv1.dc3"].tun.Transport(PoolWAN)
	hole := blackHole(t, w.a, "srv1", "dc2")
	r := *n1.book.Load()
	r.Paths = map[string][]Path{"dc2": {{Addr: hole}}, "dc3": r.Paths["dc3"]}
	n1.book.Store(&r)
	packet := make([]byte, 1400)
	var each []time.Duration
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(time.Minute)
	for i := 0; n1.traffic(PoolWAN, "dc2").Dropped["write"] == 0; i++ { // until the socket's buffers are full
		for range 400 {
			start := time.Now()
			if _, err := t1.WriteToAddress(packet, to("srv1.dc2")); err != nil {
				t.Fatal(err)
			}
			each = append(each, time.Since(start))
		}
		send(t, t1, "srv1.dc3", fmt.Sprint(i))
		if got := receive(t, t3); got != fmt.Sprint(i) {
			t.Fatalf("dc3 received %q, want %d", got, i)
		}
		select {
		case <-over:
			t.Fatalf("no write failed: %+v", n1.tun.Stats())
		case <-tick.C:
		}
	}
	// A send takes some microseconds; one that waited for the writer would take
	// writeTimeout. The limits leave room for the race detector and for a
	// machine that is suspended for a second.
	slices.Sort(each)
	median, slowest := each[len(each)/2], each[len(each)-1]
	if t.Logf("%d sends, median %v, slowest %v", len(each), median, slowest); median > time.Millisecond ||
		slowest > n1.tun.limits.writeTimeout/2 {
		t.Error("a send waited for the network")
	}
	if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["queue_full"] == 0 {
		t.Errorf("traffic = %+v, want packets dropped for a full queue", got)
	}
}

// blackHole accepts TLS connections for a server and never reads from them.
func blackHole(t *testing.T, a *authority, name, dc string) string {
	t.Helper()
	m, err := NewMux(MuxConfig{Identity: a.server(name, dc)})
	if err != nil {
		t.Fatal(err)
	}
	m.Handle(ProtoGossip, []tlsutil.Role{tlsutil.RoleServer}, false,
		func(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
			<-ctx.Done()
			c.Close()
		})
	ln := listen(t)
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	return ln.Addr().String()
}

// A stream over a session whose gateway is frozen uses another path long before
// keepaliveTimeout.
func TestSession_FrozenGateway(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"},
		func(tm *limits) { tm.keepaliveInterval, tm.keepaliveTimeout = time.Hour, time.Hour })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	second := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	first := w.gws["dc2"]
	r := *n1.book.Load()
	r.Paths = map[string][]Path{"dc2": {{Addr: first.addr, Via: "local gateway"},
		{Addr: second.addr, Via: "local gateway"}}}
	n1.book.Store(&r)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	open := func() {
		t.Helper()
		c, err := t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		select {
		case far := <-t2.StreamCh():
			far.Close()
		case <-time.After(10 * time.Second):
			t.Fatal("the stream did not arrive")
		}
	}
	open()
	first.freeze(true)
	start := time.Now()
	open()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the stream took %v, want at most 5 s", took)
	}
	if s := n1.tun.Stats().Sessions; len(s) != 1 || s[0].Path.Addr != second.addr {
		t.Errorf("Sessions = %+v, want one over the second gateway", s)
	}
	for _, p := range n1.d.Paths() {
		if p.Addr == first.addr && p.LastErrorAt.IsZero() {
			t.Errorf("status of the frozen gateway = %+v, want a failure", p)
		}
	}
}
