// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/tlsutil"
)

// rawConn dials n as id, with one protocol, past Dialer and Tunnel.
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

func TestBadFramesCloseTheConnection(t *testing.T) {
	a := newAuthority(t)
	for _, tt := range []struct {
		name, alpn string
		peer       *tlsutil.Identity
		send       string
		half       bool // end our direction after that
		why        refusal
	}{
		{"garbage", ProtoGossip, a.server("srv1", "dc2"), "47455420 2f20 0000", false, faultFrame},
		{"oversize", ProtoGossip, a.server("srv1", "dc2"), "00010003 0100", false, faultFrame},
		{"empty", ProtoGossip, a.server("srv1", "dc2"), "00000002 0100", false, faultFrame},
		{"bad name", ProtoGossip, a.server("srv1", "dc2"), "00000004 0101 41 00", false, faultFrame},
		{"cut in the packet", ProtoGossip, a.server("srv1", "dc2"), "00000008 0100 0000", true, faultTruncated},
		{"cut in the head", ProtoGossip, a.server("srv1", "dc2"), "0000", true, faultTruncated},
		{"stops in the packet", ProtoGossip, a.server("srv1", "dc2"), "00000008 0100 0000", false, faultStalled},
		{"LAN from elsewhere", ProtoGossip, a.server("srv1", "dc2"), "00000003 0200 08", false, faultLAN},
		{"Consul: length 0", ProtoConsulPacket, a.server("srv1", "dc2"), "00000000", false, faultFrame},
		{"Consul: too large", ProtoConsulPacket, a.server("srv1", "dc2"), "00400001", false, faultFrame},
		{"Consul: cut", ProtoConsulPacket, a.server("srv1", "dc2"), "00000002 61", true, faultTruncated},
		{"Consul: stops", ProtoConsulPacket, a.server("srv1", "dc2"), "00000002 61", false, faultStalled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, a, "srv1", "dc1").start(listen(t), func(tm *timing) { tm.body = 100 * time.Millisecond })
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
				t.Errorf("received %q", got)
			}
			if !isClosedByPeer(c) {
				t.Error("the connection stays open")
			}
			eventually(t, "fault counted", 5*time.Second, func() bool { return n.tun.Stats().Closed[string(tt.why)] == 1 })
			eventually(t, "packet counted", 5*time.Second, func() bool { return n.traffic(PoolWAN, "dc2").Received == 1 })
		})
	}
}

func TestOnlyServersGossip(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t))
	tr := n.tun.Transport(PoolWAN)
	for _, role := range []tlsutil.Role{tlsutil.RoleGateway, tlsutil.RoleClient, tlsutil.RoleCLI} {
		for _, alpn := range []string{ProtoGossip, ProtoStream, ProtoConsulPacket, ProtoConsulStream} {
			c := rawConn(t, n, a.identity(role, "x", "dc1"), alpn)
			c.Write(appendFrame(nil, PoolWAN, "", []byte("x")))
			if !isClosedByPeer(c) {
				t.Errorf("%s may use %s", role, alpn)
			}
		}
	}
	if got := n.mux.Stats().Refused[string(wrongRole)]; got != 12 {
		t.Errorf("refused %d times", got)
	}
	if len(tr.PacketCh()) != 0 || len(tr.StreamCh()) != 0 {
		t.Error("something came through")
	}
}

func TestFramesDoNotLoop(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv2.dc1"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	far := rawConn(t, n1, w.a.server("srv1", "dc2"), ProtoGossip)
	near := rawConn(t, n1, w.a.server("srv2", "dc1"), ProtoGossip)
	frames := appendFrame(nil, PoolWAN, "srv2", []byte("relayed"))
	frames = appendFrame(frames, PoolWAN, "srv9", []byte("nobody"))
	frames = appendFrame(frames, PoolWAN, "", []byte("far"))
	far.Write(frames)
	if got := receive(t, t2); got != "relayed" {
		t.Errorf("srv2 received %q", got)
	}
	if got := receive(t, t1); got != "far" {
		t.Errorf("srv1 received %q", got)
	}
	frames = appendFrame(nil, PoolWAN, "srv2", []byte("again"))
	frames = appendFrame(frames, PoolLAN, "srv2", []byte("again"))
	frames = appendFrame(frames, PoolWAN, "srv1", []byte("near"))
	near.Write(frames)
	if got := receive(t, t1); got != "near" {
		t.Errorf("srv1 received %q", got)
	}
	eventually(t, "packets counted", 5*time.Second, func() bool {
		a, b := n1.traffic(PoolWAN, "dc2"), n1.traffic(PoolWAN, "dc1")
		return a.Dropped["unknown_node"] == 1 && a.Relayed == 1 && a.Received == 1 &&
			b.Dropped["misrouted"] == 1 && b.Relayed == 0 && b.Received == 1
	})
	if got := n1.traffic(PoolLAN, "dc1"); got.Dropped["misrouted"] != 1 {
		t.Errorf("LAN from dc1: %+v", got)
	}
}

func TestEchoComesBack(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t))
	c := rawConn(t, n, a.server("srv1", "dc2"), ProtoGossip)
	want := appendEcho(nil, 0xfeedface)
	c.Write(want)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%x, %v; want %x", got, err, want)
	}
}

