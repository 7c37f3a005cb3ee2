// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// spare is a file that is open for nothing but to be closed when the process may open no more: then connections that wait can
// still be taken, one at a time, and closed. Their clients learn at once that they must try elsewhere, and the connections that
// are there go on.
type spare struct{ f atomic.Pointer[os.File] } // nil: it is lent, or could not be opened

// hold opens the file, if it is not.
func (s *spare) hold() error {
	f, err := os.Open(os.DevNull)
	if err == nil && !s.f.CompareAndSwap(nil, f) {
		f.Close()
	}
	return err
}

// need says that the file is lent and cannot be replaced: who has just been given a new file has got that.
func (s *spare) need() bool { return s.f.Load() == nil && noFiles(s.hold()) }

// lend calls f while there is room for one more file, if such room can be made and nobody else has it.
func (s *spare) lend(f func()) {
	spare := s.f.Swap(nil)
	if spare == nil {
		s.hold() // for the next time: an earlier attempt may have failed
		return
	}
	spare.Close()
	f()
	s.hold()
}

func (s *spare) release() {
	if f := s.f.Swap(nil); f != nil {
		f.Close()
	}
}

// noFiles says whether an accept failed because the process, or the system, may open no more files.
func noFiles(err error) bool { return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) }

// shedWait is how long a connection that waits may take to be accepted, at most.
const shedWait = 2 * time.Millisecond

// shed closes one connection that waits at l. It returns false if there is none, or it cannot be done.
func (p *Proxy) shed(l boundSocket) (done bool) {
	bounded, ok := l.Listener.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return false
	}
	var remote netip.AddrPort
	p.spare.lend(func() {
		bounded.SetDeadline(time.Now().Add(shedWait)) // the error may have come although nobody waits
		defer bounded.SetDeadline(time.Time{})
		c, err := l.Accept()
		if err != nil {
			return
		}
		done, remote = true, remoteOf(c)
		c.Close()
	})
	if done {
		l.owner.accepted.Add(1)
		p.refusals.count(l.owner, remote.String(), &refusal{reason: ReasonNoFiles})
	}
	return done
}

// remoteOf is the IP address and port of c's peer; not valid if it has none.
func remoteOf(c net.Conn) netip.AddrPort { return ipOf(c.RemoteAddr()) }

// localOf is that of this end.
func localOf(c net.Conn) netip.AddrPort { return ipOf(c.LocalAddr()) }

func ipOf(a net.Addr) netip.AddrPort {
	if a, ok := a.(*net.TCPAddr); ok {
		ip := a.AddrPort()
		return netip.AddrPortFrom(ip.Addr().Unmap(), ip.Port())
	}
	return netip.AddrPort{}
}
