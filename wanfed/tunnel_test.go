// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/tlsutil"
)

func to(name string) memberlist.Address { return memberlist.Address{Name: name, Addr: "192.0.2.2:1"} }

func send(t testing.TB, tr *Transport, name, packet string) {
	t.Helper()
	if _, err := tr.WriteToAddress([]byte(packet), to(name)); err != nil {
		t.Fatal(err)
	}
}

// receive takes the next packet.
func receive(t testing.TB, tr *Transport) string {
	t.Helper()
	select {
	case p := <-tr.PacketCh():
		if p.From == nil || p.Timestamp.IsZero() {
			t.Errorf("packet without from or time: %+v", p)
		}
		return string(p.Buf)
	case <-time.After(10 * time.Second):
		t.Fatal("no packet came")
		return ""
	}
}

// isRemoteFailure says whether memberlist's failedRemote (state.go) takes err as the peer's fault.
func isRemoteFailure(err error) bool {
	op, ok := err.(*net.OpError) // memberlist does not unwrap
	return ok && strings.HasPrefix(op.Net, "tcp") && (op.Op == "dial" || op.Op == "read" || op.Op == "write")
}

func TestPacketsBetweenAndInsideDatacenters(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	trs := map[string]*Transport{}
	for name, n := range w.nodes {
		trs[name] = n.tun.Transport(PoolWAN)
	}
	for from, tr := range trs {
		for name := range trs {
			if from != name {
				addr := memberlist.Address{Name: name, Addr: w.nodes[name].addr}
				if _, err := tr.WriteToAddress([]byte(from+" to "+name), addr); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, tr := range trs {
		for range len(trs) - 1 {
			if got := receive(t, tr); !strings.HasSuffix(got, " to "+name) {
				t.Errorf("%s received %q", name, got)
			}
		}
	}
	for name, n := range w.nodes {
		s := n.tun.Stats()
		// One link to the other datacenter, however many servers it has, and one to the other server of the own.
		if len(s.Links) != 2 {
			t.Errorf("%s has links %+v", name, s.Links)
		}
		eventually(t, "links are up", 5*time.Second, func() bool {
			for _, l := range n.tun.Stats().Links {
				if l.ConnectedSince.IsZero() || l.RTT <= 0 || l.Protocol != ProtoGossip || l.Hop.Addr == "" {
					return false
				}
			}
			return true
		})
	}
	// Of two packets from each server, one is for the server that did not get the connection.
	eventually(t, "relayed packets counted", 5*time.Second, func() bool {
		relayed := uint64(0)
		for _, n := range w.nodes {
			for _, dc := range []string{"dc1", "dc2"} {
				relayed += n.traffic(PoolWAN, dc).Relayed
			}
		}
		return relayed == 4
	})
}

func TestLANPackets(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv2.dc1"]
	t1, t2 := n1.tun.Transport(PoolLAN), n2.tun.Transport(PoolLAN)
	if _, err := t1.WriteToAddress([]byte("named"), memberlist.Address{Name: "srv2", Addr: n2.addr}); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, t2); got != "named" {
		t.Errorf("received %q", got)
	}
	if _, err := t2.WriteTo([]byte("by address"), n1.addr); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, t1); got != "by address" {
		t.Errorf("received %q", got)
	}
}

func TestStreams(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	far := map[string]*Transport{
		"srv1.dc2": w.nodes["srv1.dc2"].tun.Transport(PoolWAN),
		"srv2.dc2": w.nodes["srv2.dc2"].tun.Transport(PoolWAN),
	}
	tr := w.nodes["srv1.dc1"].tun.Transport(PoolWAN)
	for range 2 { // the second time on the same sessions
		for name, f := range far {
			c, err := tr.DialAddressTimeout(to(name), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			s := <-f.StreamCh()
			if got := s.RemoteAddr().String(); got != "srv1.dc1" {
				t.Errorf("stream from %q", got)
			}
			checkHalfClose(t, c, s)
			checkHalfClose(t, s, c)
			c.Close()
			s.Close()
		}
	}
	// Half of the streams were for the server that had no session with srv1.dc1.
	if got := w.nodes["srv1.dc1"].tun.Stats().Sessions; len(got) != 1 || got[0].DC != "dc2" || got[0].ConnectedSince.IsZero() {
		t.Errorf("sessions: %+v", got)
	}
	for _, pool := range []Pool{PoolWAN, PoolLAN} {
		n := w.nodes["srv2.dc1"]
		near := n.tun.Transport(pool)
		from := tr
		a := memberlist.Address{Name: "srv2.dc1", Addr: n.addr}
		if pool == PoolLAN {
			from, a = w.nodes["srv1.dc1"].tun.Transport(PoolLAN), memberlist.Address{Addr: n.addr}
		}
		c, err := from.DialAddressTimeout(a, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		s := <-near.StreamCh()
		checkHalfClose(t, c, s)
		c.Close()
		s.Close()
	}
}

// checkHalfClose sends 64 KiB from a to b and ends that direction alone.
func checkHalfClose(t *testing.T, a, b net.Conn) {
	t.Helper()
	type halfCloser interface{ CloseWrite() error }
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
	a.SetDeadline(time.Now().Add(10 * time.Second))
	b.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		a.Write(data)
		a.(halfCloser).CloseWrite()
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d of %d bytes came: %v", len(got), len(data), err)
	}
}

func TestStreamErrors(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN)
	w.nodes["srv1.dc2"].tun.Transport(PoolWAN) // srv2.dc2 takes no part in the pool
	for _, tt := range []struct {
		name, want string
	}{
		{"srv9.dc2", "has no such server"},
		{"srv2.dc2", "does not take part in the pool"},
		{"srv1.dc9", "no path to datacenter dc9"},
		{"srv9.dc1", "refused"}, // the address that memberlist gave is tried
		{"nodots", "no name of the form"},
	} {
		start := time.Now()
		c, err := tr.DialAddressTimeout(memberlist.Address{Name: tt.name, Addr: closedPort(t)}, 10*time.Second)
		if err == nil {
			c.Close()
			t.Errorf("%s: no error", tt.name)
			continue
		}
		t.Log(err)
		if !strings.Contains(err.Error(), tt.want) || !isRemoteFailure(err) || time.Since(start) > 3*time.Second {
			t.Errorf("%s: %v after %v; want quickly, as a remote failure, %q", tt.name, err, time.Since(start), tt.want)
		}
	}
}

func TestWriteToAddressErrors(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN)
	if _, err := tr.WriteToAddress(make([]byte, MaxPacket+1), to("a.dc2")); err == nil || isRemoteFailure(err) {
		t.Errorf("too large a packet is our fault, not the peer's: %v", err)
	}
	if _, err := tr.WriteTo([]byte("x"), "10.0.0.1:1"); !isRemoteFailure(err) {
		t.Errorf("no name: %v", err)
	}
	// Nobody knows dc9: the packet waits, so that the missing ack makes memberlist suspect it.
	if at, err := tr.WriteToAddress([]byte("x"), to("a.dc9")); err != nil || at.IsZero() {
		t.Errorf("unknown datacenter: %v", err)
	}
	eventually(t, "link's error", 5*time.Second, func() bool {
		l := n.tun.Stats().Links
		return len(l) == 1 && strings.Contains(l[0].LastError, "no path") && l[0].Queued == 1
	})
	tr.Shutdown()
	if _, err := tr.WriteToAddress([]byte("x"), to("a.dc2")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Shutdown: %v", err)
	}
}

