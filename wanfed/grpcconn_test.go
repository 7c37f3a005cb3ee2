// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/net/nettest"

	"github.com/wanfed/wanfed/internal/testutil"
)

// serveEchoCalls accepts gRPC connections at n and echoes their bytes.
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
			go func() { // ends with c, at the latest when the tunnel ends
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	})
	t.Cleanup(func() { ln.Close() })
	return accepted
}

func checkCall(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	b := []byte("hello")
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
}

// gRPC and memberlist streams share the one session to a datacenter. Its
// certificates name the peers.
func TestDialGRPC_SharesTheSession(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	accepted := serveEchoCalls(t, n2)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	for range 2 { // the second over the open session
		c, err := n1.tun.DialGRPC(t.Context(), "dc2")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		checkCall(t, c)
		far := <-accepted
		if got := far.ConnectionState().PeerCertificates[0].DNSNames[0]; !strings.HasPrefix(got, "srv1.server.dc1") &&
			!strings.HasPrefix(got, "server.dc1") {
			t.Errorf("dc2 sees %q", got)
		}
		if got := c.ConnectionState().PeerCertificates[0].VerifyHostname("srv1.server.dc2.wanfed"); got != nil {
			t.Errorf("certificate that dc1 verifies: %v, want srv1.server.dc2", got)
		}
		if far.RemoteAddr().String() != "srv1.dc1" || c.IsClosed() {
			t.Errorf("remote %v, dead %v", far.RemoteAddr(), c.IsClosed())
		}
	}
	s, err := t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	(<-t2.StreamCh()).Close()
	if got := n2.mux.Stats().Accepted; got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	if s := n1.tun.Stats().Sessions; len(s) != 1 {
		t.Errorf("Sessions = %+v, want 1", s)
	}
}

func TestDialGRPC_Refused(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	var refused *refusedError
	read := func() error {
		c, err := n1.tun.DialGRPC(t.Context(), "dc2")
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = c.Read(make([]byte, 1)) // returns the status of the first stream of a new session
		return err
	}
	for range 2 {
		if err := read(); !errors.As(err, &refused) || refused.status != streamNoPool {
			t.Errorf("without a listener: Read() = %v, want status %d", err, streamNoPool)
		}
	}
	ln := n2.tun.GRPCListener()
	ln.Close()
	if err := read(); !errors.As(err, &refused) || refused.status != streamNoPool {
		t.Errorf("after Close of the listener: Read() = %v, want streamNoPool", err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want net.ErrClosed", err)
	}
	if _, err := n1.tun.DialGRPC(t.Context(), "dc1"); err == nil {
		t.Error("DialGRPC() to the local datacenter succeeds, want an error")
	}
	consul := newNode(t, w.a, "srv1", "dc3").asConsul()
	n1.book.Store(&AddressBook{Paths: map[string][]Path{"dc3": {{Addr: consul.addr}}}})
	for range 2 { // not known yet, and known
		if _, err := n1.tun.DialGRPC(t.Context(), "dc3"); err == nil || !strings.Contains(err.Error(), "Consul") {
			t.Errorf("DialGRPC() to Consul servers = %v, want an error that names Consul", err)
		}
	}
}

// A session that was marked dead takes no new calls, and its path is dialed
// last.
func TestGRPCConn_MarkDeadUsesAnotherPath(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	serveEchoCalls(t, n2)
	first := w.gws["dc2"]
	second := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	n1.book.Store(bookOf(first.addr, second.addr))
	c, err := n1.tun.DialGRPC(t.Context(), "dc2")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p := c.ProbeTimeout(); p < MinProbeTimeout || p > MaxProbeTimeout {
		t.Errorf("ProbeTimeout() = %v, want between the bounds", p)
	}
	c.MarkDead(errors.New("no answer"))
	<-c.Migrated()
	next, err := n1.tun.DialGRPC(t.Context(), "dc2")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	checkCall(t, next)
	checkCall(t, c) // a call in flight on a session that was marked dead by mistake continues
	if s := n1.tun.Stats().Sessions; len(s) != 1 || s[0].Path.Addr != second.addr {
		t.Errorf("Sessions = %+v, want one over the second gateway", s)
	}
}

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
		for { // skip unused streams of a session that was replaced because it seemed dead
			far, err := ln.Accept()
			if err != nil {
				return nil, nil, nil, err
			}
			var got [1]byte
			if _, err := io.ReadFull(far, got[:]); err == nil && got[0] == number {
				return c, far, func() { c.Close() }, nil
			}
			t.Log("skipped an unused stream")
			far.Close()
		}
	})
}

