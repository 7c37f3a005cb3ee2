// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestDialLimit_Saturation shares one processor among 500 dials. The dials stay
// bounded, and all complete.
func TestDialLimit_Saturation(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		const cost = 300 * time.Millisecond // of processor time
		l := newDialLimit(5 * time.Second)
		var active, most, slowest atomic.Int64
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				s, err := l.acquire(t.Context(), dialPackets)
				if err != nil {
					t.Error(err)
					return
				}
				defer s.release()
				start, done := time.Now(), time.Duration(0)
				most.Store(max(most.Load(), active.Add(1)))
				defer active.Add(-1)
				for ; done < cost; time.Sleep(time.Millisecond) {
					done += time.Millisecond / time.Duration(active.Load())
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(start))))
				l.succeeded(time.Since(start), time.Now())
			})
		}
		wg.Wait()
		if got := most.Load(); got > firstDials {
			t.Errorf("concurrent dials = %d, want at most %d", got, firstDials)
		}
		if got := time.Duration(slowest.Load()); got > 5*time.Second {
			t.Errorf("slowest dial took %v, want at most 5s", got)
		}
		if l.slots != minDials {
			t.Errorf("slots = %d, want %d", l.slots, minDials)
		}
	})
}

func TestDialLimit_FastDialsAddSlots(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		l := newDialLimit(5 * time.Second)
		start := time.Now()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				s, _ := l.acquire(t.Context(), dialPackets)
				defer s.release()
				began := time.Now()
				time.Sleep(200 * time.Millisecond) // a round trip of 100 ms
				l.succeeded(time.Since(began), time.Now())
			})
		}
		wg.Wait()
		if got := time.Since(start); l.slots != maxDials || got > 4*time.Second {
			t.Errorf("slots = %d after %v, want %d within 4s", l.slots, got, maxDials)
		}
	})
}

// TestDialLimit_DeadPaths checks that dials over paths that drop packets delay
// neither each other nor other dials for long.
func TestDialLimit_DeadPaths(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		l := newDialLimit(5 * time.Second)
		l.succeeded(10*time.Millisecond, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var started atomic.Int64
		for range 100 {
			wg.Go(func() {
				if s, err := l.acquire(ctx, dialRetry); err == nil {
					started.Add(1)
					<-ctx.Done()
					s.release()
				}
			})
		}
		synctest.Wait()
		if got, want := started.Load(), int64(firstDials/retryShare); got != want {
			t.Errorf("dials of dead paths at first = %d, want %d", got, want)
		}
		s, err := l.acquire(ctx, dialStreams)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(slowDial + time.Millisecond)
		if got, want := started.Load(), int64(2*firstDials/retryShare); got != want {
			t.Errorf("dials of dead paths after %v = %d, want %d", slowDial, got, want)
		}
		s.release()
		cancel()
		wg.Wait()
		if got := l.busyLocked() + len(l.waiting[dialRetry]); got != 0 {
			t.Errorf("dials at the end = %d, want 0", got)
		}
		if _, err := l.acquire(ctx, dialRetry); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("acquire() after the end of ctx = %v, want %v", err, context.Canceled)
		}
	})
}

func TestDialLimit_Stagger(t *testing.T) {
	l, least := newDialLimit(5*time.Second), 250*time.Millisecond
	for _, step := range []struct{ took, want time.Duration }{
		{100 * time.Millisecond, least}, {time.Second, 487500 * time.Microsecond}, {time.Hour, maxStagger},
	} {
		l.succeeded(step.took, time.Now())
		if got := l.stagger(least); got != step.want {
			t.Errorf("stagger() after a dial of %v = %v, want %v", step.took, got, step.want)
		}
	}
}

// dripConn delivers at most 512 bytes per Read, and each Read takes delay.
type dripConn struct {
	net.Conn
	delay time.Duration
}

func (c dripConn) Read(b []byte) (int, error) {
	time.Sleep(c.delay)
	return c.Conn.Read(b[:min(len(b), 512)])
}

// TestDial_SlowHandshake checks that both ends of a handshake wait longer than
// their timeouts while bytes arrive.
func TestDial_SlowHandshake(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw, a := newMemNet(), newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := nw.dial(ctx, addr)
				return dripConn{c, 1200 * time.Millisecond}, err
			}
		})
		serveEchoes(t, a, nw.listen("10.0.2.1:8300"), &atomic.Bool{})
		n1.book.Store(bookOf("10.0.2.1:8300"))
		start := time.Now()
		c, err := n1.d.Dial(t.Context(), Target{DC: "dc2"}, ProtoGossip)
		if err != nil {
			t.Fatalf("Dial() = %v after %v, want nil", err, time.Since(start))
		}
		defer c.Close()
		if took, timeout := time.Since(start), n1.d.cfg.AttemptTimeout; took <= timeout {
			t.Errorf("Dial() took %v, want more than %v", took, timeout)
		}
		c.NetConn().SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := roundTripEcho(c, 1, 1); err != nil {
			t.Errorf("echo after the handshake: %v", err)
		}
	})
}
