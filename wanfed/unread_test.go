// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/internal/testutil"
)

// streamBytes fits in the first window of a stream.
const streamBytes = 200 << 10

// fillStreams opens streams for gRPC and writes streamBytes to each, until the
// session is closed.
func fillStreams(s *yamux.Session, source string, streams int) (written int, err error) {
	for range streams {
		st, err := s.OpenStream()
		if err != nil {
			return written, err
		}
		n, err := st.Write(append(streamHeader{poolGRPC, "", source}.append(nil), make([]byte, streamBytes)...))
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// Of two sessions of one datacenter that exceed maxUnread, the larger one is closed,
// and its memory is released. The other one continues, and another datacenter never
// waits.
func TestServeStreams_Unread(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	defer n.tun.GRPCListener().Close() // accepts nothing
	n.tun.Transport(PoolWAN)
	other, small := streamClient(t, n, w.a.server("srv1", "dc2")), streamClient(t, n, w.a.server("srv2", "dc3"))
	if _, err := fillStreams(small, "srv2.dc3", 3); err != nil {
		t.Fatal(err)
	}
	large := streamClient(t, n, w.a.server("srv1", "dc3"))
	written, err := fillStreams(large, "srv1.dc3", 4*maxUnread/streamBytes)
	if err == nil {
		t.Errorf("%d bytes written without an error, want that the session is closed", written)
	}
	testutil.Eventually(t, 10*time.Second, func() bool { return n.tun.Stats().Closed[faultBacklog.id] == 1 },
		"one fault %s", faultBacklog)
	for name, s := range map[string]*yamux.Session{"srv1.dc2": other, "srv2.dc3": small} {
		if got, err := openRaw(t, s, streamHeader{PoolWAN, "", name}.append(nil)); err != nil || got != streamOK {
			t.Errorf("status of a stream of %s = %d, %v; want %d, nil", name, got, err, streamOK)
		}
	}
	if got := heldBy(n.tun.unread, "dc3"); got < 3*streamBytes || got > 4*streamBytes {
		t.Errorf("unread bytes of dc3 without the closed session = %d, want about %d", got, 3*streamBytes)
	}
	small.Close()
	testutil.Eventually(t, 10*time.Second, func() bool { return heldBy(n.tun.unread, "dc3") == 0 },
		"the bytes of dc3 to be released")
}

// A server that closes streams without reading them keeps no byte of them, and the
// peer may continue to send.
func TestServeStreams_UnreadOfClosed(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"] // without a listener, so it refuses the streams
	s := streamClient(t, n, w.a.server("srv1", "dc3"))
	written, err := fillStreams(s, "srv1.dc3", 2*maxUnread/streamBytes)
	if err != nil {
		t.Errorf("Write() after %d bytes = %v, want nil", written, err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool { return heldBy(n.tun.unread, "dc3") == 0 },
		"the bytes of closed streams to be released")
}

// A stream carries 64 MB, although its reader is always slower than its sender and
// a second stream of the session is not read.
func TestServeStreams_SlowReader(t *testing.T) {
	testutil.Cluster(t)
	const total, lag = 64 << 20, 1 << 20
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n2 := w.nodes["srv1.dc2"]
	ln := n2.tun.GRPCListener()
	accept := func() (*GRPCConn, net.Conn) {
		dialed := dialGRPC(t, w.nodes["srv1.dc1"])
		far, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { far.Close() })
		return dialed, far
	}
	send := func(c net.Conn, n int) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, n))
			done <- err
		}()
		return done
	}
	silent, _ := accept()
	silent.SetDeadline(time.Now().Add(time.Minute))
	send(silent, streamWindow)
	c, far := accept()
	sent := send(c, total)
	counts := far.(*GRPCConn).unread
	b := make([]byte, 256<<10)
	for read := 0; read < total; {
		if total-read > lag { // leaves some bytes unread
			testutil.Eventually(t, 30*time.Second, func() bool { return unreadOf(counts) > lag }, "unread bytes")
		}
		n, err := far.Read(b)
		if read += n; err != nil {
			t.Fatalf("Read() after %d bytes = %v, want nil", read, err)
		}
	}
	if err := <-sent; err != nil {
		t.Errorf("Write() = %v, want nil", err)
	}
	if got := n2.tun.Stats().Closed[faultBacklog.id]; got != 0 {
		t.Errorf("faults %s = %d, want 0", faultBacklog, got)
	}
}

// The end of a session ends its relayed streams, although their targets do not read.
func TestServeStreams_EndOfRelay(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 2, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	w.nodes["srv2.dc1"].tun.Transport(PoolWAN) // no receiver
	s := streamClient(t, n, w.a.server("srv1", "dc2"))
	st, err := s.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	b := append(streamHeader{PoolWAN, "srv2", "srv1.dc2"}.append(nil), make([]byte, 3*streamWindow)...)
	go st.Write(b) // until the end of the session
	target := w.nodes["srv2.dc1"].tun.unread
	testutil.Eventually(t, 30*time.Second, func() bool {
		return heldBy(target, "dc1") > streamWindow-streamChunk && heldBy(n.tun.unread, "dc2") >= streamWindow/4
	}, "unread bytes at both servers of a relayed stream")
	s.Close()
	testutil.Eventually(t, 10*time.Second, func() bool { return n.tun.unread.len() == 0 }, "the end of the session")
}

