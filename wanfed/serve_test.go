// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// rawConn dials n as id, with one protocol and without Dialer and Tunnel.
func rawConn(t testing.TB, n *node, id *tlsutil.Identity, alpn string) *tls.Conn {
	t.Helper()
	sni := tlsutil.ServerName(n.name, n.dc, tlsutil.DefaultDomain)
	c, err := tls.Dial("tcp", n.addr, id.ClientConfig(sni, alpn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// isClosedByPeer waits for the peer to close c.
func isClosedByPeer(c net.Conn) bool {
	_, err := io.Copy(io.Discard, c)
	return !isTimeout(err)
}

// A bad frame closes the connection. The packets before it are delivered.
func TestPacketConn_BadFrames(t *testing.T) {
	a := newAuthority(t)
	for _, tt := range []struct {
		name, alpn string
		peer       *tlsutil.Identity
		send       string
		half       bool // end the sending direction after send
		want       *refusal
	}{
		{"garbage", ProtoGossip, a.server("srv1", "dc2"), "47455420 2f20 0000", false, faultFrame},
		{"oversize", ProtoGossip, a.server("srv1", "dc2"), "00010003 0100", false, faultFrame},
		{"empty", ProtoGossip, a.server("srv1", "dc2"), "00000002 0100", false, faultFrame},
		{"bad name", ProtoGossip, a.server("srv1", "dc2"), "00000004 0101 41 00", false, faultFrame},
		{"cut in the packet", ProtoGossip, a.server("srv1", "dc2"), "00000008 0100 0000", true, faultTruncated},
		{"cut in the head", ProtoGossip, a.server("srv1", "dc2"), "0000", true, faultTruncated},
		{"stops in the packet", ProtoGossip, a.server("srv1", "dc2"), "00000008 0100 0000", false, faultStalled},
		{"relayed from another datacenter", ProtoGossip, a.server("srv1", "dc2"),
			"00000011 04 04 73727631 08 737276312e646333 0001", false, faultFrame},
		{"relayed for a local sender", ProtoRelay, a.server("srv2", "dc1"),
			"00000011 04 04 73727631 08 737276332e646331 0001", false, faultFrame},
		{"relayed for a bad sender", ProtoRelay, a.server("srv2", "dc1"),
			"00000011 04 04 73727631 08 7372763164633300 0001", false, faultFrame},
		{"relayed without a packet", ProtoRelay, a.server("srv2", "dc1"),
			"0000000f 04 04 73727631 08 737276312e646333", false, faultFrame},
		{"LAN from another datacenter", ProtoGossip, a.server("srv1", "dc2"), "00000003 0200 08", false, faultLAN},
		{"Consul: length 0", ProtoConsulPacket, a.server("srv1", "dc2"), "00000000", false, faultFrame},
		{"Consul: too large", ProtoConsulPacket, a.server("srv1", "dc2"), "00400001", false, faultFrame},
		{"Consul: cut", ProtoConsulPacket, a.server("srv1", "dc2"), "00000002 61", true, faultTruncated},
		{"Consul: stops", ProtoConsulPacket, a.server("srv1", "dc2"), "00000002 61", false, faultStalled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, a, "srv1", "dc1").start(listen(t), func(tm *limits) {
				if tt.want == faultStalled { // the other cases must not reach frameTimeout
					tm.frameTimeout = 100 * time.Millisecond
				}
			})
			tr := n.tun.Transport(PoolWAN)
			c := rawConn(t, n, tt.peer, tt.alpn)
			good := appendFrame(nil, PoolWAN, "srv1", []byte("good"))
			if tt.alpn == ProtoConsulPacket {
				good = appendConsulFrames(nil, good)
			}
			if _, err := c.Write(append(good, unhex(t, tt.send)...)); err != nil {
				t.Fatal(err)
			}
			if tt.half {
				c.CloseWrite()
				c.NetConn().(*net.TCPConn).CloseWrite()
			}
			if got := receive(t, tr); got != "good" {
				t.Errorf("received %q, want %q", got, "good")
			}
			if !isClosedByPeer(c) {
				t.Error("the connection is still open, want closed")
			}
			testutil.Eventually(t, 5*time.Second, func() bool { return n.tun.Stats().Closed[tt.want.id] == 1 },
				"one fault %s", tt.want)
			dc := "dc2"
			if tt.alpn == ProtoRelay {
				dc = "dc1"
			}
			testutil.Eventually(t, 5*time.Second, func() bool { return n.traffic(PoolWAN, dc).Received == 1 },
				"one received packet")
		})
	}
}

func TestTunnel_OtherRolesRefused(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t))
	tr := n.tun.Transport(PoolWAN)
	for _, role := range []tlsutil.Role{tlsutil.RoleGateway, tlsutil.RoleClient, tlsutil.RoleOperator} {
		for _, alpn := range []string{ProtoGossip, ProtoStream, ProtoConsulPacket, ProtoConsulStream} {
			c := rawConn(t, n, a.identity(role, "x", "dc1"), alpn)
			c.Write(appendFrame(nil, PoolWAN, "", []byte("x")))
			if !isClosedByPeer(c) {
				t.Errorf("connection of role %s with %s is open, want closed", role, alpn)
			}
		}
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return n.mux.Stats().Refused[refusedRole.id] == 12 },
		"12 connections refused: %s", refusedRole) // the last one is counted after it is closed
	if packets, streams := len(tr.PacketCh()), len(tr.StreamCh()); packets != 0 || streams != 0 {
		t.Errorf("%d packets and %d streams were delivered, want none", packets, streams)
	}
}

