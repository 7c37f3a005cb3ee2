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

// TestReactor_SendsFewSegments counts the TCP segments of a request, a response
// and the end of a connection. The gateway sends the acknowledgment of the
// request in the segment of the response, and the FIN in the segment of the
// last data. On a busy machine, delays cause additional segments. The test
// therefore opens many connections, and succeeds if one of them has the fewest
// segments.
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
		c.Write(withNewRandom(hello))
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
