// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/net/nettest"

	"github.com/wanfed/wanfed/internal/testutil"
)

// serveEchoCalls accepts gRPC connections at n and sends their bytes back. It
// also sends each connection to accepted.
func serveEchoCalls(t *testing.T, n *node) (accepted chan *GRPCConn) {
	t.Helper()
	ln := n.tun.GRPCListener()
	accepted = make(chan *GRPCConn, 16)
	background(t, func(context.Context) error {
		for {
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			accepted <- c.(*GRPCConn)
			go func() { // ends with c, or when the tunnel ends
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	})
	t.Cleanup(func() { ln.Close() })
	return accepted
}

// checkCall sends bytes to serveEchoCalls and receives the same bytes.
func checkCall(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatalf("Write() = %v, want nil", err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Fatalf("ReadFull() = %q, %v, want %q, nil", got, err, "hello")
	}
}

// dialGRPC opens a gRPC connection from n to dc2 and closes it at the end of
// the test.
func dialGRPC(t *testing.T, n *node) *GRPCConn {
	t.Helper()
	c, err := n.tun.DialGRPC(t.Context(), "dc2")
	if err != nil {
		t.Fatalf("DialGRPC(dc2) = %v, want nil", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestDialGRPC_SharesTheSession proves that gRPC and memberlist streams use the
// same session to a datacenter, and that its certificates name the peers.
func TestDialGRPC_SharesTheSession(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	accepted := serveEchoCalls(t, n2)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	for range 2 { // the second connection uses the open session
		dialed := dialGRPC(t, n1)
		checkCall(t, dialed)
		far := <-accepted
		for c, name := range map[*GRPCConn]string{far: "srv1.server.dc1.wanfed", dialed: "srv1.server.dc2.wanfed"} {
			if err := c.ConnectionState().PeerCertificates[0].VerifyHostname(name); err != nil {
				t.Errorf("VerifyHostname(%s) of the peer certificate = %v, want nil", name, err)
			}
			if c.IsClosed() {
				t.Errorf("IsClosed() of the connection to %s = true, want false", name)
			}
		}
		if got := far.RemoteAddr().String(); got != "srv1.dc1" {
			t.Errorf("RemoteAddr() of the accepted connection = %s, want srv1.dc1", got)
		}
	}
	stream, err := t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
	if err != nil {
		t.Fatalf("DialAddressTimeout(srv1.dc2) = %v, want nil", err)
	}
	defer stream.Close()
	(<-t2.StreamCh()).Close()
	if got := n2.mux.Stats().Accepted; got != 1 {
		t.Errorf("connections that dc2 accepted = %d, want 1", got)
	}
	if got := n1.tun.Stats().Sessions; len(got) != 1 {
		t.Errorf("Stats().Sessions = %+v, want 1 session", got)
	}
}

// TestDialGRPC_Refused dials servers without a gRPC listener, the local
// datacenter, and servers that speak Consul's protocols.
func TestDialGRPC_Refused(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	dialAndRead := func() error {
		c, err := n1.tun.DialGRPC(t.Context(), "dc2")
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = c.Read(make([]byte, 1)) // the first stream of a new session receives its status here
		return err
	}
	checkRefused := func(when string) {
		t.Helper()
		err := dialAndRead()
		if refused, ok := errors.AsType[*refusedError](err); !ok || refused.status != streamNoPool {
			t.Errorf("DialGRPC(dc2) and Read() %s = %v, want status %d", when, err, streamNoPool)
		}
	}
	checkRefused("without a listener")
	checkRefused("without a listener, over the open session")
	ln := n2.tun.GRPCListener()
	ln.Close()
	checkRefused("after Close of the listener")
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want %v", err, net.ErrClosed)
	}
	if _, err := n1.tun.DialGRPC(t.Context(), "dc1"); err == nil {
		t.Error("DialGRPC(dc1) in dc1 = nil, want an error")
	}
	consul := newNode(t, w.a, "srv1", "dc3").asConsul()
	n1.book.Store(&AddressBook{Paths: map[string][]Path{"dc3": {{Addr: consul.addr}}}})
	for range 2 { // the first dial detects Consul's protocols
		if _, err := n1.tun.DialGRPC(t.Context(), "dc3"); err == nil || !strings.Contains(err.Error(), "Consul") {
			t.Errorf("DialGRPC(dc3) with Consul servers = %v, want an error that names Consul", err)
		}
	}
}

// TestGRPCConn_MarkDeadUsesAnotherPath proves that new calls avoid the path of
// a session after MarkDead. Calls in flight continue.
func TestGRPCConn_MarkDeadUsesAnotherPath(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	serveEchoCalls(t, n2)
	first := w.gws["dc2"]
	second := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	n1.book.Store(bookOf(first.addr, second.addr))
	inFlight := dialGRPC(t, n1)
	if got := inFlight.ProbeTimeout(); got < MinProbeTimeout || got > MaxProbeTimeout {
		t.Errorf("ProbeTimeout() = %v, want %v to %v", got, MinProbeTimeout, MaxProbeTimeout)
	}
	inFlight.MarkDead(errors.New("no response"))
	<-inFlight.Migrated()
	checkCall(t, dialGRPC(t, n1))
	checkCall(t, inFlight)
	if got := n1.tun.Stats().Sessions; len(got) != 1 || got[0].Path.Addr != second.addr {
		t.Errorf("Stats().Sessions = %+v, want 1 session over %s", got, second.addr)
	}
}

// TestGRPCConn_NetConn runs the conformance tests of net.Conn.
func TestGRPCConn_NetConn(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, ln := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"].tun.GRPCListener()
	number := byte(0)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		c, err := n1.tun.DialGRPC(t.Context(), "dc2")
		if err != nil {
			return nil, nil, nil, err
		}
		number++
		if _, err := c.Write([]byte{number}); err != nil {
			return nil, nil, nil, err
		}
		for { // a replaced session may have left streams without a number, which are skipped
			far, err := ln.Accept()
			if err != nil {
				return nil, nil, nil, err
			}
			var first [1]byte
			if _, err := io.ReadFull(far, first[:]); err == nil && first[0] == number {
				return c, far, func() { c.Close() }, nil
			}
			far.Close()
		}
	})
}

// TestSession_DialRestarts starts three callers that wait for one dial. The
// dial continues after the timeout of the first caller. It starts again when
// the second caller reports changed paths. It ends with the third caller.
func TestSession_DialRestarts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		a := newAuthority(t)
		var dials []time.Duration
		began := time.Now()
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.AttemptTimeout = time.Hour
			c.DialTCP = func(ctx context.Context, _ string) (net.Conn, error) {
				dials = append(dials, time.Since(began))
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}).start(newMemNet().listen("10.0.1.1:8300"), func(l *limits) { l.dialTimeout = time.Hour })
		n1.book.Store(bookOf("10.0.2.1:8300"))
		for wait, cause := range map[time.Duration]error{
			time.Second: context.DeadlineExceeded, 2 * time.Second: errors.New("paths changed"), 4 * time.Second: nil,
		} {
			go func() {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(wait, func() { cancel(cause) })
				if _, err := n1.tun.DialGRPC(ctx, "dc2"); err == nil {
					t.Error("DialGRPC() over a blocked dial = nil, want an error")
				}
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []time.Duration{0, 2 * time.Second}; !slices.Equal(dials, want) {
			t.Errorf("dials after %v, want %v", dials, want)
		}
		if got := n1.tun.Stats().Sessions; len(got) != 0 {
			t.Errorf("Stats().Sessions without callers = %+v, want none", got)
		}
	})
}

