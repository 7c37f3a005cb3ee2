// SPDX-License-Identifier: MPL-2.0

package wan_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two namespaces on a WAN.
type pair struct {
	w        *wan.WAN
	ns       [2]string
	ports    [2]*wan.Port
	ab, ba   *wan.Path
	addrs    [2]netip.Addr
	stopOnce func()
}

func needed(t testing.TB) {
	t.Helper()
	if err := wan.Check(); err != nil {
		t.Skip(err)
	}
}

func newPair(t testing.TB, cfg wan.Config) *pair {
	t.Helper()
	needed(t)
	network := lab.NewNetwork(t)
	w, err := wan.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	p := &pair{w: w, addrs: [2]netip.Addr{netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.2.1")}}
	p.stopOnce = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stopOnce)
	for i, name := range []string{"a", "b"} {
		p.ns[i] = network.Namespace(name)
		if p.ports[i], err = w.Attach(p.ns[i], "wan0", p.addrs[i]); err != nil {
			t.Fatal(err)
		}
		network.Address(p.ns[i], "wan0", p.addrs[i].String()+"/16")
	}
	p.ab, p.ba = w.Path(p.ports[0], p.ports[1]), w.Path(p.ports[1], p.ports[0])
	return p
}

func set(t testing.TB, l wan.Link, paths ...*wan.Path) {
	t.Helper()
	for _, p := range paths {
		if err := p.Set(l); err != nil {
			t.Fatal(err)
		}
	}
}

// echo answers UDP packets at b and returns a connection to it from a, and how many have come to b.
func (p *pair) echo(t testing.TB, host [2]netip.Addr) (c net.Conn, came *atomic.Int64) {
	t.Helper()
	var server net.PacketConn
	err := wan.InNamespace(p.ns[1], func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(host[1], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	came = &atomic.Int64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			came.Add(1)
			_, _ = server.WriteTo(buf[:n], from)
		}
	})
	t.Cleanup(func() { server.Close(); wg.Wait() })
	if c, err = lab.DialIn(p.ns[0])(context.Background(), "udp", server.LocalAddr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, came
}

// ping sends one packet and returns when its echo is back, or os.ErrDeadlineExceeded after limit.
func ping(c net.Conn, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	if _, err := fmt.Fprintf(c, "%d", start.UnixNano()); err != nil {
		return 0, err
	}
	want := fmt.Sprint(start.UnixNano())
	buf := make([]byte, 2048)
	c.SetReadDeadline(start.Add(limit))
	for {
		n, err := c.Read(buf)
		if err != nil {
			return 0, err
		}
		if string(buf[:n]) == want { // not the late echo of an earlier one
			return time.Since(start), nil
		}
	}
}

// roundTrips returns n round-trip times, sorted, and how many pings were lost.
func roundTrips(t testing.TB, c net.Conn, n int) (took []time.Duration, lost int) {
	t.Helper()
	for range n {
		d, err := ping(c, time.Second)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			lost++
		case err != nil:
			t.Fatal(err)
		default:
			took = append(took, d)
		}
	}
	slices.Sort(took)
	return took, lost
}

