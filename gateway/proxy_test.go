// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func testForwardBySNI(t *testing.T, e engineKind) {
	srv1, srv2 := tlsUpstream(t, named("srv1")), tlsUpstream(t, named("srv2"))
	p := start(t, Config{portable: e == portable},
		Route{Match: "srv1.server.dc1.wanfed", To: []string{srv1}},
		Route{Match: "*.server.dc2.wanfed", To: []string{srv2}},
		Route{Match: "dead.server.dc1.wanfed", To: []string{deadAddr(t), srv1}, Ordered: true},
		Route{Match: "down.server.dc1.wanfed", To: []string{deadAddr(t)}},
		Route{Match: "loop.server.dc1.wanfed", To: []string{deadAddr(t)}},
	)
	for sni, want := range map[string]string{
		"srv1.server.dc1.wanfed": "srv1", "SRV1.server.dc1.wanfed": "srv1", "any.server.dc2.wanfed": "srv2",
		"dead.server.dc1.wanfed": "srv1",
	} {
		c, got := p.connect(t, sni, 4)
		if got != want {
			t.Errorf("upstream of %s = %s, want %s", sni, got, want)
		}
		c.Write([]byte("hello"))
		c.CloseWrite()
		if rest, err := io.ReadAll(c); err != nil || string(rest) != "hellobye" {
			t.Errorf("ReadAll() from %s after CloseWrite = %q, %v; want hellobye", sni, rest, err)
		}
	}
	st := p.listener.Stats()
	if st.Accepted != 4 || st.DialFailures != 1 {
		t.Errorf("Stats() = %+v, want 4 accepted and 1 dial failure", st)
	}
	p.refused(t, nil)

	for sni, want := range map[string]string{"other.server.dc1.wanfed": "unrecognized name",
		"down.server.dc1.wanfed": "internal error", "": "missing extension"} {
		_, err := tls.Dial("tcp", p.addr, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial() for %q = %v, want alert %q", sni, err, want)
		}
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonUnknownSNI: 1, ReasonUpstreamUnreachable: 1, ReasonNoSNI: 1})
}

// A route accepts only clients of some protocols.
func testProtocols(t *testing.T, e engineKind) {
	var log syncBuffer
	p := start(t, Config{portable: e == portable, Logger: slog.New(slog.NewTextHandler(&log, nil))},
		Route{Match: "some.example", To: []string{tlsUpstream(t, named("srv1"))},
			Protocols: []string{"wanfed/gossip/1", "h2"}})
	dial := func(ids ...string) error {
		c, err := tls.Dial("tcp", p.addr, &tls.Config{
			ServerName: "some.example", InsecureSkipVerify: true, NextProtos: ids,
		})
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial("x", "h2"); err != nil {
		t.Errorf("Dial() that offers x and h2 = %v, want nil", err)
	}
	for _, ids := range [][]string{nil, {"x", "H2", "a", "b", "c"}} {
		if err := dial(ids...); err == nil || !strings.Contains(err.Error(), "no application protocol") {
			t.Errorf("Dial() that offers %q = %v, want no application protocol", ids, err)
		}
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonProtocol: 2})
	if st := p.listener.Stats(); st.Hellos[RouteExact].Count != 3 || st.Dials[RouteExact].Count != 1 {
		t.Errorf("Stats() = %+v, want 3 hellos and 1 dial of exact routes", st)
	}
	if !strings.Contains(log.String(), `reason=protocol err="it offers none"`) {
		t.Errorf("log = %s, want err=\"it offers none\"", log.String())
	}
}

func testRefuseOwnListener(t *testing.T, e engineKind) {
	p := start(t, Config{portable: e == portable})
	p.listener.SetTable(mustTable(t, Route{Match: "loop.example", To: []string{p.addr}}))
	if _, err := tls.Dial("tcp", p.addr, &tls.Config{
		ServerName: "loop.example", InsecureSkipVerify: true,
	}); err == nil {
		t.Fatal("Dial() through a loop = nil, want an error")
	}
	// The gateway accepts its own connection, which closes without a
	// ClientHello.
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Accepted >= 2 },
		"two accepted connections")
	p.stop()
	if st := p.listener.Stats(); st.Refused[ReasonUpstreamUnreachable] != 1 || st.Accepted != 2 {
		t.Errorf("Stats() = %+v, want 1 upstream_unreachable and 2 accepted", st)
	}
}

// The client closes after each number of bytes of its ClientHello. No upstream
// may be dialed.
func testCutHello(t *testing.T, e engineKind) {
	addr, dialed := rawUpstream(t, silent)
	p := start(t, Config{portable: e == portable}, Route{Match: "cut.example", To: []string{addr}})
	hello := goHello(t, &tls.Config{ServerName: "cut.example"})
	for n := range len(hello) {
		c := p.raw(t)
		c.Write(hello[:n])
		c.CloseWrite()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("Read() after %d bytes and an end = %v, want %v", n, err, io.EOF)
		}
		c.Close()
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonHelloCut: uint64(len(hello))})
	if n := dialed.Load(); n != 0 {
		t.Errorf("dials of the upstream = %d, want 0", n)
	}
}

