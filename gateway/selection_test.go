// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// rawUpstream starts a TCP server that reads one byte of each connection and
// then calls f. It returns the address and the number of connections. The end
// of the test joins its goroutines.
func rawUpstream(t testing.TB, f func(*net.TCPConn)) (string, *atomic.Int32) {
	t.Helper()
	ln := listen(t)
	var (
		n  atomic.Int32
		wg sync.WaitGroup
	)
	wg.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			n.Add(1)
			wg.Go(func() {
				defer c.Close()
				c.Read(make([]byte, 1))
				f(c)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String(), &n
}

// silent reads until the end of data and sends nothing.
func silent(c *net.TCPConn) { io.Copy(io.Discard, c) }

// trickle sends a TLS record, one byte every 10 ms.
func trickle(c *net.TCPConn) {
	go silent(c) // ends with c
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, b := range append([]byte{22, 3, 3, 2, 0}, make([]byte, 512)...) {
		<-tick.C
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
	}
}

// alert sends a TLS alert: unrecognized_name.
func alert(c *net.TCPConn) {
	c.Write([]byte{21, 3, 3, 0, 2, 2, 112})
	silent(c)
}

func testNextWhenNoAnswer(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	stalls := lab.WatchStalls(t)
	for _, tt := range []struct {
		name string
		bad  func(*net.TCPConn)
	}{
		{"silent", silent},
		{"closes", func(*net.TCPConn) {}},
		{"resets", func(c *net.TCPConn) { c.SetLinger(0) }},
		{"trickles", trickle},
		{"HTTP", func(c *net.TCPConn) { c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); silent(c) }},
		{"header of a huge record", func(c *net.TCPConn) { c.Write([]byte{22, 3, 3, 0xff, 0xff}); silent(c) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bad, tried := rawUpstream(t, tt.bad)
			good := tlsUpstream(t, named("good"))
			var reported atomic.Int32
			p := start(t, Config{portable: e == portable, ejectFor: time.Hour, DialFailed: func(addr string) {
				if addr == bad {
					reported.Add(1)
				}
			}},
				Route{Match: "x.example", To: []string{bad, good}, Ordered: true})
			p.setSlow(good)
			for i := range 3 {
				began := time.Now()
				c, _ := p.connect(t, "x.example", 4)
				if took := stalls.Awake(began); took > time.Second {
					t.Errorf("time of connection %d = %v, want at most 1s", i, took)
				}
				c.Write([]byte("hello"))
				c.CloseWrite()
				if rest, err := io.ReadAll(c); err != nil || string(rest) != "hellobye" {
					t.Errorf("ReadAll() = %q, %v; want hellobye", rest, err)
				}
			}
			p.stop()
			if n := tried.Load(); n < 1 || n > 2 { // twice if a busy machine delays the good upstream
				t.Errorf("attempts at the bad upstream = %d, want 1 or 2", n)
			}
			p.refused(t, nil)
			if n := p.listener.Stats().DialFailures; n < 1 || n > 2 {
				t.Errorf("DialFailures = %d, want 1 or 2", n)
			}
			if n := reported.Load(); n < 1 || n > 2 {
				t.Errorf("calls of DialFailed with the bad upstream = %d, want 1 or 2", n)
			}
		})
	}
}

func testAlertIsAnAnswer(t *testing.T, e engineKind) {
	first, _ := rawUpstream(t, alert)
	second, tried := rawUpstream(t, silent)
	p := start(t, Config{portable: e == portable, attemptDelay: time.Minute},
		Route{Match: "x.example", To: []string{first, second}, Ordered: true})
	if _, err := tls.Dial("tcp", p.addr, &tls.Config{ServerName: "x.example"}); err == nil ||
		!strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("Dial() = %v, want the alert unrecognized name of the first upstream", err)
	}
	p.stop()
	if n := tried.Load(); n != 0 {
		t.Errorf("attempts at the second upstream = %d, want 0", n)
	}
	p.refused(t, nil)
}

