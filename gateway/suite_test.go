// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// helloFor returns a ClientHello of crypto/tls for a name.
func helloFor(t testing.TB, sni string) []byte {
	t.Helper()
	return goHello(t, &tls.Config{ServerName: sni})
}

// withNewRandom returns a copy of a ClientHello with another random, as each
// connection of a client has. A gateway refuses the random of an open
// connection as a loop.
func withNewRandom(hello []byte) []byte {
	hello = slices.Clone(hello)
	binary.BigEndian.PutUint64(hello[recordHeader+messageHeader+2:], rand.Uint64())
	return hello
}

func testHelloTimeout(t *testing.T, e engineKind) {
	p := start(t, Config{portable: e == portable, HelloTimeout: 100 * time.Millisecond})
	hello := helloFor(t, "late.example")
	var wg sync.WaitGroup
	for _, part := range [][]byte{nil, hello[:1], hello[:100]} {
		wg.Go(func() {
			began := time.Now()
			c := p.raw(t)
			c.Write(part)
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("Read() after %d bytes = %v, want %v", len(part), err, io.EOF)
			}
			if d := time.Since(began); d < 90*time.Millisecond || d > 5*time.Second {
				t.Errorf("time until the close after %d bytes = %v, want 100ms", len(part), d)
			}
		})
	}
	wg.Wait()
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonHelloTimeout: 3})
}

func testShedSilentConnection(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	addr := tlsUpstream(t, named("srv1"))
	const shedAfter = 1500 * time.Millisecond // longer than the delays of a busy machine
	p := start(t, Config{portable: e == portable, MaxConns: 2, HelloTimeout: 10 * shedAfter},
		Route{Match: "x.example", To: []string{addr}})
	var silent []net.Conn
	for range 2 {
		c := p.raw(t)
		c.Write([]byte{22})
		silent = append(silent, c)
		testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == uint64(len(silent)) },
			"one active connection per client")
	}
	early := p.raw(t)
	early.Read(make([]byte, 1)) // until it is closed
	silent[0].SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := silent[0].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() of a young connection at the limit = %v, want %v", err, os.ErrDeadlineExceeded)
	}
	silent[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	<-time.After(shedAfter)
	p.connect(t, "x.example", 4)
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() of the oldest silent connection = %v, want the error of a closed connection", err)
	}
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 2 }, "two active connections")
	p.refused(t, map[Reason]uint64{ReasonLimit: 2})
	silent[1].Close()
}

func testNamesAndIPv6(t *testing.T, e engineKind) {
	v4 := tlsUpstream(t, named("four"))
	_, port, _ := net.SplitHostPort(v4)
	routes := []Route{
		{Match: "name.example", To: []string{"localhost:" + port}},
		{Match: "names.example", To: []string{"absent.invalid:" + port, "localhost:" + port}, Ordered: true},
		{Match: "bad.example", To: []string{"absent.invalid:" + port}},
	}
	p := start(t, Config{portable: e == portable}, routes...)
	for _, sni := range []string{"name.example", "names.example"} {
		c, _ := p.connect(t, sni, 4)
		c.Close()
	}
	if _, err := tls.Dial("tcp", p.addr, &tls.Config{ServerName: "bad.example"}); err == nil ||
		!strings.Contains(err.Error(), "internal error") {
		t.Errorf("Dial() of a route to a name that does not resolve = %v, want internal error", err)
	}
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Log("no IPv6 on this machine:", err)
		return
	}
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	p.listener.SetTable(mustTable(t, Route{Match: "six.example", To: []string{ln.Addr().String()}}))
	c := p.raw(t)
	hello := helloFor(t, "six.example")
	c.Write(hello)
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, hello) {
		t.Errorf("ReadAll() = %d bytes, %v; want %d", len(b), err, len(hello))
	}
}

// The table changes while both addresses of a route are silent. The connection
// must use the new address.
func testNewTableWhileWaiting(t *testing.T, e engineKind) {
	one, tried := rawUpstream(t, silent)
	two, _ := rawUpstream(t, silent)
	good := tlsUpstream(t, named("good"))
	p := start(t, Config{portable: e == portable, attemptDelay: 20 * time.Millisecond},
		Route{Match: "x.example", To: []string{one, two}})
	next := mustTable(t, Route{Match: "x.example", To: []string{good}})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for tried.Load() == 0 && !t.Failed() {
			<-time.After(time.Millisecond)
		}
		p.listener.SetTable(next)
	})
	p.connect(t, "x.example", 4)
	p.stop()
	p.refused(t, nil)
}