// TestSession_Keepalive proves that a session with a stream detects a dead path
// without a call, and that a session without streams sends no pings. The test uses
// the real clock, like TestSession_IdleTimeout.
func TestSession_Keepalive(t *testing.T) {
	testutil.Cluster(t)
	const interval, timeout = 20 * time.Millisecond, 300 * time.Millisecond
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(l *limits) { l.keepaliveInterval, l.keepaliveTimeout = interval, timeout })
	n1 := w.nodes["srv1.dc1"]
	serveEchoCalls(t, w.nodes["srv1.dc2"])
	sessions := func() []SessionStatus { return n1.tun.Stats().Sessions }
	c := dialGRPC(t, n1)
	checkCall(t, c)
	c.Close()
	testutil.Eventually(t, 10*time.Second, func() bool { return sessions()[0].Streams == 0 }, "the end of the stream")
	time.Sleep(2 * interval) // the last ping is answered
	w.gws["dc2"].freeze(true)
	time.Sleep(2 * (interval + timeout))
	if got := sessions(); len(got) != 1 {
		t.Fatalf("Sessions without streams = %+v, want the session over the dead path, which no ping has found", got)
	}
	w.gws["dc2"].freeze(false)
	c = dialGRPC(t, n1)
	checkCall(t, c)
	w.gws["dc2"].freeze(true)
	testutil.Eventually(t, 10*time.Second, func() bool { return len(sessions()) == 0 }, "the end of the session over a dead path")
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("Read() = %v, want the end of the stream", err)
	}
}