// A server relays a frame from another datacenter once. It does not relay a
// frame from a local server.
func TestPacketConn_FramesDoNotLoop(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv2.dc1"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	far := rawConn(t, n1, w.a.server("srv1", "dc2"), ProtoGossip)
	near := rawConn(t, n1, w.a.server("srv2", "dc1"), ProtoGossip)
	frames := appendFrame(nil, PoolWAN, "srv2", []byte("relayed"))
	frames = appendFrame(frames, PoolWAN, "srv9", []byte("unknown"))
	frames = appendFrame(frames, PoolWAN, "", []byte("far"))
	far.Write(frames)
	select {
	case p := <-t2.PacketCh():
		if string(p.Buf) != "relayed" || p.From.String() != "srv1.dc2" {
			t.Errorf("srv2 received %q from %v, want %q from srv1.dc2, not from srv1.dc1, which relayed it", p.Buf, p.From, "relayed")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no packet received")
	}
	if got := receive(t, t1); got != "far" {
		t.Errorf("srv1 received %q, want %q", got, "far")
	}
	frames = appendFrame(nil, PoolWAN, "srv2", []byte("again"))
	frames = appendFrame(frames, PoolLAN, "srv2", []byte("again"))
	frames = appendFrame(frames, PoolWAN, "srv1", []byte("near"))
	near.Write(frames)
	if got := receive(t, t1); got != "near" {
		t.Errorf("srv1 received %q, want %q", got, "near")
	}
	testutil.Eventually(t, 5*time.Second, func() bool {
		a, b := n1.traffic(PoolWAN, "dc2"), n1.traffic(PoolWAN, "dc1")
		return a.Dropped["unknown_node"] == 1 && a.Relayed == 1 && a.Received == 1 &&
			b.Dropped["misrouted"] == 1 && b.Relayed == 0 && b.Received == 1
	}, "one relayed, one misrouted and one unknown packet")
	if got := n1.traffic(PoolLAN, "dc1"); got.Dropped["misrouted"] != 1 {
		t.Errorf("LAN traffic from dc1 = %+v, want 1 misrouted", got)
	}
}

func TestPacketConn_Echo(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t))
	c := rawConn(t, n, a.server("srv1", "dc2"), ProtoGossip)
	want := appendEcho(nil, 0xfeedface)
	c.Write(want)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("echo = %x, %v; want %x", got, err, want)
	}
}