func TestTransportShutdownLeavesTheTunnel(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "one")
	receive(t, t2)
	w.gws["dc2"].freeze(true) // dials and streams hang from here on
	done := make(chan error, 1)
	go func() {
		_, err := t1.DialAddressTimeout(to("srv1.dc2"), time.Hour)
		done <- err
	}()
	eventually(t, "dial under way", 5*time.Second, func() bool { return len(n1.tun.Stats().Sessions) == 1 })
	t1.Shutdown()
	if err := <-done; !errors.Is(err, net.ErrClosed) || !isRemoteFailure(err) {
		t.Errorf("dial: %v", err)
	}
	w.gws["dc2"].freeze(false)
	again := n1.tun.Transport(PoolWAN) // serf started anew
	send(t, again, "srv1.dc2", "two")
	if got := receive(t, t2); got != "two" {
		t.Errorf("received %q", got)
	}
	// Who is not there any more refuses.
	t2.Shutdown()
	if _, err := again.DialAddressTimeout(to("srv1.dc2"), 10*time.Second); err == nil || !strings.Contains(err.Error(), "take part") {
		t.Errorf("dial to a pool that was shut down: %v", err)
	}
	send(t, again, "srv1.dc2", "three")
	eventually(t, "packet dropped", 5*time.Second, func() bool { return n2.traffic(PoolWAN, "dc1").Dropped["no_pool"] == 1 })
}