// The dial of a session continues while callers wait for it. A caller that
// stops because the paths changed restarts it for the others.
func TestSession_DialRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		}).start(newMemNet().listen("10.0.1.1:8300"), func(tm *limits) { tm.dialTimeout = time.Hour })
		n1.book.Store(bookOf("10.0.2.1:8300"))
		changed := errors.New("paths changed")
		for limit, why := range map[time.Duration]error{time.Second: context.DeadlineExceeded, 2 * time.Second: changed,
			4 * time.Second: nil} {
			go func() {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(limit, func() { cancel(why) })
				if _, err := n1.tun.DialGRPC(ctx, "dc2"); err == nil {
					t.Error("DialGRPC() succeeds over a dial that hangs")
				}
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(dials) != 2 || dials[0] != 0 || dials[1] != 2*time.Second {
			t.Errorf("dialed at %v, want at 0 s and at 2 s, when the paths changed", dials)
		}
		if s := n1.tun.Stats().Sessions; len(s) != 0 {
			t.Errorf("a dial without callers continues: sessions %+v, want none", s)
		}
	})
}

// A session closes after sessionIdleTimeout and two ticks without streams: not
// while a stream is open, and not at the first tick after, when the end of the
// last stream may be unread. The clock is real: yamux shares timers between
// sessions, which synctest forbids.
func TestSession_IdleTimeout(t *testing.T) {
	testutil.Cluster(t)
	const look = 50 * time.Millisecond
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.sessionIdleTimeout = 4 * look })
	n1 := w.nodes["srv1.dc1"]
	serveEchoCalls(t, w.nodes["srv1.dc2"])
	open := func() bool { return len(n1.tun.Stats().Sessions) > 0 }
	c, err := n1.tun.DialGRPC(t.Context(), "dc2")
	if err != nil {
		t.Fatal(err)
	}
	checkCall(t, c)
	time.Sleep(10 * look)
	if !open() {
		t.Fatal("the session closed while a stream was open")
	}
	began := time.Now()
	c.Close()
	testutil.Eventually(t, 10*time.Second, func() bool { return !open() }, "the session without streams to be closed")
	if took := time.Since(began); took < look {
		t.Errorf("the session closed after %v, want at least two ticks without streams", took)
	}
}

// After a late tick the next one comes a whole period later. Otherwise a
// machine that was suspended would see two ticks at once, and close a session
// while the end of its last stream is unread.
func TestSession_LateTickIsNotFollowedByAnother(t *testing.T) {
	testutil.Cluster(t)
	const look = 200 * time.Millisecond
	n := newWorld(t, 1, []string{"dc1"}, func(tm *limits) { tm.sessionIdleTimeout = 4 * look }).nodes["srv1.dc1"]
	near, far := net.Pipe()
	peer, err := yamux.Server(far, n.tun.limits.yamuxConfig(orDiscard(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	s := newSession(n.tun, target{dc: "dc2"}, "") // never used
	if s.mux, err = yamux.Client(near, n.tun.limits.yamuxConfig(orDiscard(nil))); err != nil {
		t.Fatal(err)
	}
	defer s.mux.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var awake time.Time
	s.watch(ctx, nil, func() bool {
		<-time.After(look * 19 / 10) // the first tick is late, and the second would be due
		awake = time.Now()
		return false
	})
	if took := time.Since(awake); took < look || ctx.Err() != nil {
		t.Errorf("the session closed %v after the late tick, %v; want at least one period", took, ctx.Err())
	}
}
