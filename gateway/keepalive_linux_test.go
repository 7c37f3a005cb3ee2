// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/internal/testutil"
)

// Both sockets of a connection must detect a dead peer.
func testKeepalive(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	addr, _ := rawUpstream(t, silent)
	p := start(t, Config{portable: e == portable}, Route{Match: "x.example", To: []string{addr}})
	c := p.raw(t)
	c.Write(helloFor(t, "x.example"))
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().BytesUp > 0 },
		"bytes sent to the upstream")
	found := 0 // sockets of the gateway
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		fd, _ := strconv.Atoi(f.Name())
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); !strings.HasPrefix(to, "socket:") {
			continue
		}
		local, remote := endsOf(fd)
		if local.String() == p.addr && remote.String() == c.LocalAddr().String() || remote.String() == addr &&
			local.IsValid() {
			found++
			testutil.Eventually(t, waitLimit, func() bool { return hasKeepalive(fd) }, "keepalive on the socket")
			if n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); n != 1 || err != nil {
				t.Errorf("TCP_NODELAY = %d, %v; want 1", n, err)
			}
		}
	}
	if found != 2 {
		t.Errorf("sockets of the gateway = %d, want 2", found)
	}
}

func TestKeepalive(t *testing.T) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) { testKeepalive(t, e) })
	}
}

// hasKeepalive reports whether the socket has the options that detect a dead
// peer.
func hasKeepalive(fd int) bool {
	on, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	idle, err2 := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	timeout, err3 := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	return errors.Join(err1, err2, err3) == nil && on == 1 &&
		idle == int(sockets.KeepaliveIdle/time.Second) && timeout == int(sockets.UserTimeout/time.Millisecond)
}