// The client sends data with its ClientHello. Only one upstream may receive the
// data.
func testNoReplayOfData(t *testing.T, e engineKind) {
	plain := goHello(t, &tls.Config{ServerName: "x.example"})
	for _, tt := range []struct {
		name string
		data []byte
	}{
		{"extension early_data", craft(sniExt("x.example"), ext(extEarlyData))},
		{"bytes after the ClientHello", append(plain[:len(plain):len(plain)], "more"...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan []byte, 1)
			first, _ := rawUpstream(t, func(c *net.TCPConn) {
				b, _ := io.ReadAll(c)
				got <- b
			})
			second, tried := rawUpstream(t, silent)
			p := start(t, Config{portable: e == portable},
				Route{Match: "x.example", To: []string{first, second}, Ordered: true})
			c := p.raw(t)
			c.Write(tt.data)
			c.CloseWrite()
			if b := <-got; !bytes.Equal(b, tt.data[1:]) {
				t.Errorf("bytes at the upstream = %d, want %d", len(b), len(tt.data)-1)
			}
			io.Copy(io.Discard, c)
			p.stop()
			if n := tried.Load(); n != 0 {
				t.Errorf("attempts at the second upstream = %d, want 0", n)
			}
		})
	}
}

func testClientDisconnectsWhileWaiting(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	stalls := lab.WatchStalls(t)
	one, tried := rawUpstream(t, silent)
	two, _ := rawUpstream(t, silent)
	for _, more := range []string{"", "more"} { // unread bytes must not hide the disconnect
		p := start(t, Config{portable: e == portable, attemptDelay: 10 * time.Millisecond},
			Route{Match: "x.example", To: []string{one, two}, Ordered: true})
		tried.Store(0)
		c := p.raw(t)
		c.Write(goHello(t, &tls.Config{ServerName: "x.example"}))
		testutil.Eventually(t, waitLimit, func() bool { return tried.Load() > 0 }, "an attempt at the upstream")
		c.Write([]byte(more))
		c.Close()
		began := time.Now()
		testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
		if d := stalls.Awake(began); d > time.Second {
			t.Errorf("time until the disconnect was detected = %v, want at most 1s", d)
		}
		p.stop()
		p.refused(t, map[Reason]uint64{ReasonClientGone: 1})
	}
}

func testAllUpstreamsFail(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	stalls := lab.WatchStalls(t)
	var addrs []string
	for _, f := range []func(*net.TCPConn){func(*net.TCPConn) {}, silent, trickle} {
		addr, _ := rawUpstream(t, f)
		addrs = append(addrs, addr)
	}
	addrs = append(addrs, deadAddr(t))
	p := start(t, Config{portable: e == portable, DialTimeout: 200 * time.Millisecond, attemptDelay: time.Millisecond},
		Route{Match: "x.example", To: addrs, Ordered: true})
	began := time.Now()
	_, err := tls.Dial("tcp", p.addr, &tls.Config{ServerName: "x.example"})
	if err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("Dial() = %v, want internal error", err)
	}
	if d := stalls.Awake(began); d > 2*time.Second {
		t.Errorf("time of Dial() = %v, want at most 2s", d)
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonUpstreamUnreachable: 1})
	if n := p.listener.Stats().DialFailures; n != 4 {
		t.Errorf("DialFailures = %d, want 4", n)
	}
}

// The first record of the upstream has the largest size and arrives in pieces.
func testLongAnswer(t *testing.T, e engineKind) {
	data := append([]byte{22, 3, 3, 0x41, 0}, bytes.Repeat([]byte("x"), tlsrecord.MaxSize-recordHeader+100)...)
	long, _ := rawUpstream(t, func(c *net.TCPConn) {
		for i := 0; i < len(data); i += 1000 {
			c.Write(data[i:min(i+1000, len(data))])
		}
		c.CloseWrite()
		silent(c)
	})
	p := start(t, Config{portable: e == portable},
		Route{Match: "x.example", To: []string{long, deadAddr(t)}, Ordered: true})
	c := p.raw(t)
	c.Write(goHello(t, &tls.Config{ServerName: "x.example"}))
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadAll() = %d bytes, %v; want %d", len(got), err, len(data))
	}
	c.Close()
	p.stop()
	if got := p.listener.Stats().BytesDown; got != uint64(len(data)) {
		t.Errorf("BytesDown = %d, want %d", got, len(data))
	}
}