func (l *unreadLimit) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sessions)
}

func heldBy(l *unreadLimit, dc string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[dc]
}

func unreadOf(s *unreadStream) int {
	s.session.limit.mu.Lock()
	defer s.session.limit.mu.Unlock()
	return s.unread
}

// head returns the header of a frame.
func head(kind byte, flags uint16, id uint32, n int) yamuxHead {
	return yamuxHead(yamuxHeader(kind, flags, id, uint32(n)))
}

// What counts for a datacenter follows the frames of its peers.
func TestUnreadSession_Counts(t *testing.T) {
	limit := newUnreadLimit(1000)
	u, v := limit.session(t.Context(), "dc3", nil), limit.session(t.Context(), "dc3", nil)
	check := func(u *unreadSession, flags uint16, id uint32, n int, wantKeep bool, want int) {
		t.Helper()
		keep, err := u.frame(head(yamuxTypeData, flags, id, n))
		if got := heldBy(limit, "dc3"); err != nil || keep != wantKeep || got != want {
			t.Errorf("frame() of %d bytes of stream %d = %t, %v, held %d; want %t, nil, %d", n, id, keep, err, got,
				wantKeep, want)
		}
	}
	check(u, yamuxSYN, 1, 100, true, 100)
	check(u, yamuxSYN, 3, 200, true, 300)
	check(u, yamuxSYN, 3, 10, true, 310) // twice: yamux ends the session
	check(v, yamuxSYN, 1, 300, true, 610)
	check(v, 0, 5, 1<<20, false, 610) // no such stream
	check(v, yamuxSYN, 7, streamWindow+1, true, 610)
	check(v, yamuxRST, 1, 0, true, 310)
	check(v, 0, 1, 50, false, 310) // after the reset
	v.reset(7)                     // above the backlog
	check(v, 0, 7, 50, false, 310)
	st := u.accept(1)
	u.reset(1) // its data is unread until close
	st.read(nil, 60)
	check(u, 0, 1, 50, true, 310)
	st.read(nil, 50)
	check(u, 0, 1, 60, true, 310)
	check(u, 0, 1, 1, true, 311)
	st.read(nil, 101)
	check(u, 0, 3, 0, true, 210)
	st.close(nil) // without unread bytes
	check(u, 0, 1, 50, false, 210)
	u.end()
	check(u, yamuxSYN, 9, 50, false, 0)
	v.end()
	if len(limit.sessions) > 0 || len(limit.held) > 0 {
		t.Errorf("%d sessions, %v held after the end of all; want none", len(limit.sessions), limit.held)
	}
}

// At the limit, a frame waits until another session of its datacenter reads. After
// unreadTimeout, the session with the most unread bytes is closed. The wait ends
// when its session is closed. A session of another datacenter does not wait.
func TestUnreadSession_Waits(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		limit := newUnreadLimit(1000)
		session := func(dc string) *unreadSession {
			ctx, fail := context.WithCancelCause(t.Context())
			return limit.session(ctx, dc, fail)
		}
		u, v, other := session("dc3"), session("dc3"), session("dc2")
		frame := func(u *unreadSession, id uint32, n int, wait time.Duration, want error) {
			t.Helper()
			begin := time.Now()
			_, err := u.frame(head(yamuxTypeData, yamuxSYN, id, n))
			if took := time.Since(begin); !errors.Is(err, want) || took != wait {
				t.Errorf("frame() = %v after %v, want %v after %v", err, took, want, wait)
			}
		}
		frame(u, 1, 600, 0, nil)
		time.AfterFunc(time.Second, func() { u.accept(1).read(nil, 600) })
		frame(v, 1, 500, time.Second, nil)
		frame(other, 1, 900, 0, nil)
		frame(u, 3, 400, 0, nil)
		frame(u, 5, 300, unreadTimeout, nil)
		if got := context.Cause(v.ctx); !errors.Is(got, errUnread) || u.ctx.Err() != nil {
			t.Errorf("causes of the ends of the two sessions = %v, %v; want nil, %v", u.ctx.Err(), got, errUnread)
		}
		time.AfterFunc(time.Second, u.stop)
		frame(u, 7, 500, time.Second, context.Canceled)
		synctest.Wait()
	})
}

// The buffer of a stream that was read is released, while the stream stays open.
func TestStreamConn_ReadReleases(t *testing.T) {
	client, server, _ := countingPair(t)
	out, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	st, err := server.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	limit := newUnreadLimit(1 << 20)
	u := limit.session(t.Context(), "dc3", nil)
	c := newStreamConn(st, "srv1.dc3")
	const n = 64 << 10
	if _, err := u.frame(head(yamuxTypeData, yamuxSYN, st.StreamID(), n)); err != nil {
		t.Fatal(err)
	}
	c.unread = u.accept(st.StreamID())
	if _, err := out.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	var held []int
	for read := 0; read < n; {
		held = append(held, heldBy(limit, "dc3"))
		k, err := c.Read(make([]byte, n/4))
		if err != nil {
			t.Fatal(err)
		}
		read += k
	}
	held = append(held, heldBy(limit, "dc3"))
	if want := []int{n, n, n, n, 0}; !slices.Equal(held, want) {
		t.Errorf("held before each read and after the last one = %v, want %v", held, want)
	}
}