func TestDelay(t *testing.T) {
	p := newPair(t, wan.Config{Link: wan.Link{Delay: 20 * time.Millisecond}})
	c, _ := p.echo(t, p.addrs)
	check := func(want time.Duration) {
		t.Helper()
		took, lost := roundTrips(t, c, 25)
		if lost > 0 {
			t.Fatalf("%d lost", lost)
		}
		median := took[len(took)/2]
		t.Logf("round trip %v: least %v, median %v, worst %v; the switch was late by %v at most", want, took[0], median,
			took[len(took)-1], max(p.ab.Stats().Late, p.ba.Stats().Late))
		if took[0] < want {
			t.Errorf("a round trip of %v, want at least %v", took[0], want)
		}
		if median > want+2*time.Millisecond { // 1 ms each way
			t.Errorf("the median round trip is %v, want %v", median, want)
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
	for range n { // the switch takes them one by one: Stats tell when
		before := p.ab.Stats().Sent
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		await(t, "the packet is counted", func() bool { return p.ab.Stats().Sent > before })
	}
	await(t, "all is delivered", func() bool { s := p.ab.Stats(); return s.Lost+s.Delivered == n && came.Load() == int64(s.Delivered) })
	if s := p.ab.Stats(); s.Lost < 250 || s.Lost > 350 { // three standard deviations of 16.4
		t.Errorf("%d of %d lost, want a tenth", s.Lost, n)
	}
	if s := p.ba.Stats(); s.Lost != 0 {
		t.Errorf("%d lost the other way", s.Lost)
	}
}

// await polls until done says so.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%s: not within 10 s", what)
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
		if _, err := c.Write(make([]byte, size-28)); err != nil { // IP and UDP have headers
			t.Fatal(err)
		}
	}
	burst := time.Since(start)
	await(t, "all is delivered", func() bool { s := p.ab.Stats(); return s.Full+s.Delivered == n && came.Load() == int64(s.Delivered) })
	took, s := time.Since(start), p.ab.Stats()
	t.Logf("%d of %d packets sent within %v came within %v, %d found the queue full", s.Delivered, n, burst, took, s.Full)
	// What fits the queue, and what leaves it during the burst.
	if least, most := uint64(queue/size), uint64(queue/size)+uint64(burst/time.Millisecond)+2; s.Delivered < least || s.Delivered > most {
		t.Errorf("%d came, want %d to %d", s.Delivered, least, most)
	}
	if want := time.Duration(s.Delivered) * time.Millisecond; took < want-time.Millisecond {
		t.Errorf("%d packets of 1 ms took %v", s.Delivered, took)
	}
}

