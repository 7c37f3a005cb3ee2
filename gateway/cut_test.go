// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"github.com/wanfed/wanfed/internal/testutil"
)

// cutBy ends a connection with an end of data, or with a reset.
func cutBy(c *net.TCPConn, reset bool) {
	if reset {
		c.SetLinger(0)
		c.Close()
		return
	}
	c.CloseWrite()
}

// cutData is the number of bytes after the ClientHello.
const cutData = 40

// cutUpstream starts an upstream that echoes. If the first byte after the
// ClientHello is 'D', the upstream instead sends the number of bytes that the
// second byte contains and cuts the connection: with a reset if the third byte
// is 'R'.
func cutUpstream(t *testing.T, hello int) string {
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		b := make([]byte, hello-1+3) // rawUpstream has read one byte
		n, err := io.ReadFull(c, b)
		if err != nil || b[hello-1] != 'D' {
			c.Write(append([]byte{tlsrecord.Handshake}, b[:n]...))
			io.Copy(c, c)
			return
		}
		c.Write(b[:b[hello]])
		cutBy(c, b[hello+1] == 'R')
		io.Copy(io.Discard, c)
	})
	return addr
}

// Client and upstream end connections after each byte of the ClientHello and of
// the data after it. All data before an end of data must arrive, and no
// resource may leak.
func testCutAfterEachByte(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	hello := recorded(t)["go-1.26-no-pq"]
	one, two := cutUpstream(t, len(hello)), cutUpstream(t, len(hello))
	p := start(t, Config{portable: e == portable}, Route{Match: "srv1.server.dc1.wanfed", To: []string{one}})
	all := append(bytes.Clone(hello), bytes.Repeat([]byte{'x'}, cutData)...)
	connect := func() *net.TCPConn {
		c := p.raw(t)
		c.Write(withNewRandom(all))
		if _, err := io.ReadFull(c, make([]byte, len(all))); err != nil {
			t.Fatalf("read of the echo = %v, want nil", err)
		}
		return c
	}
	connect().Close()
	idle := func() bool { st := p.listener.Stats(); return st.Active == 0 && st.Sources == 0 }
	testutil.Eventually(t, waitLimit, idle, "no active connection and no source")
	goroutines, open := runtime.NumGoroutine(), files(t)

	for _, to := range [][]string{{one}, {one, two}} {
		p.listener.SetTable(mustTable(t, Route{Match: "srv1.server.dc1.wanfed", To: to}))
		var wg sync.WaitGroup
		slots := make(chan struct{}, 16) // for concurrent connections
		for _, reset := range []bool{false, true} {
			for n := range len(all) + 1 {
				slots <- struct{}{}
				wg.Go(func() { cutClient(t, p, all, n, len(hello), reset, len(to) > 1); <-slots })
			}
			for n := range cutData {
				slots <- struct{}{}
				wg.Go(func() { cutServer(t, p, hello, n, reset); <-slots })
			}
		}
		wg.Wait()
		testutil.Eventually(t, waitLimit, idle, "no active connection and no source")
	}
	if st := p.listener.Stats(); st.Refused[ReasonLimit] != 0 || st.Refused[ReasonUpstreamUnreachable] != 0 {
		t.Errorf("Stats() = %+v, want no refusals for limit or upstream", st)
	}
	testutil.Eventually(t, waitLimit, func() bool {
		runtime.GC() // closes pipes that package net keeps
		return runtime.NumGoroutine() <= goroutines && files(t) <= open
	}, "no goroutine and no file left")
	const limit = 8
	p.SetMaxConns(limit)
	for range limit { // ended connections do not count
		defer connect().Close()
	}
	if st := p.listener.Stats(); st.Active != limit || st.Sources != 1 {
		t.Errorf("Stats() = %+v, want %d active from one source", st, limit)
	}
	p.stop()
}

// cutClient sends n bytes and cuts the connection. With several upstreams, a
// client that ends directly after its ClientHello counts as disconnected.
func cutClient(t *testing.T, p *running, all []byte, n, hello int, reset, race bool) {
	c := p.raw(t)
	defer c.Close()
	all = withNewRandom(all)
	c.Write(all[:n])
	if cutBy(c, reset); reset {
		return
	}
	want := all[:n]
	if n < hello {
		want = nil
	}
	got, err := io.ReadAll(c)
	if race && n == hello && len(got) == 0 {
		return
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAll() after an end after %d of %d bytes = %d bytes, %v; want %d", n, len(all), len(got),
			err, len(want))
	}
}

// cutServer lets the upstream send n bytes and cut the connection.
func cutServer(t *testing.T, p *running, hello []byte, n int, reset bool) {
	c := p.raw(t)
	defer c.Close()
	end := byte('E')
	if reset {
		end = 'R'
	}
	c.Write(append(withNewRandom(hello), 'D', byte(n), end))
	got, err := io.ReadAll(c)
	if len(got) > n || reset == (err == nil) || !reset && len(got) != n {
		t.Errorf("ReadAll() with a cut after %d bytes = %d bytes, %v; want an error: %v", n, len(got), err, reset)
	}
}