// TestSession_IdleTimeout proves that a session closes after sessionIdleTimeout
// without streams, but not at the first tick after the last stream. At that
// tick the end of the last stream may be unread. The test uses the real clock,
// because yamux shares timers between sessions, which synctest forbids.
func TestSession_IdleTimeout(t *testing.T) {
	testutil.Cluster(t)
	const tick = 50 * time.Millisecond // a fourth of sessionIdleTimeout
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(l *limits) { l.sessionIdleTimeout = 4 * tick })
	n1 := w.nodes["srv1.dc1"]
	serveEchoCalls(t, w.nodes["srv1.dc2"])
	isOpen := func() bool { return len(n1.tun.Stats().Sessions) > 0 }
	c := dialGRPC(t, n1)
	checkCall(t, c)
	time.Sleep(10 * tick)
	if !isOpen() {
		t.Fatal("the session with an open stream is closed, want open")
	}
	began := time.Now()
	c.Close()
	testutil.Eventually(t, 10*time.Second, func() bool { return !isOpen() }, "the session without streams to be closed")
	if took := time.Since(began); took < tick {
		t.Errorf("the session closed after %v, want at least %v", took, tick)
	}
}

// TestSession_LateTickIsNotFollowedByAnother delays the first tick, as on a
// machine that was suspended. Two ticks at once would close a session while the
// end of its last stream is unread.
func TestSession_LateTickIsNotFollowedByAnother(t *testing.T) {
	testutil.Cluster(t)
	const tick = 200 * time.Millisecond // a fourth of sessionIdleTimeout
	n := newWorld(t, 1, []string{"dc1"}, func(l *limits) { l.sessionIdleTimeout = 4 * tick }).nodes["srv1.dc1"]
	near, far := net.Pipe()
	peer, err := yamux.Server(far, n.tun.limits.yamuxConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	s := newSession(n.tun, target{dc: "dc2"}, "") // without streams
	if s.mux, err = yamux.Client(near, n.tun.limits.yamuxConfig(orDiscard(nil))); err != nil {
		t.Fatal(err)
	}
	defer s.mux.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var resumed time.Time
	s.watch(ctx, nil, func() bool {
		<-time.After(tick * 19 / 10) // the first tick is late, and the second tick is almost due
		resumed = time.Now()
		return false
	})
	if took := time.Since(resumed); took < tick || ctx.Err() != nil {
		t.Errorf("watch() returned %v after the late tick with ctx.Err() = %v, want at least %v and nil", took,
			ctx.Err(), tick)
	}
}