func TestDialTimeoutWhileAnotherDials(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1 := w.nodes["srv1.dc1"]
	t1 := n1.tun.Transport(PoolWAN)
	w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	w.gws["dc2"].freeze(true)
	long := make(chan error, 1)
	go func() {
		c, err := t1.DialAddressTimeout(to("srv1.dc2"), 20*time.Second)
		if err == nil {
			c.Close()
		}
		long <- err
	}()
	eventually(t, "dial under way", 5*time.Second, func() bool { return len(n1.tun.Stats().Sessions) == 1 })
	start := time.Now()
	_, err := t1.DialAddressTimeout(to("srv1.dc2"), 50*time.Millisecond)
	var ne net.Error
	if took := time.Since(start); took > time.Second || !errors.As(err, &ne) || !ne.Timeout() || !isRemoteFailure(err) {
		t.Errorf("%v after %v", err, took)
	}
	w.gws["dc2"].freeze(false)
	if err := <-long; err != nil {
		t.Errorf("the other caller: %v", err)
	}
}

func TestQueuedPacketsGoOutWhenTheGatewayReturns(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *timing) { tm.backoffMax = 50 * time.Millisecond })
	n1 := w.nodes["srv1.dc1"]
	t1, t2 := n1.tun.Transport(PoolWAN), w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "before")
	receive(t, t2)
	eventually(t, "link up", 5*time.Second, func() bool { return !n1.tun.Stats().Links[0].ConnectedSince.IsZero() })
	w.gws["dc2"].stop()
	eventually(t, "link down", 5*time.Second, func() bool { return n1.tun.Stats().Links[0].ConnectedSince.IsZero() })
	send(t, t1, "srv1.dc2", "after")
	w.gws["dc2"].restart()
	if got := receive(t, t2); got != "after" {
		t.Errorf("received %q", got)
	}
	log := n1.log.String()
	if strings.Count(log, "gossip link up") < 1 || strings.Count(log, "gossip link down") != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestBookChangeEndsTheBackOff(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *timing) { tm.backoffMin, tm.backoffMax = time.Hour, time.Hour })
	n1 := w.nodes["srv1.dc1"]
	t1, t2 := n1.tun.Transport(PoolWAN), w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	good := n1.book.Load()
	n1.book.Store(&Routes{Hops: map[string][]Hop{"dc2": {{Addr: closedPort(t)}}}})
	send(t, t1, "srv1.dc2", "x")
	eventually(t, "a failed dial", 5*time.Second, func() bool { return !n1.tun.Stats().Links[0].LastErrorAt.IsZero() })
	n1.book.Store(good)
	if got := receive(t, t2); got != "x" {
		t.Errorf("received %q", got)
	}
}

// A stopped gateway process keeps its connections open and swallows what is written to them.
func TestLinkLeavesAFrozenGateway(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *timing) { tm.echoEvery, tm.silence = 50*time.Millisecond, 300*time.Millisecond })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	second := newGatewayDouble(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	r := *n1.book.Load()
	r.Hops = map[string][]Hop{"dc2": {{Addr: w.gws["dc2"].addr, Via: "own"}, {Addr: second.addr, Via: "own"}}}
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
			t.Fatal("nothing came over the second gateway")
		}
		break
	}
	if l := n1.tun.Stats().Links[0]; l.Hop.Addr != second.addr || !strings.Contains(l.LastError, "stopped answering") {
		t.Errorf("link: %+v", l)
	}
	for _, p := range n1.d.Paths() {
		if p.Addr == w.gws["dc2"].addr && p.LastErrorAt.IsZero() {
			t.Errorf("the frozen gateway has a clean record: %+v", p)
		}
	}
}