// A silent upstream recovers. Only the first client may wait for this upstream,
// and it must be used again.
func testSilentUpstreamRecovers(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	stalls := lab.WatchStalls(t)
	var works, used atomic.Bool
	one, _ := rawUpstream(t, func(c *net.TCPConn) {
		if works.Load() {
			c.Write([]byte{21, 3, 3, 0, 2, 2, 80})
			used.Store(true)
		}
		silent(c)
	})
	two, _ := rawUpstream(t, alert)
	p := start(t, Config{portable: e == portable, attemptDelay: 500 * time.Millisecond, ejectFor: time.Second},
		Route{Match: "x.example", To: []string{one, two}, Ordered: true})
	hello := helloFor(t, "x.example")
	waited, recovered := 0, false
	for i, end := 0, time.Now().Add(20*time.Second); !recovered && time.Now().Before(end); i++ {
		if i == 100 {
			works.Store(true)
		}
		c := p.raw(t)
		began := time.Now()
		c.Write(withNewRandom(hello))
		b := make([]byte, 7)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("read of the alert = %v, want nil", err)
		}
		c.Close()
		if stalls.Awake(began) > 400*time.Millisecond {
			waited++
		}
		recovered = b[6] == 80
		<-time.After(time.Millisecond)
	}
	if !recovered || !used.Load() {
		t.Errorf("first upstream used after its recovery = %v, want true", recovered)
	}
	if waited > 2 { // two on a busy machine
		t.Errorf("clients that waited = %d, want 1", waited)
	}
}

func testDrainEnds(t *testing.T, e engineKind) {
	one, _ := rawUpstream(t, silent)
	two, _ := rawUpstream(t, silent)
	p := start(t, Config{portable: e == portable, Drain: 100 * time.Millisecond, HelloTimeout: time.Minute,
		DialTimeout: time.Minute},
		Route{Match: "one.example", To: []string{one}}, Route{Match: "two.example", To: []string{one, two}})
	var open []net.Conn
	for _, sni := range []string{"", "one.example", "two.example"} { // one in each state
		c := p.raw(t)
		if sni != "" {
			c.Write(helloFor(t, sni))
		}
		open = append(open, c)
	}
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 3 }, "three active connections")
	began := time.Now()
	p.stop()
	if d := time.Since(began); d < 100*time.Millisecond || d > 5*time.Second {
		t.Errorf("time of the drain = %v, want 100ms", d)
	}
	for i, c := range open {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("Read() of connection %d after Run = nil, want an error", i)
		}
	}
	p.refused(t, nil)
}

// A client does not read for a while. The gateway must not buffer data that it
// cannot deliver, and must lose no data.
func testSlowReader(t *testing.T, e engineKind) {
	const size = 64 << 20
	var sent atomic.Int64
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		b := make([]byte, 64<<10)
		r := rand.NewChaCha8([32]byte{7})
		for range size / len(b) {
			r.Read(b)
			n, err := c.Write(b)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
		c.CloseWrite()
		silent(c)
	})
	p := start(t, Config{portable: e == portable}, Route{Match: "x.example", To: []string{addr}})
	c := p.raw(t)
	c.Write(helloFor(t, "x.example"))
	last := int64(-1)
	testutil.Eventually(t, waitLimit, func() bool {
		<-time.After(50 * time.Millisecond)
		now := sent.Load()
		blocked := now == last && now > 0
		last = now
		return blocked
	}, "an upstream that is blocked")
	if last > size/2 {
		t.Errorf("data read from the upstream = %d MiB, want at most %d", last>>20, size>>21)
	}
	r, b, want, n := rand.NewChaCha8([32]byte{7}), make([]byte, 64<<10), make([]byte, 64<<10), 0
	for ; n < size; n += len(b) {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("ReadFull() after %d bytes = %v, want nil", n, err)
		}
		if r.Read(want); !bytes.Equal(b, want) {
			t.Fatalf("bytes %d to %d differ from the bytes that the upstream sent", n, n+len(b))
		}
	}
	if _, err := c.Read(b); err != io.EOF {
		t.Errorf("Read() after the last byte = %v, want %v", err, io.EOF)
	}
}
