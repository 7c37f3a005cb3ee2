// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func always(v float64) func() float64 { return func() float64 { return v } }

func TestLinkValidate(t *testing.T) {
	for _, l := range []Link{{}, {Delay: time.Second, Jitter: 1, Loss: 1, Rate: 1, Queue: 1, Cut: true}} {
		if err := l.validate(); err != nil {
			t.Errorf("validate(%+v) = %v, want nil", l, err)
		}
	}
	for _, l := range []Link{{Delay: -1}, {Jitter: -1}, {Loss: -0.1}, {Loss: 1.1}, {Loss: math.NaN()}, {Rate: -1},
		{Queue: -1}} {
		if l.validate() == nil {
			t.Errorf("validate(%+v) = nil, want an error", l)
		}
		if _, err := New(Config{Link: l}); err == nil {
			t.Errorf("New(%+v) = nil, want an error", l)
		}
		p := newPath(Link{Delay: 1})
		if err := p.Set(l); err == nil || p.Link() != (Link{Delay: 1}) {
			t.Errorf("Set(%+v) = %v, link %+v; want an error and the old link", l, err, p.Link())
		}
	}
}

func TestAdmitDelay(t *testing.T) {
	p := newPath(Link{Delay: 40 * time.Millisecond})
	if due, ok := p.admit(time.Second, 100, always(0)); !ok || due != time.Second+40*time.Millisecond {
		t.Errorf("admit() = %v, %v, want 1.04s, true", due, ok)
	}
	// A shorter delay does not reorder packets.
	if err := p.Set(Link{Delay: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if due, ok := p.admit(time.Second+time.Millisecond, 100, always(0)); !ok || due != time.Second+40*time.Millisecond {
		t.Errorf("admit() after Set = %v, %v, want 1.04s, true", due, ok)
	}
}

func TestAdmitJitter(t *testing.T) {
	p := newPath(Link{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond})
	random := rand.New(rand.NewPCG(1, 2)).Float64
	var last time.Duration
	spread := map[time.Duration]int{}
	for i := range 1000 {
		now := time.Duration(i) * 6 * time.Millisecond
		due, ok := p.admit(now, 100, random)
		if d := due - now; !ok || d < 10*time.Millisecond || d > 15*time.Millisecond || due < last {
			t.Fatalf("packet %d is due %v after it was sent and %v after its predecessor, want 10 ms to 15 ms and "+
				"at least 0", i, d, due-last)
		}
		spread[(due-now).Truncate(time.Millisecond)]++
		last = due
	}
	for d, n := range spread {
		if n < 130 || n > 270 {
			t.Errorf("%d of 1000 packets were delayed by %v to 1 ms more, want a fifth: %v", n, d, spread)
		}
	}
}

func TestAdmitOrderWithJitter(t *testing.T) {
	p := newPath(Link{Jitter: time.Second})
	first, _ := p.admit(0, 100, always(0.9))
	second, _ := p.admit(1, 100, always(0.1))
	if second < first {
		t.Errorf("the second packet is due at %v, want not before the first at %v", second, first)
	}
}

func TestAdmitLoss(t *testing.T) {
	p := newPath(Link{Loss: 0.01})
	random := rand.New(rand.NewPCG(1, 2)).Float64
	const n = 100_000
	for range n {
		p.admit(0, 100, random)
	}
	// Three standard deviations of a binomial distribution: 94.
	if s := p.Stats(); s.Sent != n || s.SentBytes != 100*n || s.Lost < 906 || s.Lost > 1094 {
		t.Errorf("Stats() = %+v, want about 1000 lost of %d", s, n)
	}
	for loss, want := range map[float64]bool{0: true, 1: false} {
		p := newPath(Link{Loss: loss})
		if _, ok := p.admit(0, 100, random); ok != want {
			t.Errorf("admit() with loss %v = %v, want %v", loss, ok, want)
		}
	}
}

func TestAdmitRate(t *testing.T) {
	p := newPath(Link{Rate: 8000, Queue: 2500, Delay: time.Second}) // a byte per millisecond
	want := []time.Duration{time.Second, 2 * time.Second}
	for i, w := range want {
		if due, ok := p.admit(0, 1000, always(0)); !ok || due != w+time.Second {
			t.Errorf("admit() of packet %d = %v, %v, want %v, true", i, due, ok, w+time.Second)
		}
	}
	if _, ok := p.admit(0, 1000, always(0)); ok {
		t.Error("a queue of 2500 bytes accepted 3000 bytes")
	}
	// 600 bytes have been sent by 600 ms.
	if due, ok := p.admit(600*time.Millisecond, 1000, always(0)); !ok || due != 4*time.Second {
		t.Errorf("admit() at 600 ms = %v, %v, want 4s, true", due, ok)
	}
	// An idle path does not accumulate credit.
	if due, ok := p.admit(time.Minute, 1000, always(0)); !ok || due != time.Minute+2*time.Second {
		t.Errorf("admit() after an idle minute = %v, %v, want 1m2s, true", due, ok)
	}
	if s := p.Stats(); s.Full != 1 || s.Sent != 5 {
		t.Errorf("Stats() = %+v, want 1 of 5 packets dropped", s)
	}
	for rate, want := range map[int64]int{0: 64 << 10, 8000: 64 << 10, 100_000_000: 1_250_000} {
		if got := (Link{Rate: rate}).queue(); got != want {
			t.Errorf("default queue at %d bit/s = %d bytes, want %d", rate, got, want)
		}
	}
}

func TestAdmitCut(t *testing.T) {
	p := newPath(Link{Cut: true})
	if _, ok := p.admit(0, 100, always(0)); ok || p.Stats().Cut != 1 {
		t.Errorf("admit() on a cut path = %v, stats %+v; want false and 1 in Cut", ok, p.Stats())
	}
}

func TestAdmit_LimitsPacketsInFlight(t *testing.T) {
	p := newPath(Link{Delay: time.Hour})
	for range maxInFlight {
		due, ok := p.admit(0, 1, always(0))
		if !ok {
			t.Fatalf("packet dropped below the limit of %d", maxInFlight)
		}
		p.q.push(packet{due: due})
	}
	if _, ok := p.admit(0, 1, always(0)); ok || p.Stats().Full != 1 {
		t.Errorf("admit() at the limit = %v, stats %+v; want false and 1 in Full", ok, p.Stats())
	}
}

func TestQueue(t *testing.T) {
	var q queue
	if _, ok := q.peek(); ok {
		t.Error("peek() of an empty queue = true, want false")
	}
	random := rand.New(rand.NewPCG(1, 2))
	var pushed, popped time.Duration
	for range 10_000 {
		for range random.IntN(8) {
			q.push(packet{due: pushed})
			pushed++
		}
		for range min(random.IntN(8), q.len()) {
			if due, ok := q.peek(); !ok || due != popped {
				t.Fatalf("peek() = %v, %v, want %v, true", due, ok, popped)
			}
			if p := q.pop(); p.due != popped {
				t.Fatalf("pop() = %v, want %v", p.due, popped)
			}
			popped++
		}
	}
	if q.len() != int(pushed-popped) || len(q.packets) > 4*q.len()+128 {
		t.Errorf("queue has %d packets in a slice of %d, want %d packets and a slice in proportion", q.len(),
			len(q.packets), pushed-popped)
	}
}
