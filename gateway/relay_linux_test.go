// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/testutil"
)

// epollEvents returns the events for which an epoll instance of this process
// waits on the socket that is connected to addr, from /proc/PID/fdinfo.
func epollEvents(t testing.TB, addr string) (events uint32) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fd, _ := strconv.Atoi(f.Name())
		if _, remote := endsOf(fd); remote.String() != addr {
			continue
		}
		for _, f := range files {
			info, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", f.Name()))
			for line := range strings.Lines(string(info)) {
				var n int
				var mask uint32
				if k, _ := fmt.Sscanf(line, "tfd: %d events: %x", &n, &mask); k == 2 && n == fd {
					events |= mask
				}
			}
		}
	}
	return events
}

// A worker must not wait for data of an upstream while the client does not
// read.
func TestReactor_MutesSource(t *testing.T) {
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		for b := make([]byte, 64<<10); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	p := start(t, Config{}, Route{Match: "x.example", To: []string{addr}})
	c := p.raw(t)
	c.Write(helloFor(t, "x.example"))
	for range 3 { // the client stops and continues to read
		testutil.Eventually(t, waitLimit, func() bool {
			e := epollEvents(t, addr)
			return e != 0 && e&unix.EPOLLIN == 0
		}, "no events for data from the upstream")
		if _, err := io.CopyN(io.Discard, c, 64<<20); err != nil {
			t.Fatalf("CopyN() = %v, want nil", err)
		}
	}
	if e := epollEvents(t, addr); e&unix.EPOLLRDHUP == 0 {
		t.Errorf("events = %x, want EPOLLRDHUP for the end of the upstream", e)
	}
}

// endsOf returns the addresses of both ends of a socket of this process.
func endsOf(fd int) (local, remote netip.AddrPort) {
	addrPort := func(sa unix.Sockaddr) netip.AddrPort {
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
		case *unix.SockaddrInet6:
			return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
		}
		return netip.AddrPort{}
	}
	l, _ := unix.Getsockname(fd)
	r, _ := unix.Getpeername(fd)
	return addrPort(l), addrPort(r)
}
