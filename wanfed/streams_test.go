// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// streamClient opens a raw yamux session to n.
func streamClient(t testing.TB, n *node, id *tlsutil.Identity) *yamux.Session {
	t.Helper()
	cfg := defaultLimits().yamuxConfig(orDiscard(nil))
	s, err := yamux.Client(rawConn(t, n, id, ProtoStream), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// openRaw sends header bytes on a new stream and returns the status.
func openRaw(t *testing.T, s *yamux.Session, header []byte) (streamStatus, error) {
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

// The status of a stream depends on its header and on the peer.
func TestServeStream_Header(t *testing.T) {
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
		{"for this server", far, streamHeader{PoolWAN, "srv1", "srv1.dc2"}.append(nil), streamOK},
		{"for any server", far, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil), streamOK},
		{"relayed", far, streamHeader{PoolWAN, "srv2", "srv1.dc2"}.append(nil), streamOK},
		{"unknown node", far, streamHeader{PoolWAN, "srv9", "srv1.dc2"}.append(nil), streamUnknownNode},
		{"LAN from another datacenter", far, streamHeader{PoolLAN, "srv1", "srv1.dc2"}.append(nil), streamNotAllowed},
		{"source is another server", far, streamHeader{PoolWAN, "srv1", "srv2.dc2"}.append(nil), streamNotAllowed},
		{"source in another datacenter", far, streamHeader{PoolWAN, "srv1", "srv1.dc3"}.append(nil), streamNotAllowed},
		{"no LAN pool here", near, streamHeader{PoolLAN, "srv1", "srv2.dc1"}.append(nil), streamNoPool},
		{"by relay", near, streamHeader{PoolWAN, "srv1", "srv1.dc2"}.append(nil), streamOK},
		{"relay of a relay", near, streamHeader{PoolWAN, "srv2", "srv1.dc2"}.append(nil), streamNotAllowed},
		{"relay of LAN", near, streamHeader{PoolLAN, "srv1", "srv1.dc2"}.append(nil), streamNotAllowed},
		{"relay inside", near, streamHeader{PoolWAN, "srv1", "srv3.dc1"}.append(nil), streamNotAllowed},
		{"garbage", far, []byte("GET / HTTP/1.1\r\n\r\n"), streamBadHeader},
		{"other version", far, unhex(t, "52 01 00 05 612e646331"), streamBadHeader},
	} {
		if got, err := openRaw(t, tt.s, tt.header); err != nil || got != tt.want {
			t.Errorf("%s: status = %d, %v; want %d", tt.name, got, err, tt.want)
		}
	}
	testutil.Eventually(t, 5*time.Second, func() bool {
		got := n.tun.Stats().Closed
		return got[faultHeader.id] == 2 && got[faultSource.id] == 4
	}, "2 faults %s and 4 faults %s", faultHeader, faultSource)
}

// A stream without a complete header times out. It does not delay other
// streams.
func TestServeStream_SilentStream(t *testing.T) {
	testutil.Cluster(t)
	// long enough for the complete header
	w := newWorld(t, 1, []string{"dc1"}, func(tm *limits) { tm.frameTimeout = 2 * time.Second })
	n := w.nodes["srv1.dc1"]
	n.tun.Transport(PoolWAN)
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	silent, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Write([]byte{streamVersion}); err != nil { // yamux opens a stream at the first write
		t.Fatal(err)
	}
	if got, err := openRaw(t, s, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil)); err != nil || got != streamOK {
		t.Errorf("status next to a silent stream = %d, %v; want %d", got, err, streamOK)
	}
	silent.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("Read() of the silent stream = %v, want EOF", err)
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return n.tun.Stats().Closed[faultStalled.id] == 1 },
		"one fault %s", faultStalled)
}

// A server refuses a stream when memberlist has not read streamBacklog streams.
func TestServeStream_TooMany(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN) // no receiver
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	ok, busy := 0, 0
	for range streamBacklog + 2 {
		switch got, err := openRaw(t, s, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil)); {
		case err != nil:
			t.Fatal(err)
		case got == streamOK:
			ok++
			testutil.Eventually(t, 5*time.Second, func() bool { return len(tr.StreamCh()) == ok },
				"a stream in the backlog")
		case got == streamBusy:
			busy++
		}
	}
	if ok != streamBacklog || busy != 2 {
		t.Errorf("%d streams accepted, %d refused, want %d and 2", ok, busy, streamBacklog)
	}
}

// A relaying server forwards the status of the target, or reports that it
// cannot reach the target.
func TestServeStream_RelayStatus(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	r := *n.book.Load()
	r.Servers = map[string]string{"srv1": n.addr, "srv2": w.nodes["srv2.dc1"].addr, "srv3": closedPort(t)}
	n.book.Store(&r)
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	for node, want := range map[string]streamStatus{"srv2": streamNoPool, "srv3": streamUnreachable} {
		if got, err := openRaw(t, s, streamHeader{PoolWAN, node, "srv1.dc2"}.append(nil)); err != nil || got != want {
			t.Errorf("status of a stream to %s = %d, %v; want %d", node, got, err, want)
		}
	}
}

// A stream over a dead session is opened over a new session.
func TestSession_DeadIsReplaced(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"},
		func(tm *limits) { tm.keepaliveInterval, tm.keepaliveTimeout = 50*time.Millisecond, 2*time.Second })
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
	second := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	r := *n1.book.Load()
	r.Paths = map[string][]Path{"dc2": {{Addr: w.gws["dc2"].addr}, {Addr: second.addr}}}
	n1.book.Store(&r)
	w.gws["dc2"].freeze(true) // the session is dead, but this is not detected yet
	open()
	if got := n1.tun.Stats().Sessions; len(got) != 1 || got[0].Path.Addr != second.addr {
		t.Errorf("Sessions = %+v, want one over the second gateway", got)
	}
}
