// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
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
			t.Errorf("packet = %+v, want From and Timestamp set", p)
		}
		return string(p.Buf)
	case <-time.After(10 * time.Second):
		t.Fatal("no packet received")
		return ""
	}
}

// isRemoteFailure reports whether memberlist's failedRemote (state.go)
// attributes err to the peer.
func isRemoteFailure(err error) bool {
	op, ok := err.(*net.OpError) // memberlist does not unwrap
	return ok && strings.HasPrefix(op.Net, "tcp") && (op.Op == "dial" || op.Op == "read" || op.Op == "write")
}

// Each server sends a packet to each other server. It has one link to the other
// datacenter and one link to the other local server.
func TestTunnel_Packets(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	transports := map[string]*Transport{}
	for name, n := range w.nodes {
		transports[name] = n.tun.Transport(PoolWAN)
	}
	for from, tr := range transports {
		for name := range transports {
			if from != name {
				addr := memberlist.Address{Name: name, Addr: w.nodes[name].addr}
				if _, err := tr.WriteToAddress([]byte(from+" to "+name), addr); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, tr := range transports {
		for range len(transports) - 1 {
			if got := receive(t, tr); !strings.HasSuffix(got, " to "+name) {
				t.Errorf("%s received %q, want a packet to %s", name, got, name)
			}
		}
	}
	for name, n := range w.nodes {
		if links := n.tun.Stats().Links; len(links) != 2 {
			t.Errorf("Stats().Links of %s = %+v, want 2", name, links)
		}
		testutil.Eventually(t, 5*time.Second, func() bool {
			for _, l := range n.tun.Stats().Links {
				want := ProtoDuplex
				if strings.HasSuffix(name, "."+l.DC) {
					want = ProtoRelay
				}
				if l.ConnectedSince.IsZero() || l.RTT <= 0 || l.Protocol != want || l.Path.Addr == "" {
					return false
				}
			}
			return true
		}, "connected links")
	}
	// Each server sends two packets over the link to the other datacenter. One
	// of them is relayed, because its target is not the peer of the link.
	testutil.Eventually(t, 5*time.Second, func() bool {
		relayed := uint64(0)
		for _, n := range w.nodes {
			for _, dc := range []string{"dc1", "dc2"} {
				relayed += n.traffic(PoolWAN, dc).Relayed
			}
		}
		return relayed == 4
	}, "4 relayed packets")
}

func TestTunnel_LANPackets(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv2.dc1"]
	t1, t2 := n1.tun.Transport(PoolLAN), n2.tun.Transport(PoolLAN)
	if _, err := t1.WriteToAddress([]byte("named"), memberlist.Address{Name: "srv2", Addr: n2.addr}); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, t2); got != "named" {
		t.Errorf("received %q, want %q", got, "named")
	}
	if _, err := t2.WriteTo([]byte("by address"), n1.addr); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, t1); got != "by address" {
		t.Errorf("received %q, want %q", got, "by address")
	}
}

// Streams to all servers of a datacenter use one session. Streams to a local
// server work in both pools.
func TestTunnel_Streams(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	far := map[string]*Transport{
		"srv1.dc2": w.nodes["srv1.dc2"].tun.Transport(PoolWAN),
		"srv2.dc2": w.nodes["srv2.dc2"].tun.Transport(PoolWAN),
	}
	tr := w.nodes["srv1.dc1"].tun.Transport(PoolWAN)
	for range 2 { // the second time over the session that is open
		for name, f := range far {
			c, err := tr.DialAddressTimeout(to(name), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			s := <-f.StreamCh()
			if got := s.RemoteAddr().String(); got != "srv1.dc1" {
				t.Errorf("RemoteAddr() = %q, want %q", got, "srv1.dc1")
			}
			checkHalfClose(t, c, s)
			checkHalfClose(t, s, c)
			c.Close()
			s.Close()
		}
	}
	// Streams to the server without a session were relayed by the other server.
	if got := w.nodes["srv1.dc1"].tun.Stats().Sessions; len(got) != 1 || got[0].DC != "dc2" ||
		got[0].ConnectedSince.IsZero() {
		t.Errorf("Sessions = %+v, want one to dc2, connected", got)
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
		t.Fatalf("ReadAll() = %d bytes, %v, want the %d bytes sent", len(got), err, len(data))
	}
}

// Packets that memberlist does not read are dropped and counted.
func TestTransport_PoolFull(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	t1 := w.nodes["srv1.dc1"].tun.Transport(PoolWAN)
	n2 := w.nodes["srv1.dc2"]
	t2 := n2.tun.Transport(PoolWAN) // no receiver
	sent := 0
	testutil.Eventually(t, 10*time.Second, func() bool {
		for range 100 {
			send(t, t1, "srv1.dc2", "x")
			sent++
		}
		return n2.traffic(PoolWAN, "dc1").Dropped["pool_full"] > 0
	}, "packets dropped for pool_full")
	if got := n2.traffic(PoolWAN, "dc1"); got.Received != packetBacklog || len(t2.PacketCh()) != packetBacklog {
		t.Errorf("traffic = %+v, %d in PacketCh, want %d received", got, len(t2.PacketCh()), packetBacklog)
	}
}

func TestNewTunnel_InvalidConfig(t *testing.T) {
	for _, adv := range []string{"", "10.0.0.1", "0.0.0.0:8300", "host:8300", "10.0.0.1:0"} {
		_, err := NewTunnel(TunnelConfig{Advertise: adv, MaxIdleLinks: -1})
		for _, want := range []string{"Identity", "Dialer", "Mux", "Advertise", "MaxIdleLinks"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("NewTunnel() = %v, want an error that contains %q", err, want)
			}
		}
	}
}

func TestTunnel_Transport(t *testing.T) {
	n := newWorld(t, 1, []string{"dc1"}).nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN)
	ip, port, err := tr.FinalAdvertiseAddr("1.2.3.4", 5)
	if got := fmt.Sprintf("%v:%d", ip, port); err != nil || got != n.addr {
		t.Errorf("FinalAdvertiseAddr() = %s, %v, want %s", got, err, n.addr)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second Transport() of the pool returns, want a panic")
		}
	}()
	n.tun.Transport(PoolWAN)
}