func TestCut(t *testing.T) {
	p := newPair(t, wan.Config{})
	c, came := p.echo(t, p.addrs)
	const short = 150 * time.Millisecond
	answered := func(what string, want bool, limit time.Duration) {
		t.Helper()
		if _, err := ping(c, limit); (err == nil) != want || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	answered("whole", true, time.Second)
	set(t, wan.Link{Cut: true}, p.ab, p.ba)
	before := came.Load()
	answered("cut", false, short)
	if came.Load() != before || p.ab.Stats().Cut == 0 {
		t.Errorf("%d came through a cut, %+v", came.Load()-before, p.ab.Stats())
	}
	set(t, wan.Link{}, p.ab)
	answered("the way back is cut", false, short)
	if came.Load() != before+1 || p.ba.Stats().Cut != 1 {
		t.Errorf("%d came, want 1; back: %+v", came.Load()-before, p.ba.Stats())
	}
	set(t, wan.Link{}, p.ba)
	answered("healed", true, time.Second)

	// What is under way when the path is cut does not arrive.
	set(t, wan.Link{Delay: 50 * time.Millisecond}, p.ab)
	sent := p.ab.Stats().Sent
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	await(t, "the packet is under way", func() bool { return p.ab.Stats().Sent > sent })
	before = came.Load()
	set(t, wan.Link{Cut: true}, p.ab)
	await(t, "it is dropped", func() bool { return p.ab.Stats().Cut == 2 })
	if came.Load() != before {
		t.Error("it arrived")
	}
}

// transfer sends from a to b over TCP for total and returns the rate of the time after warmUp.
func transfer(t testing.TB, p *pair, warmUp, total time.Duration) (bitsPerSecond float64) {
	t.Helper()
	ln, err := lab.ListenIn(p.ns[1], netip.AddrPortFrom(p.addrs[1], 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	var got atomic.Int64
	wg.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		buf := make([]byte, 1<<20)
		for {
			n, err := c.Read(buf)
			got.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	c, err := lab.DialIn(p.ns[0])(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start, zeros := time.Now(), make([]byte, 256<<10)
	var at time.Time
	var before int64
	for time.Since(start) < total {
		if at.IsZero() && time.Since(start) > warmUp {
			at, before = time.Now(), got.Load()
		}
		c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	return 8 * float64(got.Load()-before) / time.Since(at).Seconds()
}

func TestThroughput(t *testing.T) {
	p := newPair(t, wan.Config{Link: wan.Link{Delay: 40 * time.Millisecond}})
	got := transfer(t, p, 1500*time.Millisecond, 2500*time.Millisecond)
	t.Logf("TCP at a round trip of 80 ms: %.0f Mbit/s; %+v", got/1e6, p.ab.Stats())
	if got < 200e6 {
		t.Errorf("%.0f Mbit/s, want at least 200", got/1e6)
	}
	set(t, wan.Link{Delay: 20 * time.Millisecond, Rate: 20_000_000}, p.ab)
	got = transfer(t, p, 500*time.Millisecond, 1500*time.Millisecond)
	t.Logf("limited to 20 Mbit/s: %.1f Mbit/s; %+v", got/1e6, p.ab.Stats())
	if got < 14e6 || got > 21e6 {
		t.Errorf("%.1f Mbit/s through a path of 20", got/1e6)
	}
}

func TestIPv6(t *testing.T) {
	p := newPair(t, wan.Config{})
	v6 := [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	for i, ns := range p.ns {
		out, err := exec.Command("ip", "-n", ns, "addr", "add", v6[i].String()+"/64", "dev", "wan0", "nodad").CombinedOutput()
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

// A port's address can change, and a third port can come while packets flow.
func TestSetAddrsAndAttachWhileRunning(t *testing.T) {
	network := func() *lab.Network { needed(t); return lab.NewNetwork(t) }()
	p := newPair(t, wan.Config{})
	c, _ := p.echo(t, p.addrs)
	third := network.Namespace("c")
	port, err := p.w.Attach(third, "wan0", netip.MustParseAddr("198.18.3.1"))
	if err != nil {
		t.Fatal(err)
	}
	network.Address(third, "wan0", "198.18.3.1/16")
	if _, err := ping(c, time.Second); err != nil {
		t.Fatalf("after another port came: %v", err)
	}
	if s := p.w.Path(p.ports[0], port).Stats(); s.Sent != 0 {
		t.Errorf("the new port was sent %+v", s)
	}
	unrouted := p.w.Unrouted()
	p.ports[1].SetAddrs(netip.MustParseAddr("198.18.2.9"))
	if _, err := ping(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || p.w.Unrouted() == unrouted {
		t.Errorf("after the address went: %v, %d unrouted", err, p.w.Unrouted()-unrouted)
	}
	p.ports[1].SetAddrs(p.addrs[1])
	if _, err := ping(c, time.Second); err != nil {
		t.Errorf("after it came back: %v", err)
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
	await(t, "the tap sees a packet that is lost", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(lens, 10+28)
	})
}

// Run leaves nothing behind: no thread, no descriptor, no device.
func TestEnd(t *testing.T) {
	needed(t)
	count := func(dir string) int {
		e, err := os.ReadDir("/proc/self/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	var threads, files int
	const rounds = 12
	for i := range rounds {
		t.Run("", func(t *testing.T) {
			p := newPair(t, wan.Config{Link: wan.Link{Delay: 10 * time.Minute}})
			if c, err := lab.DialIn(p.ns[0])(context.Background(), "udp", "198.18.2.1:9"); err != nil {
				t.Fatal(err)
			} else if _, err = c.Write([]byte("x")); err != nil || c.Close() != nil {
				t.Fatal(err)
			}
			await(t, "a packet is under way", func() bool { return p.ab.Stats().Sent > 0 })
			p.stopOnce()
			if out, err := exec.Command("ip", "-n", p.ns[0], "link", "show", "wan0").CombinedOutput(); err == nil {
				t.Errorf("the device is still there: %s", out)
			}
			if _, err := p.w.Attach(p.ns[0], "wan0"); !errors.Is(err, wan.ErrEnded) {
				t.Errorf("Attach after the end = %v", err)
			}
		})
		if i == 1 { // the runtime and the poller have what they need
			threads, files = count("task"), count("fd")
		}
	}
	if got := count("fd"); got > files {
		t.Errorf("%d descriptors after %d more rounds, %d before", got, rounds-2, files)
	}
	if got := count("task"); got > threads+rounds/2 {
		t.Errorf("%d threads after %d more rounds, %d before", got, rounds-2, threads)
	}
}

func TestAttachErrors(t *testing.T) {
	needed(t)
	p := newPair(t, wan.Config{})
	for _, bad := range [][2]string{{"no-such-namespace", "wan1"}, {p.ns[0], "wan0"}, {p.ns[0], "a-name-that-is-too-long"}} {
		if _, err := p.w.Attach(bad[0], bad[1]); err == nil {
			t.Errorf("Attach(%q): no error", bad)
		} else {
			t.Log(err)
		}
	}
}
