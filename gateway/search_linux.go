// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/proxyproto"
)

// search is the race for a pair's upstream: the sockets of the addresses that were asked, and when something is due.
type search struct {
	race
	pair  *pair
	life  uint32          // differs from that of others who had this struct
	newer func() []string // latest, as the race wants it
	table *Table          // the newest that was looked at
	to    *target
	began time.Time
	sni   []byte
	hello []byte
	ask   bool // the first TLS record decides; else a connection does
	share      // of the hellos' memory
	tries []*try
	one   try       // the first of them
	next  time.Time // when the next address is asked, or the state of things is looked at
	over  time.Time // when the search fails
	// oneUsed stays until the search is over: an event may still be at work with a try that was lost.
	oneUsed bool
	timer
}

// search begins to look for an upstream of p. It does not keep hello.
func (w *worker) search(p *pair, table *Table, to *target, hello Hello, peeked []byte) {
	d := &w.engine.dialer
	p.dropPeek(w)
	var held share
	if !w.engine.hellos.grow(&held, len(peeked)) {
		p.refuse(w, errHelloMemory)
		return
	}
	s := w.newSearch()
	s.share = held
	s.pair, s.table, s.to, s.began = p, table, to, w.now
	s.sni = append(s.sni[:0], hello.SNI...)
	s.hello = s.hello[:0]
	if to.ProxyProtocol {
		s.hello = proxyproto.Append(s.hello, p.remote, sysLocal(p.client.fd))
	}
	s.hello = append(s.hello, peeked...)
	s.ask = len(to.To) > 1 && !hello.EarlyData
	s.over = w.now.Add(2 * d.Timeout)
	p.search = s
	sorted, due := d.evidence.order(to.To, to.start(), w.now, d.Memory)
	if due != "" {
		var hello []byte
		if s.ask {
			hello = slices.Clone(s.hello)
		}
		d.attempts.Go(func() { d.retry(w.engine.serving, due, hello) })
	}
	s.race = race{d: d, news: s.newer, addrs: sorted, asked: s.asked[:0]}
	s.advance(w)
}

// latest returns the addresses of a newer table.
func (s *search) latest() []string {
	now := s.pair.side.Table()
	if now == s.table {
		return nil
	}
	s.table = now
	if t := now.find(s.sni); t != nil && t.ProxyProtocol == s.to.ProxyProtocol {
		return t.To
	}
	return nil
}

// advance asks the next address, if there is one, and sets the timer. The search may have ended when it returns.
func (s *search) advance(w *worker) {
	for life := s.life; ; {
		n, wait, ok := s.race.next(w.now)
		s.next = w.now.Add(wait)
		if !ok && s.race.over() {
			s.fail(w, s.errors())
			return
		}
		if !ok {
			break
		}
		err := s.start(w, n)
		if s.life != life {
			return
		}
		if err == nil {
			break
		}
		if s.lost(n, err, w.now) {
			s.fail(w, s.errors())
			return
		}
	}
	s.schedule(w)
}

// schedule sets the timer to what is due first.
func (s *search) schedule(w *worker) {
	at := s.next
	if s.over.Before(at) {
		at = s.over
	}
	for _, t := range s.tries {
		if t.state != tryAsking && t.until.Before(at) {
			at = t.until
		}
	}
	w.timers.set(s, at)
}

// start begins to connect to address n. The search may have ended when it returns.
func (s *search) start(w *worker, n int) error {
	t := s.newTry()
	*t = try{search: s, n: n, fd: -1, until: w.now.Add(s.d.Timeout)}
	addr, err := netip.ParseAddrPort(s.addrs[n])
	if err != nil || addr.Addr().Zone() != "" {
		s.tries = append(s.tries, t)
		t.resolve(w)
		return nil
	}
	fd, errno := sysConnect(addr)
	if errno != 0 {
		return t.fault(errno)
	}
	t.fd, t.state = fd, tryConnecting
	events := uint32(allEvents)
	if !w.engine.dialer.ownPort(addr.Port()) { // else it is looked at first
		errno := t.sendHello()
		if errno != 0 && errno != unix.EAGAIN {
			sysClose(fd)
			return t.fault(errno)
		}
		if t.state == tryAsking && t.sent == len(s.hello) {
			events = inEvents
		}
	}
	if err := w.register(fd, t, events); err != nil {
		sysClose(fd)
		return t.fault(err)
	}
	s.tries = append(s.tries, t)
	if t.state == tryAsking && !s.ask {
		t.win(w, nil, false)
	}
	return nil
}

// newTry returns a try to be filled. Most searches need one.
func (s *search) newTry() *try {
	if s.oneUsed {
		return &try{}
	}
	s.oneUsed = true
	return &s.one
}

// connected takes the socket that a goroutine connected.
func (s *search) connected(w *worker, m message) {
	i := slices.IndexFunc(s.tries, func(t *try) bool { return t.n == m.n })
	if i < 0 || s.life != m.life {
		if m.err == nil {
			sysClose(m.fd)
		}
		return
	}
	t := s.tries[i]
	if m.err == nil {
		t.fd, t.state = m.fd, tryConnecting
		if err := w.register(t.fd, t, allEvents); err != nil {
			sysClose(t.fd)
			t.fd, m.err = -1, t.fault(err)
		}
	}
	if m.err != nil {
		t.lose(w, m.err)
	}
}

// expire does what is due.
func (s *search) expire(w *worker) {
	if !w.now.Before(s.over) {
		s.end(context.DeadlineExceeded, w.now)
		s.fail(w, s.errors())
		return
	}
	for life, i := s.life, len(s.tries)-1; i >= 0; i = min(i, len(s.tries)) - 1 {
		if t := s.tries[i]; t.state != tryAsking && !w.now.Before(t.until) {
			if t.lose(w, t.fault(context.DeadlineExceeded)); s.life != life {
				return
			}
		}
	}
	if w.now.Before(s.next) {
		s.schedule(w)
		return
	}
	if s.ask && s.pair.client.hungUp {
		s.gone(w)
		return
	}
	s.look()
	s.advance(w)
}

// gone ends a search whose client has closed.
func (s *search) gone(w *worker) {
	s.pair.side.dialFailures.Add(uint64(s.failed))
	s.pair.refuse(w, &refusal{reason: ReasonClientGone, sni: string(s.sni)})
}

// fail ends a search that found nothing.
func (s *search) fail(w *worker, err error) {
	s.pair.side.dialFailures.Add(uint64(s.failed))
	s.pair.refuse(w, unreachable(string(s.sni), err))
}

// release closes what the search still has, and gives it back to the worker.
func (s *search) release(w *worker) {
	s.pair.search = nil
	w.timers.stop(s)
	s.race.release()
	w.engine.hellos.free(&s.share)
	for _, t := range s.tries {
		t.close(w)
	}
	clear(s.tries)
	s.tries = s.tries[:0]
	w.freeSearch(s)
}
