// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// segments is how many segments of TCP have come to a socket.
func segments(t testing.TB, c *net.TCPConn) (n uint32) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if err := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Segs_in
}

// TestFewPackets counts what comes to a client and to an upstream: no acknowledgement of its own for what is answered at once, and
// the last data and the end in one. On a busy machine what is to go together may not: one connection of some has to be as it should.
func TestFewPackets(t *testing.T) {
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
	lc.SetMultipathTCP(false) // as the program has it
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := startOn(t, ln, Config{engine: eventDriven}, Route{Match: "x.example", To: []string{addr}})
	hello := helloFor(t, "x.example")
	type packets struct { // with those of the connect
		hello  uint32 // at the upstream, up to it
		answer uint32 // at the client, up to it
		end    uint32 // at the upstream, from the hello on
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
	t.Errorf("packets of %d connections: %+v, none %+v", connections, got, want)
}
