// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testPeersAreWatched looks at the sockets that the gateway has: dead peers must be found on both sides.
func testPeersAreWatched(t *testing.T, e Engine) {
	addr, _ := rawUpstream(t, silent)
	p := start(t, Config{Engine: e}, Route{Match: "x.example", To: []string{addr}})
	c := p.raw(t)
	c.Write(helloFor(t, "x.example"))
	until(t, func() bool { return p.side.Stats().BytesUp > 0 })
	seen := 0
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		fd, _ := strconv.Atoi(f.Name())
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); !strings.HasPrefix(to, "socket:") {
			continue
		}
		local, remote := sysAddrs(int32(fd))
		if local.String() == p.addr && remote.String() == c.LocalAddr().String() || remote.String() == addr && local.IsValid() {
			seen++
			until(t, func() bool { return sysWatched(int32(fd)) }) // epoll: after their youth
			if n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); n != 1 || err != nil {
				t.Errorf("no delay: %d, %v", n, err)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d sockets of the gateway were found", seen)
	}
}

func TestPeersAreWatched(t *testing.T) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) { testPeersAreWatched(t, e) })
	}
}
