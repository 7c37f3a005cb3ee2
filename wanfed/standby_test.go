// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

var errTest = errors.New("no answer")

// standbyRig is a server of dc1 with a gRPC connection to dc2, which has two
// gateways. The connection uses the first.
type standbyRig struct {
	t             *testing.T
	n1, n2        *node
	first, second *fakeGateway
	c             *GRPCConn
}

func newStandbyRig(t *testing.T) *standbyRig {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	r := &standbyRig{t: t, n1: w.nodes["srv1.dc1"], n2: w.nodes["srv1.dc2"], first: w.gws["dc2"]}
	r.n1.d.cfg.AttemptDelay = 4 * time.Second // the test counts dials: a slow machine must not cause more
	serveEchoCalls(t, r.n2)
	r.second = newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": r.n2.addr})
	r.n1.book.Store(bookOf(r.first.addr, r.second.addr))
	r.c = r.call()
	return r
}

func (r *standbyRig) call() *GRPCConn {
	r.t.Helper()
	c, err := r.n1.tun.DialGRPC(r.t.Context(), "dc2")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	checkCall(r.t, c)
	return c
}

func (r *standbyRig) dialed(first, second int) {
	r.t.Helper()
	testutil.Eventually(r.t, 10*time.Second,
		func() bool { return r.first.count() == first && r.second.count() == second }, "the dials")
}

func (r *standbyRig) over(g *fakeGateway) {
	r.t.Helper()
	if s := r.n1.tun.Stats().Sessions; len(s) != 1 || s[0].Path.Addr != g.addr {
		r.t.Errorf("sessions: %+v, want one over %s", s, g.addr)
	}
}

func TestStandby_Promoted(t *testing.T) {
	r := newStandbyRig(t)
	r.first.freeze(true)
	settle, again := r.c.OpenStandby(), r.c.OpenStandby()
	r.dialed(1, 1) // one standby for both probes, over the other path
	s := r.c.session
	testutil.Eventually(t, 10*time.Second, func() bool {
		r.n1.tun.mu.RLock()
		defer r.n1.tun.mu.RUnlock()
		return s.standby.isReady()
	}, "a standby that is ready")
	r.over(r.first)
	r.c.MarkDead(errTest)
	settle(false)
	again(false)
	r.over(r.second)
	r.call()
	r.dialed(1, 1)
	for _, p := range r.n1.d.Paths() {
		if (p.Addr == r.first.addr) != (p.Health == PathFailing) {
			t.Errorf("%s is %s", p.Addr, p.Health)
		}
	}
	if n := r.n1.tun.sessions[s.to]; n.active != nil || s.standby != nil {
		t.Error("ended sessions are still referenced")
	}
}

// The next call waits for a standby that is not ready yet, without another
// dial. Its gateway, which works, is not reported as failed.
func TestStandby_PromotedWhileDialing(t *testing.T) {
	r := newStandbyRig(t)
	r.n1.book.Store(bookOf(r.first.addr))
	r.first.freeze(true)
	settle := r.c.OpenStandby()
	r.dialed(2, 0)
	r.c.MarkDead(errTest)
	settle(false)
	time.AfterFunc(50*time.Millisecond, func() { r.first.freeze(false) })
	r.call()
	r.over(r.first)
	r.dialed(2, 0)
	if p := r.n1.d.Paths()[0]; p.Health != PathOK {
		t.Errorf("path = %+v, want PathOK", p)
	}
}

// A standby is dropped when the session is alive, or when the last probe has
// ended. The next one waits for the backoff.
func TestStandby_Dropped(t *testing.T) {
	r := newStandbyRig(t)
	connected := func() uint64 { return r.n2.mux.Stats().Accepted }
	settle, other := r.c.OpenStandby(), r.c.OpenStandby()
	testutil.Eventually(t, 10*time.Second, func() bool { return connected() == 2 }, "the standby to be connected")
	settle(false)
	if r.c.session.standby == nil {
		t.Error("the standby was dropped while a probe was running")
	}
	other(false)
	testutil.Eventually(t, 10*time.Second, func() bool { return r.n2.streams() == 1 }, "the standby to be closed")
	r.call()
	r.over(r.first)
	for n := range 3 {
		r.c.OpenStandby()(true) // during the backoff
		if rest := time.Until(r.c.session.notBefore); rest <= 0 || rest > minStandbyBackoff<<n*5/4 {
			t.Errorf("after %d standbys: backoff %v", n+1, rest)
		}
		r.dialed(1, 1+n)
		r.c.session.notBefore = time.Now()
		settle = r.c.OpenStandby()
		r.dialed(1, 2+n)
		settle(true)
	}
	r.c.session.notBefore = time.Now().Add(-2 * maxStandbyBackoff) // the backoff ended long ago
	r.c.OpenStandby()(true)
	if rest := time.Until(r.c.session.notBefore); rest <= 0 || rest > minStandbyBackoff*5/4 {
		t.Errorf("after a long time: backoff %v, want the minimum", rest)
	}
	checkCall(t, r.c)
}

// If the dial of a standby fails, the next call dials as usual.
func TestStandby_DialFails(t *testing.T) {
	r := newStandbyRig(t)
	r.n1.book.Store(bookOf(closedPort(t)))
	settle := r.c.OpenStandby()
	testutil.Eventually(t, 10*time.Second, func() bool {
		r.n1.tun.mu.RLock()
		defer r.n1.tun.mu.RUnlock()
		return r.c.session.standby == nil && !r.c.session.notBefore.IsZero()
	}, "the standby to fail")
	r.n1.book.Store(bookOf(r.first.addr, r.second.addr))
	r.c.MarkDead(errTest)
	settle(false)
	r.call()
	r.over(r.second)
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
