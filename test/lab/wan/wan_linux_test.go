// SPDX-License-Identifier: MPL-2.0

package wan_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDelay(t *testing.T) {
	p := newPair(t, wan.Config{Link: wan.Link{Delay: 20 * time.Millisecond}})
	c, _ := p.echo(t, p.addrs)
	check := func(want time.Duration) {
		t.Helper()
		took, lost := roundTrips(t, c, 25)
		if lost > 0 {
			t.Fatalf("%d pings lost, want 0", lost)
		}
		t.Logf("round trip %v: minimum %v, median %v, maximum %v; the switch was late by %v at most", want, took[0],
			took[len(took)/2], took[len(took)-1], max(p.ab.Stats().Late, p.ba.Stats().Late))
		// Check the minimum, because a busy machine delays other round trips.
		if took[0] < want || took[0] > want+2*time.Millisecond { // 1 ms per direction
			t.Errorf("minimum round trip = %v, want %v to 2 ms more", took[0], want)
		}
	}
	check(40 * time.Millisecond)
	set(t, wan.Link{Delay: 5 * time.Millisecond}, p.ba) // asymmetric, at run time
	check(25 * time.Millisecond)
	set(t, wan.Link{}, p.ab, p.ba)
	check(0)
}

func TestLoss(t *testing.T) {
	p := newPair(t, wan.Config{Seed: 1})
	set(t, wan.Link{Loss: 0.1}, p.ab)
	c, came := p.echo(t, p.addrs)
	const n = 3000
	for range n { // wait until the switch has counted each packet
		before := p.ab.Stats().Sent
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		await(t, "the packet is counted", func() bool { return p.ab.Stats().Sent > before })
	}
	await(t, "every packet is lost or delivered", func() bool {
		s := p.ab.Stats()
		return s.Lost+s.Delivered == n && came.Load() == int64(s.Delivered)
	})
	if s := p.ab.Stats(); s.Lost < 250 || s.Lost > 350 { // three standard deviations of 16.4
		t.Errorf("%d of %d packets lost, want a tenth", s.Lost, n)
	}
	if s := p.ba.Stats(); s.Lost != 0 {
		t.Errorf("%d packets lost in the other direction, want 0", s.Lost)
	}
}

// await polls without a pause until done returns true.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("after 10 s: want that %s", what)
		}
	}
}

func TestRate(t *testing.T) {
	p := newPair(t, wan.Config{})
	const rate, queue, size, n = 8_000_000, 100_000, 1000, 300 // 1 ms per packet
	set(t, wan.Link{Rate: rate, Queue: queue}, p.ab)
	c, came := p.echo(t, p.addrs)
	start := time.Now()
	for range n {
		if _, err := c.Write(make([]byte, size-28)); err != nil { // the IP and UDP headers have 28 bytes
			t.Fatal(err)
		}
	}
	await(t, "the switch has read all packets", func() bool { return p.ab.Stats().Sent == n })
	burst := time.Since(start)
	await(t, "every packet is dropped or delivered", func() bool {
		s := p.ab.Stats()
		return s.Full+s.Delivered == n && came.Load() == int64(s.Delivered)
	})
	took, s := time.Since(start), p.ab.Stats()
	t.Logf("%d of %d packets that were sent within %v arrived within %v; %d were dropped at the full queue",
		s.Delivered, n, burst, took, s.Full)
	// The queue holds some packets, and others leave it during the burst.
	if least, most := uint64(queue/size), uint64(queue/size)+uint64(burst/time.Millisecond)+2; s.Delivered < least ||
		s.Delivered > most {
		t.Errorf("%d packets arrived, want %d to %d", s.Delivered, least, most)
	}
	if want := time.Duration(s.Delivered) * time.Millisecond; took < want-time.Millisecond {
		t.Errorf("%d packets of 1 ms took %v, want at least %v", s.Delivered, took, want)
	}
}

