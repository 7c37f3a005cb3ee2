// SPDX-License-Identifier: MPL-2.0

package sockets

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// The kernel probes a silent connection after KeepaliveIdle, and then every
// KeepaliveInterval. It ends the connection when data or probes remain
// unacknowledged for UserTimeout.
const (
	KeepaliveIdle     = 15 * time.Second
	KeepaliveInterval = 5 * time.Second
	UserTimeout       = 30 * time.Second

	keepaliveCount = 3 // probes, on systems without UserTimeout
)

// After failed accepts, the pause doubles from MinAcceptPause to
// MaxAcceptPause.
const (
	MinAcceptPause = 5 * time.Millisecond
	MaxAcceptPause = time.Second
)

// SetKeepalive makes the kernel detect a dead peer of c. It does nothing unless
// c is a *net.TCPConn.
func SetKeepalive(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		// An error means that the connection has ended: the next read fails.
		t.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: KeepaliveIdle, Interval: KeepaliveInterval, Count: keepaliveCount,
		})
		setUserTimeout(t, UserTimeout)
	}
}

// AddrPort returns the IP address and port of a TCP address. The result is
// invalid for another address.
func AddrPort(a net.Addr) netip.AddrPort {
	if a, ok := a.(*net.TCPAddr); ok {
		ip := a.AddrPort()
		return netip.AddrPortFrom(ip.Addr().Unmap(), ip.Port())
	}
	return netip.AddrPort{}
}

// IsTemporary reports whether accept may succeed again after err. That holds if
// a resource is exhausted, or if err belongs to a connection that has ended
// (accept(2), "Error handling"). Errors of the listener are permanent.
func IsTemporary(err error) bool {
	switch errno, ok := errors.AsType[syscall.Errno](err); errno {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EOPNOTSUPP, syscall.EFAULT:
		return false
	default:
		return ok
	}
}

// OutOfFiles reports whether err means that the process or the system cannot
// open more files.
func OutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// ReserveFD is a file that stays open until the process cannot open more files.
// Then the process closes the file, and with the free descriptor it accepts and
// closes one pending connection after the other. The clients can use another
// gateway at once. Otherwise they would wait for their timeouts. The zero value
// holds no file.
type ReserveFD struct {
	f atomic.Pointer[os.File] // nil: in use, or not open
}

// Open opens the file, unless the file is open.
func (r *ReserveFD) Open() error {
	f, err := os.Open(os.DevNull)
	if err == nil && !r.f.CompareAndSwap(nil, f) {
		f.Close()
	}
	return err
}

// Taken reports whether another goroutine uses the reserve and the file cannot
// be opened again. Then the last descriptor that the caller obtained is the
// descriptor of the reserve, and the caller must close it.
func (r *ReserveFD) Taken() bool { return r.f.Load() == nil && OutOfFiles(r.Open()) }

// Use closes the file, calls f, and opens the file again. It does not call f
// while another goroutine uses the reserve.
func (r *ReserveFD) Use(f func()) {
	reserve := r.f.Swap(nil)
	if reserve == nil {
		r.Open() // an earlier Open may have failed
		return
	}
	reserve.Close()
	f()
	r.Open()
}

// Close closes the file.
func (r *ReserveFD) Close() {
	if f := r.f.Swap(nil); f != nil {
		f.Close()
	}
}
