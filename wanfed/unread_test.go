// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/internal/testutil"
)

// streamBytes fits in the first window of a stream.
const streamBytes = 200 << 10

// fillStreams opens streams to the WAN pool, which nothing reads, and writes
// streamBytes to each, until the session is closed.
func fillStreams(t *testing.T, s *yamux.Session, streams int) (written int, err error) {
	t.Helper()
	for range streams {
		st, err := s.OpenStream()
		if err != nil {
			return written, err
		}
		b := streamHeader{PoolWAN, "", "srv1.dc3"}.append(nil)
		b = append(b, make([]byte, streamBytes)...)
		n, err := st.Write(b)
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// Peers of one datacenter that send more than maxUnread bytes, which nothing reads,
// lose the session. Streams of another datacenter work at the same time.
func TestServeStreams_Unread(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	n.tun.Transport(PoolWAN) // no receiver
	other := streamClient(t, n, w.a.server("srv1", "dc2"))
	written, err := fillStreams(t, streamClient(t, n, w.a.server("srv1", "dc3")), 4*maxUnread/streamBytes)
	if err == nil {
		t.Errorf("%d bytes written without an error, want that the session is closed", written)
	}
	if got, err := openRaw(t, other, streamHeader{PoolWAN, "", "srv1.dc2"}.append(nil)); err != nil || got != streamBusy {
		t.Errorf("status of a stream of another datacenter = %d, %v; want %d: no slot in the backlog", got, err, streamBusy)
	}
	testutil.Eventually(t, 10*time.Second, func() bool { return n.tun.Stats().Closed[faultBacklog.id] == 1 },
		"one fault %s", faultBacklog)
	if got := heldBy(n.tun.unread, "dc3"); got < maxUnread || got > 2*maxUnread {
		t.Errorf("bytes that count for dc3 after the end of its session = %d, want about %d", got, maxUnread)
	}
}

func heldBy(l *unreadLimit, dc string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[dc]
}

// head returns the header of a frame.
func head(kind byte, flags uint16, id uint32, n int) yamuxHead {
	return yamuxHead(yamuxHeader(kind, flags, id, uint32(n)))
}

// What counts for a datacenter follows the frames of its peers.
func TestUnreadSession_Counts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		const linger = time.Minute
		limit := newUnreadLimit(1000)
		u, v := limit.session("dc3", linger), limit.session("dc3", linger)
		frame := func(u *unreadSession, flags uint16, id uint32, n int) {
			t.Helper()
			if err := u.frame(head(yamuxTypeData, flags, id, n)); err != nil {
				t.Errorf("frame() of %d bytes = %v, want nil", n, err)
			}
		}
		check := func(what string, want int) {
			t.Helper()
			synctest.Wait() // for timers
			if got := heldBy(limit, "dc3"); got != want {
				t.Errorf("%s: held = %d, want %d", what, got, want)
			}
		}
		frame(u, yamuxSYN, 1, 100)
		frame(u, yamuxSYN, 3, 200)
		frame(u, yamuxSYN, 3, 10) // twice: yamux ends the session
		frame(v, yamuxSYN, 1, 300)
		frame(v, 0, 5, 1<<20) // no such stream
		check("two sessions", 610)
		frame(v, yamuxRST, 1, 0)
		check("reset", 310)
		frame(u, yamuxFIN, 1, 50)
		check("end of the peer's direction", 360)
		u.close(1)
		check("closed by both ends", 210)
		u.close(3)
		u.close(3)
		frame(u, 0, 3, 40)
		check("closed here", 250)
		time.Sleep(linger - time.Second)
		check("before yamux releases the stream", 250)
		time.Sleep(time.Second)
		check("after yamux has released the stream", 0)
		frame(v, yamuxSYN, 7, 70)
		v.end()
		frame(v, 0, 7, 70)
		check("end of the session", 70)
		time.Sleep(linger)
		check("later", 0)
		if err := u.frame(head(yamuxTypeData, yamuxSYN, 9, streamWindow+1)); err != nil || heldBy(limit, "dc3") > 0 {
			t.Errorf("frame() above the window of yamux = %v, held %d; want nil and 0", err, heldBy(limit, "dc3"))
		}
	})
}

// At the limit, a session waits until another one of its datacenter reads. It fails
// after unreadTimeout, and stops to wait when it is closed. A session of another
// datacenter does not wait.
func TestUnreadSession_Waits(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		limit := newUnreadLimit(1000)
		u, v, other := limit.session("dc3", time.Second), limit.session("dc3", time.Second), limit.session("dc2", time.Second)
		start := time.Now()
		frame := func(u *unreadSession, id uint32, wait time.Duration, want error) {
			t.Helper()
			begin := time.Now()
			err := u.frame(head(yamuxTypeData, yamuxSYN, id, 600))
			if took := time.Since(begin); !errors.Is(err, want) || took != wait {
				t.Errorf("frame() after %v = %v after %v, want %v after %v", begin.Sub(start), err, took, want, wait)
			}
		}
		frame(u, 1, 0, nil)
		time.AfterFunc(time.Second, func() { u.frame(head(yamuxTypeData, yamuxRST, 1, 0)) })
		frame(v, 1, time.Second, nil)
		frame(other, 1, 0, nil)
		frame(v, 3, unreadTimeout, errUnread)
		time.AfterFunc(time.Second, v.stopWaiting)
		frame(v, 5, time.Second, nil)
	})
}

// A session may not open more streams than yamux and the tunnel accept.
func TestUnreadSession_Streams(t *testing.T) {
	u := newUnreadLimit(1000).session("dc3", time.Second)
	for id := range uint32(2 * maxOpenStreams) {
		if err := u.frame(head(yamuxTypeWindow, yamuxSYN, 2*id+1, 0)); err != nil {
			t.Fatalf("frame() of stream %d = %v, want nil", id, err)
		}
	}
	if err := u.frame(head(yamuxTypeWindow, yamuxSYN, 1<<20, 0)); !errors.Is(err, errTooManyStreams) {
		t.Errorf("frame() of one more stream = %v, want %v", err, errTooManyStreams)
	}
}

// The memory of a stream that was read counts no longer, and its buffer is
// released, while the stream stays open.
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
	c := newStreamConn(st, "srv1.dc3")
	c.unread = limit.session("dc3", time.Second)
	const n = 64 << 10
	if err := c.unread.frame(head(yamuxTypeData, yamuxSYN, st.StreamID(), n)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	for read := 0; read < n; {
		if got := heldBy(limit, "dc3"); got != n {
			t.Errorf("held after %d bytes were read = %d, want %d", read, got, n)
		}
		k, err := c.Read(make([]byte, n/4))
		if err != nil {
			t.Fatal(err)
		}
		read += k
	}
	if got := heldBy(limit, "dc3"); got != 0 {
		t.Errorf("held after all was read = %d, want 0", got)
	}
}
