// SPDX-License-Identifier: MPL-2.0

package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// tcpPair returns both ends of a TCP connection.
func tcpPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestAddrPort(t *testing.T) {
	for _, tt := range []struct {
		addr net.Addr
		want netip.AddrPort
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, netip.MustParseAddrPort("192.0.2.1:7")},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 7}, netip.MustParseAddrPort("[2001:db8::1]:7")},
		{&net.UnixAddr{Name: "socket"}, netip.AddrPort{}},
	} {
		if got := AddrPort(tt.addr); got != tt.want {
			t.Errorf("AddrPort(%v) = %v, want %v", tt.addr, got, tt.want)
		}
	}
}

func TestPeerClosed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("PeerClosed works on Linux only")
	}
	client, server := tcpPair(t)
	check := func(state string, half, want bool) {
		t.Helper()
		testutil.Eventually(t, 5*time.Second, func() bool { return PeerClosed(server, half) == want },
			"PeerClosed(half %v) = %v with %s", half, want, state)
	}
	check("an open peer", true, false)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	check("a peer that has ended its direction", true, true)
	check("a peer that has ended its direction", false, false)
	client.SetLinger(0)
	client.Close()
	check("a peer that has reset the connection", false, true)
}

func TestIsTemporary(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EMFILE: true, syscall.ECONNABORTED: true, syscall.EBADF: false, syscall.EINVAL: false,
		net.ErrClosed: false, errors.New("other"): false,
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.ENFILE)}: true,
	} {
		if got := IsTemporary(err); got != want {
			t.Errorf("IsTemporary(%v) = %v, want %v", err, got, want)
		}
	}
	if err := fmt.Errorf("accept: %w", syscall.ENFILE); !OutOfFiles(err) || OutOfFiles(syscall.EBADF) {
		t.Errorf("OutOfFiles(%v), OutOfFiles(EBADF) = %v, %v; want true, false", err, OutOfFiles(err),
			OutOfFiles(syscall.EBADF))
	}
}

// Use must free the descriptor for its function, run one function at a time and
// hold a file afterwards.
func TestReserveFD(t *testing.T) {
	var r ReserveFD
	if err := r.Open(); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	calls := 0
	r.Use(func() {
		calls++
		if r.f.Load() != nil {
			t.Error("the reserve is open in Use, want it closed")
		}
		r.Use(func() { calls++ }) // opens the reserve again, and does not call the function
	})
	if calls != 1 {
		t.Errorf("calls of functions = %d, want 1", calls)
	}
	if r.Taken() || r.f.Load() == nil {
		t.Errorf("Taken() after Use = %v, file %v; want false and a file", r.Taken(), r.f.Load())
	}
}
