// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
)

// cutBy ends a connection: by an end of data, or by a reset.
func cutBy(c *net.TCPConn, reset bool) {
	if reset {
		c.SetLinger(0)
		c.Close()
		return
	}
	c.CloseWrite()
}

// cutData is how many bytes follow the hello of connections that are cut in their data.
const cutData = 40

// cutUpstream echoes. Of a connection whose first byte behind the hello is 'D', it sends as many bytes of data back as the second
// says, and cuts: the third says how.
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

// testCutEverywhere has client and upstream end connections after each byte, of the hello and of the data behind it: what was sent
// before a clean end must arrive, and nothing may stay, while the gateway runs on.
func testCutEverywhere(t *testing.T, e engineKind) {
	hello := recorded(t)["go-1.26-no-pq"]
	one, two := cutUpstream(t, len(hello)), cutUpstream(t, len(hello))
	p := start(t, Config{engine: e}, Route{Match: "srv1.server.dc1.wanfed", To: []string{one}})
	all := append(bytes.Clone(hello), bytes.Repeat([]byte{'x'}, cutData)...)
	connect := func() *net.TCPConn {
		c := p.raw(t)
		c.Write(all)
		if _, err := io.ReadFull(c, make([]byte, len(all))); err != nil {
			t.Fatal(err)
		}
		return c
	}
	connect().Close()
	idle := func() bool { st := p.listener.Stats(); return st.Active == 0 && st.Sources == 0 }
	until(t, idle)
	goroutines, open := runtime.NumGoroutine(), files(t)

	for _, to := range [][]string{{one}, {one, two}} {
		p.listener.SetTable(mustTable(t, Route{Match: "srv1.server.dc1.wanfed", To: to}))
		var wg sync.WaitGroup
		places := make(chan struct{}, 16) // how many at once
		for _, reset := range []bool{false, true} {
			for n := range len(all) + 1 {
				places <- struct{}{}
				wg.Go(func() { cutClient(t, p, all, n, len(hello), reset, len(to) > 1); <-places })
			}
			for n := range cutData {
				places <- struct{}{}
				wg.Go(func() { cutServer(t, p, hello, n, reset); <-places })
			}
		}
		wg.Wait()
		until(t, idle)
	}
	if st := p.listener.Stats(); st.Refused[ReasonLimit] != 0 || st.Refused[ReasonUpstreamUnreachable] != 0 {
		t.Errorf("%+v", st)
	}
	until(t, func() bool {
		runtime.GC() // package net keeps pipes until then
		return runtime.NumGoroutine() <= goroutines && files(t) <= open
	})
	const limit = 8
	p.SetMaxConns(limit)
	for range limit { // the limit counts none of them any more
		defer connect().Close()
	}
	if st := p.listener.Stats(); st.Active != limit || st.Sources != 1 {
		t.Errorf("%+v", st)
	}
	p.stop()
}

// cutClient sends n bytes and cuts. If the upstreams race, they get nothing of a client that ends with its hello.
func cutClient(t *testing.T, p *running, all []byte, n, hello int, reset, race bool) {
	c := p.raw(t)
	defer c.Close()
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
		t.Errorf("an end after %d of %d bytes: got %d back, %v", n, len(all), len(got), err)
	}
}

// cutServer has the upstream send n bytes and cut.
func cutServer(t *testing.T, p *running, hello []byte, n int, reset bool) {
	c := p.raw(t)
	defer c.Close()
	how := byte('E')
	if reset {
		how = 'R'
	}
	c.Write(append(bytes.Clone(hello), 'D', byte(n), how))
	got, err := io.ReadAll(c)
	if len(got) > n || reset == (err == nil) || !reset && len(got) != n {
		t.Errorf("the upstream cuts after %d bytes, by a reset: %v; got %d, %v", n, reset, len(got), err)
	}
}
