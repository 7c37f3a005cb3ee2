// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// try is one address of a search.
type try struct {
	search *search
	n      int // its number
	fd     int32
	state  tryState
	hungUp bool               // an event said that the peer has ended its direction
	sent   int                // bytes of the hello
	answer []byte             // the first part of it
	until  time.Time          // it must be connected
	cancel context.CancelFunc // while it is resolving
}

type tryState uint8

const (
	tryResolving  tryState = iota // a goroutine resolves the name and connects
	tryConnecting                 // the socket is connecting
	tryAsking                     // the hello is sent, or being sent, and no whole record came back yet
)

func (t *try) fault(err error) error { return dialError(t.search.addrs[t.n], err) }

// resolve has a goroutine connect to an address that is a name, and post the socket.
func (t *try) resolve(w *worker) {
	s, d, addr := t.search, t.search.d, t.search.addrs[t.n]
	ctx, cancel := context.WithCancel(w.engine.serving)
	t.cancel = cancel
	m := message{kind: mailConnected, search: s, life: s.life, n: t.n}
	d.attempts.Go(func() {
		defer cancel()
		conn, err := d.connect(ctx, addr)
		if err == nil {
			m.fd, err = dup(conn.(*net.TCPConn))
			conn.Close()
		}
		if m.err = err; !w.post(m) && err == nil {
			sysClose(m.fd)
		}
	})
}

// event goes on with an address when its socket can.
func (t *try) event(w *worker, what uint32) {
	if what&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		t.hungUp = true
	}
	if t.state == tryConnecting {
		if what&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			if errno := sysError(t.fd); errno != 0 {
				t.lose(w, t.fault(errno))
				return
			}
		}
		if what&unix.EPOLLOUT == 0 {
			return
		}
		if local, remote := t.ends(w); w.engine.dialer.isOwnAddr(remote.Addr(), local.Addr(), remote.Port()) {
			t.lose(w, t.fault(errLoop))
			return
		}
		t.state = tryAsking
	}
	if t.sent < len(t.search.hello) {
		if errno := t.sendHello(); errno != 0 && errno != unix.EAGAIN {
			t.lose(w, answerError(t.search.addrs[t.n], errno))
			return
		}
		if !t.search.ask {
			t.win(w, nil, what&^unix.EPOLLOUT != 0)
			return
		}
	}
	if what&^unix.EPOLLOUT != 0 {
		t.readAnswer(w)
	}
}

// sendHello sends what the peer takes of the hello. Before the connection is there, that is nothing; to an address near by it
// may be there at once.
func (t *try) sendHello() unix.Errno {
	n, errno := sysSend(t.fd, t.search.hello[t.sent:], 0)
	if errno == 0 {
		t.state = tryAsking
	}
	t.sent += n
	return errno
}

// ends returns the two ends of the socket if its peer could be this very process.
func (t *try) ends(w *worker) (local, remote netip.AddrPort) {
	if addr, err := netip.ParseAddrPort(t.search.addrs[t.n]); err == nil && !w.engine.dialer.ownPort(addr.Port()) {
		return local, remote
	}
	return sysAddrs(t.fd)
}

// readAnswer reads until the first record is complete or nothing more has come.
func (t *try) readAnswer(w *worker) {
	for {
		room := w.buf[:recordHeader+maxRecord+recordProtection-len(t.answer)]
		n, errno := sysRecv(t.fd, room)
		if errno == unix.EAGAIN {
			return
		}
		var err error
		if errno != 0 {
			err = errno
		} else if n == 0 {
			err = errHungUp
		}
		in := room[:n]
		if len(t.answer) > 0 {
			t.answer = append(t.answer, in...)
			in = t.answer
		}
		var size int
		if err == nil {
			size, err = recordSize(in)
		}
		if err != nil {
			t.lose(w, answerError(t.search.addrs[t.n], err))
			return
		}
		if len(in) >= max(size, recordHeader) {
			t.win(w, in, true)
			return
		}
		if t.answer == nil {
			t.answer = slices.Clone(in)
		}
	}
}

// win makes t's connection the pair's upstream and begins to relay. more: there may be something to be read from it.
func (t *try) win(w *worker, answer []byte, more bool) {
	s, p := t.search, t.search.pair
	w.now = time.Now()
	p.known = s.won(t.n, w.now)
	if log := w.engine.log; log.Enabled(w.engine.serving, slog.LevelDebug) {
		log.Debug("connection routed", "listener", p.side.name, "remote", p.remote.String(), "sni", string(s.sni), "addr", s.addrs[t.n])
	}
	p.side.dialFailures.Add(uint64(s.failed))
	p.side.noteDial(s.to, w.now.Sub(s.began))
	p.trip.reached(s.addrs[t.n], w.now.Sub(s.began))
	u := &p.upstream
	u.fd, u.readable, u.writable, u.hungUp = t.fd, more, true, t.hungUp
	p.client.writable = true
	w.table[t.fd].handler = u
	t.fd = -1
	if rest := s.hello[t.sent:]; len(rest) > 0 {
		p.client.held = slices.Clone(rest)
		u.writable = false
	}
	p.client.count(t.sent)
	p.state, p.relayed = stateRelay, w.now.Sub(w.start)
	w.young.push(p)
	s.release(w)
	if len(answer) > 0 {
		u.give(w, &p.client, answer, 0)
	}
	if p.state == stateRelay {
		p.relay(w, &p.client)
	}
}

// lose ends t and goes on to the next address. The search may have ended when it returns.
func (t *try) lose(w *worker, err error) {
	s := t.search
	t.close(w)
	s.tries = slices.DeleteFunc(s.tries, func(other *try) bool { return other == t })
	if s.lost(t.n, err, w.now) {
		s.fail(w, s.errors())
		return
	}
	s.advance(w)
}

func (t *try) close(w *worker) {
	if t.cancel != nil {
		t.cancel()
	}
	if t.fd >= 0 {
		w.forget(t.fd)
		sysClose(t.fd)
		t.fd = -1
	}
}