// A peer that accepts and never reads must cost its own datacenter only.
func TestBlackHole(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2", "dc3"}, func(tm *timing) { tm.write, tm.silence = time.Second, time.Minute })
	n1 := w.nodes["srv1.dc1"]
	t1, t3 := n1.tun.Transport(PoolWAN), w.nodes["srv1.dc3"].tun.Transport(PoolWAN)
	hole := blackHole(t, w.a, "srv1", "dc2")
	r := *n1.book.Load()
	r.Hops = map[string][]Hop{"dc2": {{Addr: hole}}, "dc3": r.Hops["dc3"]}
	n1.book.Store(&r)
	packet := make([]byte, 1400)
	var slowest, sum time.Duration
	n := 0
	over := time.After(20 * time.Second)
	for i := 0; n1.traffic(PoolWAN, "dc2").Dropped["write"] == 0; i++ { // until the socket's buffers are full
		for range 400 {
			start := time.Now()
			if _, err := t1.WriteToAddress(packet, to("srv1.dc2")); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			slowest, sum, n = max(slowest, took), sum+took, n+1
		}
		send(t, t1, "srv1.dc3", fmt.Sprint(i))
		if got := receive(t, t3); got != fmt.Sprint(i) {
			t.Fatalf("dc3 received %q, want %d", got, i)
		}
		select {
		case <-over:
			t.Fatalf("no write failed: %+v", n1.tun.Stats())
		default:
		}
	}
	// Some microseconds on an idle machine; the limits leave room for the race detector and the scheduler of a busy one.
	mean := sum / time.Duration(n)
	if t.Logf("%d sends, mean %v, slowest %v", n, mean, slowest); mean > time.Millisecond || slowest > time.Second {
		t.Error("sends wait")
	}
	if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["queue_full"] == 0 {
		t.Errorf("nothing was dropped for a full queue: %+v", got)
	}
}

// blackHole accepts TLS connections for a server and never reads from them.
func blackHole(t *testing.T, a *authority, name, dc string) string {
	t.Helper()
	m, err := NewMux(MuxConfig{Identity: a.server(name, dc)})
	if err != nil {
		t.Fatal(err)
	}
	m.Handle(ProtoGossip, []tlsutil.Role{tlsutil.RoleServer}, false, func(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
		<-ctx.Done()
		c.Close()
	})
	ln := listen(t)
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	return ln.Addr().String()
}

func TestPoolFullDropsAndCounts(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	t1 := w.nodes["srv1.dc1"].tun.Transport(PoolWAN)
	n2 := w.nodes["srv1.dc2"]
	t2 := n2.tun.Transport(PoolWAN) // nobody takes its packets
	sent := 0
	eventually(t, "packets dropped", 10*time.Second, func() bool {
		for range 100 {
			send(t, t1, "srv1.dc2", "x")
			sent++
		}
		return n2.traffic(PoolWAN, "dc1").Dropped["pool_full"] > 0
	})
	if got := n2.traffic(PoolWAN, "dc1"); got.Received != packetBacklog || len(t2.PacketCh()) != packetBacklog {
		t.Errorf("traffic: %+v", got)
	}
}

func TestNewTunnelRefuses(t *testing.T) {
	for _, adv := range []string{"", "10.0.0.1", "0.0.0.0:8300", "host:8300", "10.0.0.1:0"} {
		_, err := NewTunnel(TunnelConfig{Advertise: adv, QueueBytes: -1})
		for _, want := range []string{"Identity", "Dialer", "Mux", "Advertise", "QueueBytes"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not mention %s", err, want)
			}
		}
	}
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN)
	ip, port, err := tr.FinalAdvertiseAddr("1.2.3.4", 5)
	if got := fmt.Sprintf("%v:%d", ip, port); err != nil || got != n.addr {
		t.Errorf("FinalAdvertiseAddr = %s, %v", got, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second transport of the same pool")
		}
	}()
	n.tun.Transport(PoolWAN)
}

func TestTunnelEndsWhileBusy(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	trs := map[string]*Transport{}
	for name, n := range w.nodes {
		trs[name] = n.tun.Transport(PoolWAN)
	}
	for _, tr := range trs {
		for name := range trs {
			send(t, tr, name, "x")
			if c, err := tr.DialAddressTimeout(memberlist.Address{Name: name, Addr: w.nodes[name].addr}, 10*time.Second); err != nil {
				t.Fatal(err)
			} else {
				defer c.Close()
			}
		}
	}
	w.gws["dc2"].freeze(true)
	start := time.Now()
	for _, n := range w.nodes {
		n.stop()
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("stopping took %v", took)
	}
	for _, tr := range trs {
		if _, err := tr.WriteToAddress([]byte("x"), to("srv1.dc9")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("send after the end: %v", err)
		}
		if _, err := tr.DialAddressTimeout(to("srv1.dc9"), time.Second); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial after the end: %v", err)
		}
	}
}
