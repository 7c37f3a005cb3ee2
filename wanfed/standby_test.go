// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

var errTest = errors.New("no response")

// standbyFixture is a server of dc1 with a gRPC connection to dc2, which has
// two gateways. The connection uses the first gateway.
type standbyFixture struct {
	t             *testing.T
	n1, n2        *node
	first, second *fakeGateway
	c             *GRPCConn
}

func newStandbyFixture(t *testing.T) *standbyFixture {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	f := &standbyFixture{t: t, n1: w.nodes["srv1.dc1"], n2: w.nodes["srv1.dc2"], first: w.gws["dc2"]}
	f.n1.d.cfg.AttemptDelay = 4 * time.Second // the tests count dials: a slow machine must not cause more dials
	serveEchoCalls(t, f.n2)
	f.second = newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": f.n2.addr})
	f.n1.book.Store(bookOf(f.first.addr, f.second.addr))
	f.c = f.call()
	return f
}

func (f *standbyFixture) call() *GRPCConn {
	f.t.Helper()
	c, err := f.n1.tun.DialGRPC(f.t.Context(), "dc2")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	checkCall(f.t, c)
	return c
}

// awaitDials waits until each gateway has accepted a number of connections.
func (f *standbyFixture) awaitDials(first, second int) {
	f.t.Helper()
	testutil.Eventually(f.t, 10*time.Second,
		func() bool { return f.first.count() == first && f.second.count() == second },
		"%d dials of the first gateway, %d of the second", first, second)
}

// checkPath checks that the tunnel of n1 has one session, over g.
func (f *standbyFixture) checkPath(g *fakeGateway) {
	f.t.Helper()
	if s := f.n1.tun.Stats().Sessions; len(s) != 1 || s[0].Path.Addr != g.addr {
		f.t.Errorf("Stats().Sessions = %+v, want one over %s", s, g.addr)
	}
}

// checkBackoff checks that the next standby waits, for at most least plus
// jitter.
func (f *standbyFixture) checkBackoff(least time.Duration) {
	f.t.Helper()
	if rest := time.Until(f.c.session.notBefore); rest <= 0 || rest > least*5/4 {
		f.t.Errorf("time until the next standby = %v, want 0 to %v", rest, least*5/4)
	}
}

// A standby replaces its session when the probe of the session fails.
func TestStandby_Promoted(t *testing.T) {
	f := newStandbyFixture(t)
	f.first.freeze(true)
	settle, settleOther := f.c.OpenStandby(), f.c.OpenStandby()
	f.awaitDials(1, 1) // one standby for both probes, over the other path
	s := f.c.session
	testutil.Eventually(t, 10*time.Second, func() bool {
		f.n1.tun.mu.RLock()
		defer f.n1.tun.mu.RUnlock()
		return s.standby.isReady()
	}, "a standby that is ready")
	f.checkPath(f.first)
	f.c.MarkDead(errTest)
	settle(false)
	settleOther(false)
	f.checkPath(f.second)
	f.call()
	f.awaitDials(1, 1)
	for _, p := range f.n1.d.Paths() {
		if (p.Addr == f.first.addr) != (p.Health == PathFailing) {
			t.Errorf("health of path %s = %s, want only the first path failing", p.Addr, p.Health)
		}
	}
	if n := f.n1.tun.sessions[s.to]; n.active != nil || s.standby != nil {
		t.Errorf("active = %v, standby = %v after the promotion, want nil", n.active, s.standby)
	}
}

// The next call waits for a standby that is not ready yet, and does not dial.
// The path is not reported as failed, because the standby works over it.
func TestStandby_PromotedWhileDialing(t *testing.T) {
	f := newStandbyFixture(t)
	f.n1.book.Store(bookOf(f.first.addr))
	f.first.freeze(true)
	settle := f.c.OpenStandby()
	f.awaitDials(2, 0)
	f.c.MarkDead(errTest)
	settle(false)
	time.AfterFunc(50*time.Millisecond, func() { f.first.freeze(false) })
	f.call()
	f.checkPath(f.first)
	f.awaitDials(2, 0)
	if p := f.n1.d.Paths()[0]; p.Health != PathOK {
		t.Errorf("path = %+v, want health %s", p, PathOK)
	}
}

// A standby is dropped when the session is alive, or when the last probe has
// ended. The next standby waits for the backoff.
func TestStandby_Dropped(t *testing.T) {
	f := newStandbyFixture(t)
	connected := func() uint64 { return f.n2.mux.Stats().Accepted }
	settle, settleOther := f.c.OpenStandby(), f.c.OpenStandby()
	testutil.Eventually(t, 10*time.Second, func() bool { return connected() == 2 }, "the standby to be connected")
	settle(false)
	if f.c.session.standby == nil {
		t.Error("the standby was dropped during a probe, want it kept")
	}
	settleOther(false)
	testutil.Eventually(t, 10*time.Second, func() bool { return f.n2.streams() == 1 }, "the standby to be closed")
	f.call()
	f.checkPath(f.first)
	for n := range 3 {
		f.c.OpenStandby()(true) // during the backoff
		f.checkBackoff(minStandbyBackoff << n)
		f.awaitDials(1, 1+n)
		f.c.session.notBefore = time.Now()
		settle = f.c.OpenStandby()
		f.awaitDials(1, 2+n)
		settle(true)
	}
	f.c.session.notBefore = time.Now().Add(-2 * maxStandbyBackoff) // the backoff ended long ago
	f.c.OpenStandby()(true)
	f.checkBackoff(minStandbyBackoff)
	checkCall(t, f.c)
}

// If the dial of a standby fails, the next call dials as usual.
func TestStandby_DialFails(t *testing.T) {
	f := newStandbyFixture(t)
	f.n1.book.Store(bookOf(closedPort(t)))
	settle := f.c.OpenStandby()
	testutil.Eventually(t, 10*time.Second, func() bool {
		f.n1.tun.mu.RLock()
		defer f.n1.tun.mu.RUnlock()
		return f.c.session.standby == nil && !f.c.session.notBefore.IsZero()
	}, "the standby to fail")
	f.n1.book.Store(bookOf(f.first.addr, f.second.addr))
	f.c.MarkDead(errTest)
	settle(false)
	f.call()
	f.checkPath(f.second)
}

// streams counts the connections of sessions that n has accepted and that are
// open.
func (n *node) streams() int {
	for _, p := range n.mux.Stats().Protocols {
		if p.ALPN == ProtoStream {
			return p.Open
		}
	}
	return 0
}

// Disconnect closes the session. The next call opens another session.
func TestTunnel_Disconnect(t *testing.T) {
	f := newStandbyFixture(t)
	f.n1.tun.Disconnect("dc3")
	checkCall(t, f.c)
	f.n1.tun.Disconnect("dc2")
	if _, err := f.c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("Read() after Disconnect = %v, want closed", err)
	}
	if s := f.n1.tun.Stats().Sessions; len(s) != 0 {
		t.Errorf("Stats().Sessions after Disconnect = %+v, want none", s)
	}
	f.call()
	f.awaitDials(2, 0)
}
