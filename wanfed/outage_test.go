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

// twoGateways starts a second gateway of dc2 and lists both gateways in the
// address book of srv1 of dc1, the first gateway first.
func (w *world) twoGateways() (first, second *fakeGateway) {
	w.t.Helper()
	first = w.gws["dc2"]
	second = newFakeGateway(w.t, listen(w.t), "dc2", map[string]string{"srv1": w.nodes["srv1.dc2"].addr})
	book := *w.nodes["srv1.dc1"].book.Load()
	book.Paths = map[string][]Path{
		"dc2": {{Addr: first.addr, Via: "local gateway"}, {Addr: second.addr, Via: "local gateway"}},
	}
	w.nodes["srv1.dc1"].book.Store(&book)
	return first, second
}

// checkFailureRecorded checks that the status of the path over gateway has a
// failure.
func (n *node) checkFailureRecorded(gateway *fakeGateway) {
	n.t.Helper()
	if p := n.pathStatus(gateway.addr); p.LastErrorAt.IsZero() {
		n.t.Errorf("status of the frozen gateway = %+v, want a failure", p)
	}
}

// A link keeps its queue while the gateway restarts.
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
	testutil.Eventually(t, 5*time.Second, func() bool { return n1.reconnected.Load() == 1 }, "one call of Reconnected")
	log := n1.log.String()
	if strings.Count(log, "gossip link up") < 1 || strings.Count(log, "gossip link down") != 1 {
		t.Errorf("log = %s\nwant \"gossip link up\" and one \"gossip link down\"", log)
	}
}

// A link dials at once when the address book has another path.
func TestLink_AddressBookChangeEndsBackoff(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) {
		tm.backoffMin, tm.backoffMax = time.Hour, time.Hour
	})
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

// A link over a frozen gateway ends after echoTimeout and uses another path. A
// frozen gateway keeps its connections open and does not forward bytes.
func TestLink_FrozenGatewayTimeout(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"},
		func(tm *limits) { tm.echoInterval, tm.echoTimeout = 50*time.Millisecond, 300*time.Millisecond })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	first, second := w.twoGateways()
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "one")
	receive(t, t2)
	first.freeze(true)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(10 * time.Second)
	for received := false; !received; {
		select {
		case <-tick.C:
			send(t, t1, "srv1.dc2", "again")
		case <-t2.PacketCh():
			received = true
		case <-limit:
			t.Fatal("no packet over the second gateway within 10 s")
		}
	}
	if l := n1.tun.Stats().Links[0]; l.Path.Addr != second.addr || !strings.Contains(l.LastError, "stopped answering") {
		t.Errorf("link = %+v, want a link over the second gateway after \"stopped answering\"", l)
	}
	n1.checkFailureRecorded(first)
}

// A link whose echo is late uses another path long before echoTimeout.
func TestLink_FrozenGatewayReplacedEarly(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"},
		func(tm *limits) { tm.echoInterval, tm.echoTimeout = 50*time.Millisecond, time.Hour })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	first, second := w.twoGateways()
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "one")
	receive(t, t2)
	echoes := func() bool { return n1.tun.Stats().Links[0].RTT > 0 }
	testutil.Eventually(t, 10*time.Second, echoes, "an echo")
	first.freeze(true)
	testutil.Eventually(t, 10*time.Second, func() bool {
		return n1.tun.Stats().Links[0].Path.Addr == second.addr
	}, "a link over the second gateway")
	send(t, t1, "srv1.dc2", "two")
	if got := receive(t, t2); got != "two" {
		t.Errorf("received %q, want %q", got, "two")
	}
	n1.checkFailureRecorded(first)
	testutil.Eventually(t, 10*time.Second, echoes, "an echo over the second gateway")
	if got := n1.reconnected.Load(); got != 1 {
		t.Errorf("Reconnected was called %d times after a late echo, want 1", got)
	}
	// The only path stalls for a moment. The dial of a replacement stalls too.
	// The connection stays in use when the echo arrives.
	n1.book.Store(&AddressBook{Servers: n1.book.Load().Servers,
		Paths: map[string][]Path{"dc2": {{Addr: second.addr, Via: "local gateway"}}}})
	second.freeze(true)
	send(t, t1, "srv1.dc2", "three")
	testutil.Eventually(t, 10*time.Second, func() bool { return second.count() > 1 }, "a replacement dial")
	second.freeze(false)
	if got := receive(t, t2); got != "three" {
		t.Errorf("received %q, want %q", got, "three")
	}
}

// A peer that accepts connections and never reads does not delay the sender or
// another datacenter.
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
	var took []time.Duration // by each send
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(time.Minute)
	for i := 0; n1.traffic(PoolWAN, "dc2").Dropped["write"] == 0; i++ { // until the socket's buffers are full
		for range 400 {
			start := time.Now()
			if _, err := t1.WriteToAddress(packet, to("srv1.dc2")); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(start))
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
	// A send takes some microseconds. A send that waits for the writer takes
	// writeTimeout. The limits allow for the race detector, and for a machine
	// that is suspended for a second.
	slices.Sort(took)
	median, slowest := took[len(took)/2], took[len(took)-1]
	if median > time.Millisecond || slowest > n1.tun.limits.writeTimeout/2 {
		t.Errorf("%d sends took %v (median), %v (slowest), want at most 1 ms, %v",
			len(took), median, slowest, n1.tun.limits.writeTimeout/2)
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
	first, second := w.twoGateways()
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
			t.Fatal("no stream arrived within 10 s")
		}
	}
	open()
	first.freeze(true)
	start := time.Now()
	open()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("DialAddressTimeout() took %v, want at most 5 s", took)
	}
	if s := n1.tun.Stats().Sessions; len(s) != 1 || s[0].Path.Addr != second.addr {
		t.Errorf("Sessions = %+v, want one over the second gateway", s)
	}
	n1.checkFailureRecorded(first)
}
