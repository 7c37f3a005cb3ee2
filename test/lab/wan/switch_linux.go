// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// switcher is the state of Run's goroutine. The goroutine reads packets from
// devices, queues them for the time that their path determines, and writes them
// to other devices. It sleeps in ppoll(2), whose timeouts are accurate to
// microseconds. Timers of the Go runtime are accurate to 1 ms.
type switcher struct {
	w      *WAN
	event  int
	random func() float64

	start time.Time // zero of the clock
	fds   []unix.PollFd
	of    *table   // the table that fds was built from
	spare [][]byte // free buffers
}

const (
	// batch is how many packets of one port are read before due packets are
	// delivered. Reading a batch takes about 200 µs.
	batch = 64
	// priority is the real-time priority of the switch's thread, see sched(7).
	// A real WAN does not slow down when its endpoints are busy. A nice value
	// would only apply among the processes of one session.
	priority = 1
)

func (s *switcher) run(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: the thread and its priority end with the goroutine
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Priority: priority}, 0)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns; without it ppoll is up to 50 µs late
	s.start = time.Now()
	for {
		waited := s.w.table.Load()
		if err := s.wait(waited); err != nil {
			return fmt.Errorf("WAN: ppoll: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		t := s.w.table.Load() // use the current addresses for packets that arrived during the wait
		for i, p := range waited.ports {
			if s.fds[i+1].Revents != 0 && !p.dead {
				s.read(t, p)
				s.deliver(t)
			}
		}
		s.deliver(t)
	}
}

func (s *switcher) now() time.Duration { return time.Since(s.start) }

// wait sleeps until a device has packets, a packet in flight is due, or
// wakeLocked is called.
func (s *switcher) wait(t *table) error {
	if s.of != t {
		s.fds = append(s.fds[:0], unix.PollFd{Fd: int32(s.event), Events: unix.POLLIN})
		for _, p := range t.ports {
			s.fds = append(s.fds, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN})
		}
		s.of = t
	}
	for i, p := range t.ports {
		if p.dead {
			s.fds[i+1].Fd = -1 // ignored by poll(2)
		}
	}
	var timeout *unix.Timespec // nil: no timeout
	if due, ok := nextDue(t); ok {
		ts := unix.NsecToTimespec(max(0, int64(due-s.now())))
		timeout = &ts
	}
	_, err := unix.Ppoll(s.fds, timeout, nil)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	if err != nil { // EINTR: the kernel did not set Revents
		for i := range s.fds {
			s.fds[i].Revents = 0
		}
	}
	if s.fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(s.event, b[:])
	}
	return nil
}

// nextDue returns when the next packet of all paths is due. It returns false if
// no packet is queued.
func nextDue(t *table) (first time.Duration, ok bool) {
	for _, row := range t.paths {
		for _, p := range row {
			if p == nil {
				continue
			}
			if due, some := p.q.peek(); some && (!ok || due < first) {
				first, ok = due, true
			}
		}
	}
	return first, ok
}

// read reads at most one batch of packets from a device.
func (s *switcher) read(t *table, from *Port) {
	for range batch {
		b := s.buffer()
		n, err := unix.Read(from.fd, b)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			s.spare = append(s.spare, b)
			return
		case err != nil: // such as EBADFD: the device was deleted
			s.spare = append(s.spare, b)
			from.dead = true
			return
		}
		if !s.send(t, from, b[:n]) {
			s.spare = append(s.spare, b)
		}
	}
}

// buffer returns a free buffer of MTU bytes.
func (s *switcher) buffer() []byte {
	if n := len(s.spare); n > 0 {
		b := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return b[:cap(b)]
	}
	return make([]byte, MTU)
}

// send queues a packet on its path. It returns false if the packet was dropped.
func (s *switcher) send(t *table, from *Port, b []byte) bool {
	if s.w.cfg.Tap != nil {
		s.w.cfg.Tap(b)
	}
	dst, ok := destination(b)
	to := t.byAddr[dst]
	if !ok || to == nil || to == from {
		s.w.unrouted.Add(1)
		return false
	}
	p := t.paths[from.index][to.index]
	due, ok := p.admit(s.now(), len(b), s.random)
	if ok {
		p.q.push(packet{due, b})
	}
	return ok
}

// destination returns the destination address of an IP packet (RFC 791 section
// 3.1, RFC 8200 section 3), and false if b is not an IP packet.
func destination(b []byte) (netip.Addr, bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && int(binary.BigEndian.Uint16(b[2:])) == len(b):
		return netip.AddrFrom4([4]byte(b[16:20])), true
	case len(b) >= 40 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[24:40])), true
	}
	return netip.Addr{}, false
}

// deliver writes all due packets to their devices.
func (s *switcher) deliver(t *table) {
	for _, row := range t.paths {
		for to, p := range row {
			if p != nil {
				s.deliverPath(p, t.ports[to])
			}
		}
	}
}

func (s *switcher) deliverPath(p *Path, to *Port) {
	for {
		due, ok := p.q.peek()
		if !ok {
			return
		}
		now := s.now()
		if due > now {
			return
		}
		pk := p.q.pop()
		if p.link.Load().Cut {
			p.count.cut.Add(1)
		} else {
			if late := int64(now - due); late > p.count.late.Load() {
				p.count.late.Store(late)
			}
			if _, err := unix.Write(to.fd, pk.b); err != nil {
				p.count.refused.Add(1)
			} else {
				p.count.delivered.Add(1)
				p.count.deliveredBytes.Add(uint64(len(pk.b)))
			}
		}
		s.spare = append(s.spare, pk.b)
	}
}