// streamClient opens a raw yamux session to n.
func streamClient(t testing.TB, n *node, id *tlsutil.Identity) *yamux.Session {
	t.Helper()
	cfg := defaultTiming().muxConfig(orDiscard(nil))
	s, err := yamux.Client(rawConn(t, n, id, ProtoStream), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// askRaw sends header bytes on a new stream and returns the status.
func askRaw(t *testing.T, s *yamux.Session, header []byte) (streamStatus, error) {
	t.Helper()
	st, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	st.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := st.Write(header); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_, err = io.ReadFull(st, b[:])
	return streamStatus(b[0]), err
}

func TestStreamHeadersAreChecked(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	n.tun.Transport(PoolWAN)
	w.nodes["srv2.dc1"].tun.Transport(PoolWAN)
	far := streamClient(t, n, w.a.server("srv1", "dc2"))
	near := streamClient(t, n, w.a.server("srv2", "dc1"))
	for _, tt := range []struct {
		name   string
		s      *yamux.Session
		header []byte
		want   streamStatus
	}{
		{"for me", far, streamHeader{PoolWAN, "srv1", "srv1.dc2"}.append(nil), streamOK},
		{"for anybody", far, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil), streamOK},
		{"relayed", far, streamHeader{PoolWAN, "srv2", "srv1.dc2"}.append(nil), streamOK},
		{"unknown node", far, streamHeader{PoolWAN, "srv9", "srv1.dc2"}.append(nil), streamUnknownNode},
		{"LAN from elsewhere", far, streamHeader{PoolLAN, "srv1", "srv1.dc2"}.append(nil), streamNotAllowed},
		{"source of another", far, streamHeader{PoolWAN, "srv1", "srv2.dc2"}.append(nil), streamNotAllowed},
		{"source in another datacenter", far, streamHeader{PoolWAN, "srv1", "srv1.dc3"}.append(nil), streamNotAllowed},
		{"no LAN pool here", near, streamHeader{PoolLAN, "srv1", "srv2.dc1"}.append(nil), streamNoPool},
		{"by relay", near, streamHeader{PoolWAN, "srv1", "srv1.dc2"}.append(nil), streamOK},
		{"relay of a relay", near, streamHeader{PoolWAN, "srv2", "srv1.dc2"}.append(nil), streamNotAllowed},
		{"relay of LAN", near, streamHeader{PoolLAN, "srv1", "srv1.dc2"}.append(nil), streamNotAllowed},
		{"relay inside", near, streamHeader{PoolWAN, "srv1", "srv3.dc1"}.append(nil), streamNotAllowed},
		{"garbage", far, []byte("GET / HTTP/1.1\r\n\r\n"), streamBadHeader},
		{"other version", far, unhex(t, "52 01 00 05 612e646331"), streamBadHeader},
	} {
		if got, err := askRaw(t, tt.s, tt.header); err != nil || got != tt.want {
			t.Errorf("%s: status %d, %v; want %d", tt.name, got, err, tt.want)
		}
	}
	eventually(t, "faults counted", 5*time.Second, func() bool {
		got := n.tun.Stats().Closed
		return got[string(faultHeader)] == 2 && got[string(faultSource)] == 4
	})
}

func TestSilentStreamBlocksNoOther(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1"}, func(tm *timing) { tm.body = 200 * time.Millisecond })
	n := w.nodes["srv1.dc1"]
	n.tun.Transport(PoolWAN)
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	silent, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Write([]byte{streamVersion}); err != nil { // so that yamux opens it
		t.Fatal(err)
	}
	if got, err := askRaw(t, s, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil)); err != nil || got != streamOK {
		t.Errorf("behind a silent stream: status %d, %v", got, err)
	}
	silent.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the silent stream: %v", err)
	}
	eventually(t, "fault counted", 5*time.Second, func() bool { return n.tun.Stats().Closed[string(faultStalled)] == 1 })
}

func TestTooManyStreamsAreRefused(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN) // nobody accepts
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	ok, busy := 0, 0
	for range streamBacklog + 2 {
		switch got, err := askRaw(t, s, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil)); {
		case err != nil:
			t.Fatal(err)
		case got == streamOK:
			ok++
			eventually(t, "stream waits to be accepted", 5*time.Second, func() bool { return len(tr.StreamCh()) == ok })
		case got == streamBusy:
			busy++
		}
	}
	if ok != streamBacklog || busy != 2 {
		t.Errorf("%d accepted, %d refused", ok, busy)
	}
}

func TestRelayTellsWhatFailed(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	r := *n.book.Load()
	r.Servers = map[string]string{"srv1": n.addr, "srv2": w.nodes["srv2.dc1"].addr, "srv3": closedPort(t)}
	n.book.Store(&r)
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	for node, want := range map[string]streamStatus{"srv2": streamNoPool, "srv3": streamUnreachable} {
		if got, err := askRaw(t, s, streamHeader{PoolWAN, node, "srv1.dc2"}.append(nil)); err != nil || got != want {
			t.Errorf("%s: status %d, %v; want %d", node, got, err, want)
		}
	}
}

func TestDeadSessionIsReplaced(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *timing) { tm.keepalive, tm.muxWrite = 50*time.Millisecond, 200*time.Millisecond })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	open := func() {
		t.Helper()
		c, err := t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		s := <-t2.StreamCh()
		checkHalfClose(t, c, s)
		c.Close()
		s.Close()
	}
	open()
	second := newGatewayDouble(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	r := *n1.book.Load()
	r.Hops = map[string][]Hop{"dc2": {{Addr: w.gws["dc2"].addr}, {Addr: second.addr}}}
	n1.book.Store(&r)
	w.gws["dc2"].freeze(true) // the session is dead, but nobody knows yet
	open()
	if got := n1.tun.Stats().Sessions; len(got) != 1 || got[0].Hop.Addr != second.addr {
		t.Errorf("sessions: %+v", got)
	}
}