// ClientHellos arrive byte by byte, and in many records.
func testHelloInPieces(t *testing.T, e engineKind) {
	got := make(chan []byte, 1)
	ln := listen(t)
	go func() {
		for range 2 {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			c.Close()
			got <- b
		}
	}()
	p := start(t, Config{portable: e == portable}, Route{Match: "pieces.example", To: []string{ln.Addr().String()}})
	hello := goHello(t, &tls.Config{ServerName: "pieces.example"})
	for _, in := range [][]byte{hello, records(hello[recordHeader:], 3)} {
		c := p.raw(t)
		for i := range in {
			if _, err := c.Write(in[i : i+1]); err != nil {
				t.Fatalf("Write() of byte %d = %v, want nil", i, err)
			}
		}
		c.Write([]byte("more"))
		c.CloseWrite()
		if b := <-got; !bytes.Equal(b, append(in[:len(in):len(in)], "more"...)) {
			t.Errorf("bytes at the upstream = %d, want %d", len(b), len(in)+4)
		}
		io.Copy(io.Discard, c)
	}
}

func testRefusalsAreLogged(t *testing.T, e engineKind) {
	var log syncBuffer
	p := start(t, Config{portable: e == portable,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	for _, data := range []string{"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n",
		string(append([]byte{22, 3, 1, 0x40, 0, 1, 1, 0, 0}, 0))} {
		c := p.raw(t)
		c.Write([]byte(data))
		io.Copy(io.Discard, c)
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonNotTLS: 2, ReasonHelloTooLarge: 1})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("log lines at Info = %d, want one per reason:\n%s", len(lines), log.String())
	}
	for _, want := range []string{"listener=lan", "remote=127.0.0.1:", "reason=not_tls",
		"plain HTTP request", "hint="} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("log line = %s, want %s in it", lines[0], want)
		}
	}
}

// syncBuffer is a buffer for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}
func (b *syncBuffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

func testBulkBothWays(t *testing.T, e engineKind) {
	const size = 24 << 20
	sent := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(sent)
	echo := listen(t)
	go func() {
		if c, err := echo.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	p := start(t, Config{portable: e == portable}, Route{Match: "bulk.example", To: []string{echo.Addr().String()}})
	c := p.raw(t)
	hello := goHello(t, &tls.Config{ServerName: "bulk.example"})
	var wg sync.WaitGroup
	wg.Go(func() {
		c.Write(hello)
		c.Write(sent)
		c.CloseWrite()
	})
	got, err := io.ReadAll(c)
	wg.Wait()
	if err != nil || !bytes.Equal(got, append(hello, sent...)) {
		t.Fatalf("ReadAll() = %d bytes, %v; want %d", len(got), err, size+len(hello))
	}
	p.stop()
	if st := p.listener.Stats(); st.BytesUp != uint64(len(got)) || st.BytesDown != uint64(len(got)) {
		t.Errorf("BytesUp, BytesDown = %d, %d; want %d each", st.BytesUp, st.BytesDown, len(got))
	}
}

// The upstream resets the connection. The client must receive a reset, too.
func testResetIsPassedOn(t *testing.T, e engineKind) {
	ln := listen(t)
	go func() {
		if c, err := ln.Accept(); err == nil {
			c.Read(make([]byte, 1))
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	p := start(t, Config{portable: e == portable}, Route{Match: "reset.example", To: []string{ln.Addr().String()}})
	c := p.raw(t)
	c.Write(goHello(t, &tls.Config{ServerName: "reset.example"}))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read() = %v, want %v", err, syscall.ECONNRESET)
	}
}

func TestNew_RefusesNegativeValues(t *testing.T) {
	for want, cfg := range map[string]Config{
		"MaxConns (-1)": {MaxConns: -1}, "MaxPerUpstream (-2)": {MaxPerUpstream: -2},
		"HelloTimeout (-1s)": {HelloTimeout: -time.Second}, "DialTimeout (-2s)": {DialTimeout: -2 * time.Second},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want an error with %s", err, want)
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	for _, e := range engines {
		for _, addrs := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/addrs=%d", e, addrs), func(b *testing.B) { benchmarkConnect(b, e, addrs) })
		}
	}
}

// benchmarkConnect opens, uses and closes connections to a route with addrs
// addresses.
func benchmarkConnect(b *testing.B, e engineKind, addrs int) {
	var to []string
	for range addrs {
		ln := listen(b)
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() { io.Copy(c, c); c.Close() }()
			}
		}()
		to = append(to, ln.Addr().String())
	}
	p := start(b, Config{portable: e == portable}, Route{Match: "bench.example", To: to})
	hello := goHello(b, &tls.Config{ServerName: "bench.example"})
	b.ReportAllocs()
	for b.Loop() {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			b.Fatal(err)
		}
		c.Write(withNewRandom(hello))
		if _, err := io.ReadFull(c, make([]byte, len(hello))); err != nil {
			b.Fatalf("read of the echo = %v, want nil", err)
		}
		c.Close()
	}
}
