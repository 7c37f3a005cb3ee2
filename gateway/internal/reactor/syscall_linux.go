// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/gateway/internal/sockets"
)

// The functions of this file make the system calls for each connection and each
// piece of data. The calls do not block, so they bypass the scheduler of Go,
// whose work would take as long as some of these calls.

func sysRecv(fd int32, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return count(n, e), e
}

// sysSend sends b. flags are 0 or MSG_MORE. With MSG_MORE the last segment
// waits for the data of the next send.
func sysSend(fd int32, b []byte, flags int) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unix.MSG_NOSIGNAL|flags), 0, 0)
	return count(n, e), e
}

func sysSplice(from, to int32, n int) (int, unix.Errno) {
	k, _, e := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0,
		uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	return count(k, e), e
}

func count(n uintptr, e unix.Errno) int {
	if e != 0 {
		return 0
	}
	return int(n)
}

func sysClose(fd int32) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func sysShutdownWrite(fd int32) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
	return e
}

func sysSetsockopt(fd int32, level, option, value int) unix.Errno {
	v := int32(value)
	_, _, e := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	return e
}

func sysSetNoDelay(fd int32) { sysSetsockopt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }

// sysDelayAck makes the kernel delay acknowledgements, by at most 40 ms, until
// it can send them with data. This saves one packet for the ClientHello and one
// for the connect.
func sysDelayAck(fd int32) { sysSetsockopt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) }

// sysLingerReset makes close send a reset.
func sysLingerReset(fd int32) {
	l := unix.Linger{Onoff: 1}
	unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&l)), unsafe.Sizeof(l), 0)
}

func sysAccept(fd int32) (int32, netip.AddrPort, unix.Errno) {
	var sa unix.RawSockaddrInet6 // has space for an IPv4 address too
	size := uint32(unsafe.Sizeof(sa))
	n, _, e := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd),
		uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if e != 0 {
		return -1, netip.AddrPort{}, e
	}
	addr := netip.AddrFrom16(sa.Addr)
	if sa.Family == unix.AF_INET {
		addr = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)).Addr)
	}
	port := (*[2]byte)(unsafe.Pointer(&sa.Port))
	return int32(n), netip.AddrPortFrom(addr.Unmap(), uint16(port[0])<<8|uint16(port[1])), 0
}

// sysConnect returns a socket that is connecting to addr, which has no zone.
func sysConnect(addr netip.AddrPort) (int32, unix.Errno) {
	var (
		ip     = addr.Addr().Unmap()
		family = unix.AF_INET6
		v4     unix.RawSockaddrInet4
		v6     unix.RawSockaddrInet6
		sa     = unsafe.Pointer(&v6)
		size   = unsafe.Sizeof(v6)
		port   = [2]byte{byte(addr.Port() >> 8), byte(addr.Port())}
	)
	if ip.Is4() {
		family = unix.AF_INET
		v4.Family, v4.Addr = unix.AF_INET, ip.As4()
		*(*[2]byte)(unsafe.Pointer(&v4.Port)) = port
		sa, size = unsafe.Pointer(&v4), unsafe.Sizeof(v4)
	} else {
		v6.Family, v6.Addr = unix.AF_INET6, ip.As16()
		*(*[2]byte)(unsafe.Pointer(&v6.Port)) = port
	}
	s, _, e := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family),
		unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if e != 0 {
		return -1, e
	}
	fd := int32(s)
	sysSetNoDelay(fd)
	sysDelayAck(fd)
	_, _, e = unix.RawSyscall(unix.SYS_CONNECT, s, uintptr(sa), size)
	if e != 0 && e != unix.EINPROGRESS {
		sysClose(fd)
		return -1, e
	}
	return fd, 0
}

// sysSetKeepalive makes the kernel detect a dead peer, like
// sockets.SetKeepalive.
func sysSetKeepalive(fd int32) {
	for _, o := range keepaliveOptions {
		sysSetsockopt(fd, o.level, o.option, o.value)
	}
}

var keepaliveOptions = [...]struct{ level, option, value int }{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(sockets.KeepaliveIdle / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(sockets.KeepaliveInterval / time.Second)},
	// makes TCP_KEEPCNT unnecessary
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(sockets.UserTimeout / time.Millisecond)},
}

// sysError returns and clears the error of a socket.
func sysError(fd int32) unix.Errno {
	v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err.(unix.Errno)
	}
	return unix.Errno(v)
}

// sysAddrs returns the addresses of both ends of a connection.
func sysAddrs(fd int32) (local, remote netip.AddrPort) {
	l, _ := unix.Getsockname(int(fd))
	r, _ := unix.Getpeername(int(fd))
	return addrPort(l), addrPort(r)
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// dup returns a duplicate of the descriptor of a listener or a connection.
func dup(c syscall.Conn) (int32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return int32(fd), dupErr
}