func TestCut(t *testing.T) {
	p := newPair(t, wan.Config{})
	c, came := p.echo(t, p.addrs)
	const short = 150 * time.Millisecond
	answered := func(what string, want bool, limit time.Duration) {
		t.Helper()
		if _, err := ping(c, limit); (err == nil) != want || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ping over a path that is %s = %v, want an echo: %v", what, err, want)
		}
	}
	answered("whole", true, time.Second)
	set(t, wan.Link{Cut: true}, p.ab, p.ba)
	before := came.Load()
	answered("cut", false, short)
	if came.Load() != before || p.ab.Stats().Cut == 0 {
		t.Errorf("%d packets arrived over a cut path, want 0; stats %+v", came.Load()-before, p.ab.Stats())
	}
	set(t, wan.Link{}, p.ab)
	answered("cut from b to a", false, short)
	if came.Load() != before+1 || p.ba.Stats().Cut != 1 {
		t.Errorf("%d packets arrived, want 1; stats from b to a %+v", came.Load()-before, p.ba.Stats())
	}
	set(t, wan.Link{}, p.ba)
	answered("healed", true, time.Second)

	// A packet that is in flight when the path is cut does not arrive.
	set(t, wan.Link{Delay: 50 * time.Millisecond}, p.ab)
	sent := p.ab.Stats().Sent
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	await(t, "the packet is in flight", func() bool { return p.ab.Stats().Sent > sent })
	before = came.Load()
	set(t, wan.Link{Cut: true}, p.ab)
	await(t, "the packet is dropped", func() bool { return p.ab.Stats().Cut == 2 })
	if came.Load() != before {
		t.Error("a packet in flight arrived over a cut path")
	}
}

// transfer sends size bytes from a to b over TCP and returns the rate in bit/s.
func transfer(t testing.TB, p *pair, size int64) (bitsPerSecond float64) {
	t.Helper()
	ln, err := lab.ListenIn(p.ns[1], netip.AddrPortFrom(p.addrs[1], 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	came := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			defer c.Close()
			_, err = io.CopyN(io.Discard, c, size)
		}
		came <- err
	}()
	c, err := lab.DialIn(p.ns[0])(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	start, zeros := time.Now(), make([]byte, 256<<10)
	for left := size; left > 0; left -= int64(len(zeros)) {
		if _, err := c.Write(zeros[:min(left, int64(len(zeros)))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-came; err != nil {
		t.Fatal(err)
	}
	return 8 * float64(size) / time.Since(start).Seconds()
}

func TestThroughput(t *testing.T) {
	p := newPair(t, wan.Config{Link: wan.Link{Delay: 20 * time.Millisecond}})
	set(t, wan.Link{Delay: 20 * time.Millisecond, Rate: 20_000_000}, p.ab)
	got := transfer(t, p, 4<<20)
	t.Logf("limited to 20 Mbit/s: %.1f Mbit/s; %+v", got/1e6, p.ab.Stats())
	if got > 20e6 {
		t.Errorf("rate = %.1f Mbit/s, want at most 20", got/1e6)
	}
}

// BenchmarkTCP measures the rate of one connection at a round trip of 80 ms. No
// test needs more than 200 Mbit/s.
func BenchmarkTCP(b *testing.B) {
	p := newPair(b, wan.Config{Link: wan.Link{Delay: 40 * time.Millisecond}})
	for b.Loop() {
		b.ReportMetric(transfer(b, p, 100<<20)/1e6, "Mbit/s")
	}
}

func TestIPv6(t *testing.T) {
	p := newPair(t, wan.Config{})
	v6 := [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	for i, ns := range p.ns {
		out, err := exec.Command("ip", "-n", ns, "addr", "add", v6[i].String()+"/64", "dev", "wan0",
			"nodad").CombinedOutput()
		if err != nil {
			t.Skipf("needs IPv6: %s", out)
		}
		p.ports[i].SetAddrs(p.addrs[i], v6[i])
	}
	c, _ := p.echo(t, v6)
	if _, err := ping(c, time.Second); err != nil {
		t.Error(err)
	}
}

func TestTap(t *testing.T) {
	var mu sync.Mutex
	var lens []int
	p := newPair(t, wan.Config{Link: wan.Link{Loss: 1}, Tap: func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		lens = append(lens, len(b))
	}})
	c, _ := p.echo(t, p.addrs)
	if _, err := io.WriteString(c, "0123456789"); err != nil {
		t.Fatal(err)
	}
	await(t, "the tap is called with a packet that is lost", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(lens, 10+28)
	})
}
