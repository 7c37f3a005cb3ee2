// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/testutil"
)

// segments returns the number of TCP segments that a socket has received.
func segments(t testing.TB, c *net.TCPConn) (n uint32) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if err := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Segs_in
}

// The gateway acknowledges data together with the response, and sends the last
// data and the end in one segment. Delays of a busy machine cause more
// segments, so one connection of several is enough.
func TestReactor_SendsFewSegments(t *testing.T) {
	testutil.Cluster(t)
	const connections = 50
	atUpstream := make(chan uint32, 2*connections)
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		c.Read(make([]byte, 64<<10))
		atUpstream <- segments(t, c)
		c.Write([]byte("answer"))
		io.Copy(io.Discard, c)
		atUpstream <- segments(t, c)
	})
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false) // as the gateway process does
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := startOn(t, ln, Config{}, Route{Match: "x.example", To: []string{addr}})
	hello := helloFor(t, "x.example")
	type packets struct { // segments received, with the TCP handshake
		hello  uint32 // by the upstream, up to the ClientHello
		answer uint32 // by the client, up to the answer
		end    uint32 // by the upstream, after the ClientHello
	}
	want, got := packets{hello: 2, answer: 2, end: 1}, map[packets]int{}
	for range connections {
		c := p.raw(t)
		c.Write(hello)
		io.ReadFull(c, make([]byte, len("answer")))
		n := packets{hello: <-atUpstream, answer: segments(t, c)}
		c.Write([]byte("bye"))
		c.CloseWrite()
		io.Copy(io.Discard, c)
		n.end = <-atUpstream - n.hello
		if got[n]++; n == want {
			return
		}
	}
	t.Errorf("segments of %d connections = %+v, want %+v once", connections, got, want)
}
