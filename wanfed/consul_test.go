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

// asConsul makes a node that has not started serve only Consul's two protocols,
// like a Consul server. Consul's framing is fixed by the test vectors. The node
// can still send with the tunnel's own protocols.
func (n *node) asConsul() *node { return n.asConsulOn(listen(n.t)) }

func (n *node) asConsulOn(ln net.Listener) *node {
	n.t.Helper()
	own := n.mux
	var err error
	if n.mux, err = NewMux(MuxConfig{Identity: n.id, Logger: n.log.logger()}); err != nil {
		n.t.Fatal(err)
	}
	n.addr = ln.Addr().String()
	if n.tun, err = NewTunnel(TunnelConfig{Identity: n.id, Dialer: n.d, Mux: own, Advertise: n.addr}); err != nil {
		n.t.Fatal(err)
	}
	servers := []tlsutil.Role{tlsutil.RoleServer}
	n.mux.Handle(ProtoConsulPacket, servers, false, n.tun.serve(n.tun.servePackets))
	n.mux.Handle(ProtoConsulStream, servers, false, n.tun.serve(n.tun.serveConsulStream))
	background(n.t, func(ctx context.Context) error { return n.mux.Run(ctx, ln) })
	background(n.t, n.tun.Run)
	return n
}

func TestConsul_Fallback(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t))
	c1, c2 := newNode(t, a, "srv1", "dc2").asConsul(), newNode(t, a, "srv2", "dc2").asConsul()
	gw := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": c1.addr, "srv2": c2.addr})
	n.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: gw.addr, Via: "remote gateway"}}}})
	tr, tr1, tr2 := n.tun.Transport(PoolWAN), c1.tun.Transport(PoolWAN), c2.tun.Transport(PoolWAN)
	t.Run("by name", func(t *testing.T) {
		for range 2 { // the first time the protocol of dc2 is unknown
			for name, far := range map[string]*Transport{"srv1.dc2": tr1, "srv2.dc2": tr2} {
				send(t, tr, name, "to "+name)
				if got := receive(t, far); got != "to "+name {
					t.Errorf("%s received %q, want %q", name, got, "to "+name)
				}
				c, err := tr.DialAddressTimeout(to(name), 10*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				s := <-far.StreamCh()
				checkEcho(t, c, s)
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
		up := newNode(t, a, "srv1", "dc2").start(listen(t))
		gw.mu.Lock()
		gw.routes = map[string]string{"srv1": up.addr}
		for c := range gw.conns {
			c.Close()
		}
		gw.mu.Unlock()
		trUp := up.tun.Transport(PoolWAN)
		testutil.Eventually(t, 10*time.Second, func() bool {
			send(t, tr, "srv1.dc2", "new")
			return len(trUp.PacketCh()) > 0 && !n.tun.speaksConsul("dc2")
		}, "a packet over the tunnel's protocol")
		c, err := tr.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		checkEcho(t, c, <-trUp.StreamCh())
		if _, ok := c.(*streamConn); !ok {
			t.Errorf("the stream is a %T", c)
		}
	})
}

// checkEcho sends one byte each way and closes both.
func checkEcho(t *testing.T, a, b net.Conn) {
	t.Helper()
	defer a.Close()
	defer b.Close()
	for _, d := range [][2]net.Conn{{a, b}, {b, a}} {
		d[0].SetDeadline(time.Now().Add(10 * time.Second))
		d[1].SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := d[0].Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(d[1], make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConsul_UpgradedBetweenDials(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	n.tun.setConsul("dc2", true) // as if it had spoken Consul's protocols before
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