// Run ends within seconds while links and streams are open and a gateway hangs.
func TestTunnel_StopsWhileBusy(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	transports := map[string]*Transport{}
	for name, n := range w.nodes {
		transports[name] = n.tun.Transport(PoolWAN)
	}
	for _, tr := range transports {
		for name := range transports {
			send(t, tr, name, "x")
			if c, err := tr.DialAddressTimeout(memberlist.Address{Name: name, Addr: w.nodes[name].addr},
				10*time.Second); err != nil {
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
		t.Errorf("Run returned after %v, want at most 4 s", took)
	}
	for _, tr := range transports {
		if _, err := tr.WriteToAddress([]byte("x"), to("srv1.dc9")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("WriteToAddress() after Run = %v, want net.ErrClosed", err)
		}
		if _, err := tr.DialAddressTimeout(to("srv1.dc9"), time.Second); !errors.Is(err, net.ErrClosed) {
			t.Errorf("DialAddressTimeout() after Run = %v, want net.ErrClosed", err)
		}
	}
}

// A server is reached after its address changed, if either memberlist or the
// address book has the new address.
func TestTunnel_ServerWithTwoAddresses(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv2.dc1"]
	t1, t2 := n1.tun.Transport(PoolLAN), n2.tun.Transport(PoolLAN)
	old := memberlist.Address{Name: "srv2", Addr: closedPort(t)}
	if _, err := t1.WriteToAddress([]byte("x"), old); err != nil {
		t.Fatal(err)
	}
	receive(t, t2)
	c, err := t1.DialAddressTimeout(old, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	checkEcho(t, c, <-t2.StreamCh())

	r := *n2.book.Load()
	r.Servers = map[string]string{"srv1": closedPort(t)}
	n2.book.Store(&r)
	if _, err := t2.WriteToAddress([]byte("x"), memberlist.Address{Name: "srv1", Addr: n1.addr}); err != nil {
		t.Fatal(err)
	}
	receive(t, t1)
}
