// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// asConsul starts a node that serves only Consul's two protocols, like a Consul
// server. The test vectors of SPEC.md define Consul's framing. The node can
// send with the tunnel's own protocols.
func (n *node) asConsul() *node { return n.asConsulOn(listen(n.t)) }

func (n *node) asConsulOn(ln net.Listener) *node {
	n.t.Helper()
	unusedMux := n.mux // receives the handlers of the tunnel's own protocols, and never runs
	var err error
	if n.mux, err = NewMux(MuxConfig{Identity: n.id, Logger: n.log.logger()}); err != nil {
		n.t.Fatal(err)
	}
	n.addr = ln.Addr().String()
	if n.tun,
		err = NewTunnel(TunnelConfig{Identity: n.id, Dialer: n.d, Mux: unusedMux, Advertise: n.addr}); err != nil {
		n.t.Fatal(err)
	}
	servers := []tlsutil.Role{tlsutil.RoleServer}
	n.mux.Handle(ProtoConsulPacket, servers, false, n.tun.serve(n.tun.servePackets))
	n.mux.Handle(ProtoConsulStream, servers, false, n.tun.serve(n.tun.serveConsulStream))
	background(n.t, func(ctx context.Context) error { return n.mux.Run(ctx, ln) })
	background(n.t, n.tun.Run)
	return n
}

// TestConsul_Fallback sends packets and opens streams to two servers that speak
// only Consul's protocols. One of them is then replaced by a server that speaks
// the tunnel's own protocols.
func TestConsul_Fallback(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t))
	c1, c2 := newNode(t, a, "srv1", "dc2").asConsul(), newNode(t, a, "srv2", "dc2").asConsul()
	gw := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": c1.addr, "srv2": c2.addr})
	n.book.Store(bookOf(gw.addr))
	tr, tr1, tr2 := n.tun.Transport(PoolWAN), c1.tun.Transport(PoolWAN), c2.tun.Transport(PoolWAN)
	t.Run("by name", func(t *testing.T) {
		for range 2 { // in the first round the protocol of dc2 is unknown
			for name, far := range map[string]*Transport{"srv1.dc2": tr1, "srv2.dc2": tr2} {
				send(t, tr, name, "to "+name)
				if got := receive(t, far); got != "to "+name {
					t.Errorf("%s received %q, want %q", name, got, "to "+name)
				}
				c, err := tr.DialAddressTimeout(to(name), 10*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				checkEcho(t, c, <-far.StreamCh())
			}
		}
	})
	t.Run("any server", func(t *testing.T) {
		c, err := tr.DialAddressTimeout(to("*.dc2"), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-tr1.StreamCh():
			checkEcho(t, c, s)
		case s := <-tr2.StreamCh():
			checkEcho(t, c, s)
		}
		if !n.tun.speaksConsul("dc2") {
			t.Error("speaksConsul(dc2) = false, want true")
		}
		send(t, tr, "*.dc2", "for any server")
		if got := n.traffic(PoolWAN, "dc2"); got.Dropped["no_node"] != 1 || got.Sent < 2 {
			t.Errorf("traffic = %+v, want 1 packet dropped for no_node and at least 2 sent", got)
		}
	})
	t.Run("after an upgrade", func(t *testing.T) {
		upgraded := newNode(t, a, "srv1", "dc2").start(listen(t))
		gw.mu.Lock()
		gw.routes = map[string]string{"srv1": upgraded.addr}
		for c := range gw.conns {
			c.Close()
		}
		gw.mu.Unlock()
		trUpgraded := upgraded.tun.Transport(PoolWAN)
		testutil.Eventually(t, 10*time.Second, func() bool {
			send(t, tr, "srv1.dc2", "new")
			return len(trUpgraded.PacketCh()) > 0 && !n.tun.speaksConsul("dc2")
		}, "a packet over the tunnel's own protocol")
		c, err := tr.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		checkEcho(t, c, <-trUpgraded.StreamCh())
		if _, ok := c.(*streamConn); !ok {
			t.Errorf("DialAddressTimeout() returned a %T, want a *streamConn", c)
		}
	})
}

// checkEcho sends one byte in each direction of the connection with the ends a
// and b, and closes both ends.
func checkEcho(t *testing.T, a, b net.Conn) {
	t.Helper()
	defer a.Close()
	defer b.Close()
	for _, ends := range [][2]net.Conn{{a, b}, {b, a}} {
		from, to := ends[0], ends[1]
		from.SetDeadline(time.Now().Add(10 * time.Second))
		to.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := from.Write([]byte("x")); err != nil {
			t.Fatalf("Write() = %v, want nil", err)
		}
		if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
			t.Fatalf("ReadFull() = %v, want nil", err)
		}
	}
}

// TestConsul_UpgradedBetweenDials opens a stream to a server that spoke
// Consul's protocols at the last dial and now speaks the tunnel's own
// protocols.
func TestConsul_UpgradedBetweenDials(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	n.tun.setConsul("dc2", true)
	tr, far := n.tun.Transport(PoolWAN), w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	c, err := tr.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	checkEcho(t, c, <-far.StreamCh())
	if n.tun.speaksConsul("dc2") {
		t.Error("speaksConsul(dc2) = true, want false")
	}
}
