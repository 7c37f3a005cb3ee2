// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// Connections of many sizes end in different ways at the same time. A normal
// end must lose no data, and no resource may leak.
func testConcurrentEnds(t *testing.T, e engineKind) {
	hello := helloFor(t, "x.example")
	echo, _ := rawUpstream(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, len(hello)-1))
		io.Copy(c, c)
	})
	early, _ := rawUpstream(t, func(c *net.TCPConn) {
		io.CopyN(c, c, rand.Int64N(100<<10))
		if rand.IntN(2) == 0 {
			c.SetLinger(0)
		}
	})
	all := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{3}).Read(all)
	before := files(t)
	p := start(t, Config{portable: e == portable}, Route{Match: "x.example", To: []string{echo}},
		Route{Match: "y.example", To: []string{early}})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c := p.raw(t)
			defer c.Close()
			data := all[i : i+rand.IntN(1<<(10+i%12))]
			switch i % 4 {
			case 0: // the client closes early
				c.Write(withNewRandom(hello))
				c.Write(data)
				if i%8 == 0 {
					c.SetLinger(0)
				}
			case 1: // the upstream closes
				go func() {
					c.Write(append(helloFor(t, "y.example"), data...))
					c.CloseWrite()
				}()
				io.Copy(io.Discard, c)
			default: // both directions end normally
				if got, err := echoInPieces(c, withNewRandom(hello), data); err != nil || !bytes.Equal(got, data) {
					t.Errorf("connection %d: ReadAll() = %d bytes, %v; want %d", i, len(got), err, len(data))
				}
			}
		})
	}
	wg.Wait()
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
	p.stop()
	st := p.listener.Stats() // clients that reset may count
	p.refused(t, map[Reason]uint64{ReasonClientGone: st.Refused[ReasonClientGone],
		ReasonHelloCut: st.Refused[ReasonHelloCut]})
	testutil.Eventually(t, waitLimit, func() bool {
		runtime.GC() // closes pipes that package net keeps for splicing
		return files(t) <= before
	}, "no file left open")
}

// echoInPieces sends hello and pieces of data of random sizes, ends the
// direction and returns all data that it receives.
func echoInPieces(c *net.TCPConn, hello, data []byte) ([]byte, error) {
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		c.Write(withNewRandom(hello))
		for rest := data; len(rest) > 0; {
			n := min(1+rand.IntN(40<<10), len(rest))
			c.Write(rest[:n])
			rest = rest[n:]
		}
		c.CloseWrite()
	})
	return io.ReadAll(c)
}

// files returns the number of open files of this process. On systems other than
// Linux it returns 0.
func files(t testing.TB) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// The client resets its connection while an upstream is selected.
func testClientResetWhileWaiting(t *testing.T, e engineKind) {
	one, tried := rawUpstream(t, silent)
	two, _ := rawUpstream(t, silent)
	p := start(t, Config{portable: e == portable, attemptDelay: 20 * time.Millisecond},
		Route{Match: "x.example", To: []string{one, two}})
	c := p.raw(t)
	c.Write(helloFor(t, "x.example"))
	testutil.Eventually(t, waitLimit, func() bool { return tried.Load() > 0 }, "an attempt at the upstream")
	c.SetLinger(0)
	c.Close()
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonClientGone: 1})
}

// The client resets its connection. The upstream must receive a reset, too.
func testResetOfClientIsPassedOn(t *testing.T, e engineKind) {
	upstreamErr := make(chan error, 1)
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		c.Write([]byte("x"))
		_, err := io.Copy(io.Discard, c)
		upstreamErr <- err
	})
	p := start(t, Config{portable: e == portable}, Route{Match: "x.example", To: []string{addr}})
	c := p.raw(t)
	c.Write(helloFor(t, "x.example"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("ReadFull() = %v, want nil", err)
	}
	c.SetLinger(0)
	c.Close()
	if err := <-upstreamErr; err == nil || !strings.Contains(err.Error(), syscall.ECONNRESET.Error()) {
		t.Errorf("error at the upstream = %v, want %v", err, syscall.ECONNRESET)
	}
}

// An upstream closes after each number of bytes of its first record. Unless the
// record is complete, the client must receive only the answer of the next
// upstream.
func testCutAnswer(t *testing.T, e engineKind) {
	record := append([]byte{21, 3, 3, 0, 20}, bytes.Repeat([]byte{80}, 20)...)
	var size atomic.Int64
	first, _ := rawUpstream(t, func(c *net.TCPConn) { c.Write(record[:size.Load()]) })
	second, _ := rawUpstream(t, alert)
	p := start(t, Config{portable: e == portable, attemptDelay: time.Minute, ejectFor: 1},
		Route{Match: "x.example", To: []string{first, second}, Ordered: true})
	hello := helloFor(t, "x.example")
	for n := range len(record) + 1 {
		size.Store(int64(n))
		c := p.raw(t)
		c.Write(withNewRandom(hello))
		b := make([]byte, 7)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("read with a cut after %d bytes = %v, want nil", n, err)
		}
		if fromFirst := b[4] == 20; fromFirst != (n == len(record)) {
			t.Errorf("answer with a cut after %d of %d bytes = % x, from the first upstream: %v, want %v", n, len(record),
				b, fromFirst, !fromFirst)
		}
		c.Close()
	}
	p.stop()
	p.refused(t, nil)
}
