// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/reactor"
	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/proxyproto"
)

// session is the part of one client connection that both engines share:
// admission, ClientHello, route, counters and logs. It does not move bytes. It
// is small, because each idle connection has a session. It implements
// reactor.Session.
type session struct {
	proxy    *Proxy
	listener *Listener
	remote   netip.AddrPort // of the client; invalid: it has no IP address
	counted  bool           // Listener.admit has counted the connection for its source
	opening  *opening       // nil: connected to an upstream
	hello    helloSum       // in Proxy.forwarded; 0: not in it
	record   *accessRecord  // nil: not logged
}

// opening is the state that a session needs until it has an upstream.
type opening struct {
	accepted    time.Time
	proxyHeader bool // a PROXY header must come first
	start       int  // offset of the ClientHello in the received bytes
	parser      HelloParser
	held        int64            // bytes counted by helloMemory
	unfinished  *unfinishedHello // nil: the ClientHello is complete, or was not read yet

	received time.Time // when the ClientHello was complete
	sni      string
	table    *Table // the one that was searched last
	target   *target
}

// openings reuses the memory of openings, which reduces garbage while many
// connections arrive.
var openings = sync.Pool{New: func() any { return new(opening) }}

// handler passes connections of one listener to one proxy. It implements
// reactor.Handler.
type handler struct {
	proxy    *Proxy
	listener *Listener
}

// Accept implements reactor.Handler.
func (h handler) Accept(remote netip.AddrPort, now time.Time, reserve func() bool) reactor.Session {
	h.listener.accepted.Add(1)
	s := &session{
		proxy: h.proxy, listener: h.listener, remote: remote, record: h.proxy.access.begin(h.listener, remote, now),
	}
	s.opening = openings.Get().(*opening)
	s.opening.accepted = now
	reason, ok := Reason(0), true
	if s.opening.proxyHeader = h.listener.expectsProxyHeader(remote.Addr()); !s.opening.proxyHeader {
		reason, ok = s.admit(now)
	}
	if ok && !reserve() {
		reason, ok = ReasonLimit, false
	}
	if !ok {
		s.refuse(&refusal{reason: reason})
		s.finish(reactor.EndDone)
		return nil
	}
	h.listener.active.Add(1)
	return s
}

// RefuseNoFiles implements reactor.Handler.
func (h handler) RefuseNoFiles(remote netip.AddrPort) {
	h.listener.accepted.Add(1)
	h.proxy.refuse(h.listener, remote, &refusal{reason: ReasonNoFiles})
}

// admit counts the connection for its source, or returns the reason why the
// policy refuses it.
func (s *session) admit(now time.Time) (Reason, bool) {
	reason, ok := s.listener.admit(s.remote.Addr(), now)
	s.counted = ok
	return reason, ok
}

// Wait implements reactor.Session.
func (s *session) Wait(closeConn func(why error)) {
	s.opening.unfinished = &unfinishedHello{close: closeConn, begin: s.opening.accepted}
	s.proxy.unfinished.add(s.opening.unfinished, s.remote.Addr())
}

// Receive implements reactor.Session.
func (s *session) Receive(in []byte, now time.Time) (reactor.Request, error) {
	o := s.opening
	if err := s.readProxyHeader(in, now); err != nil {
		return reactor.Request{}, err
	}
	in = in[o.start:]
	hello, err := o.parser.Parse(in)
	if err != nil {
		return reactor.Request{}, err
	}
	hello.EarlyData = hello.EarlyData || o.parser.end < len(in)
	o.parser = HelloParser{}
	s.endWait()
	o.received, o.table = now, s.listener.Table()
	took := now.Sub(o.accepted)
	if s.record != nil {
		s.record.SNI, s.record.Hello = clip(string(hello.SNI)), milliseconds(took)
	}
	t, refused := o.table.route(hello)
	s.listener.hellos[t.class()].observe(took)
	if refused != nil {
		return reactor.Request{}, refused
	}
	o.target, o.sni = t, string(hello.SNI)
	if s.hello = s.proxy.forwarded.add(hello.random); s.hello == 0 {
		return reactor.Request{}, &refusal{reason: ReasonLoop, sni: o.sni}
	}
	return reactor.Request{
		Addrs: t.To, Start: t.start(), Hello: in,
		Race:        len(t.To) > 1 && !hello.EarlyData,
		ProxyHeader: t.ProxyProtocol || len(t.ProxyTo) > 0, ProxyTo: t.ProxyTo, Source: s.remote,
	}, nil
}

// readProxyHeader reads the PROXY header if the connection must have one. It
// returns ErrNeedMore until the header is complete. A header without a source
// address is accepted: it marks connections of the load balancer itself, such
// as health checks.
func (s *session) readProxyHeader(in []byte, now time.Time) error {
	if !s.opening.proxyHeader {
		return nil
	}
	source, size, err := proxyproto.Parse(in)
	switch {
	case err == proxyproto.ErrNeedMore:
		return ErrNeedMore
	case err == proxyproto.ErrNoHeader:
		return &refusal{reason: ReasonProxyHeader, err: fmt.Errorf("%w but is %s", err, tlsrecord.Detect(in))}
	case err != nil:
		return &refusal{reason: ReasonProxyHeader, err: err}
	}
	s.opening.proxyHeader, s.opening.start = false, size
	if source.IsValid() {
		s.remote = source
		if s.record != nil {
			s.record.Remote = source.String()
		}
		if reason, ok := s.admit(now); !ok {
			return &refusal{reason: reason, err: errors.New("client address taken from the PROXY header")}
		}
		if o := s.opening; o.unfinished != nil { // until now it counted for the load balancer
			s.proxy.unfinished.remove(o.unfinished)
			s.proxy.unfinished.add(o.unfinished, source.Addr())
		}
	}
	return nil
}

// endWait records that the ClientHello is complete. It may be called again.
func (s *session) endWait() {
	if o := s.opening; o.unfinished != nil {
		s.proxy.unfinished.remove(o.unfinished)
		o.unfinished = nil
	}
}

// HoldHello implements reactor.Session.
func (s *session) HoldHello(n int) error {
	o := s.opening
	if n += cap(o.parser.msg); n <= uncountedHello {
		n = 0
	}
	if !s.proxy.hellos.resize(&o.held, int64(n)) {
		return errHelloMemory
	}
	return nil
}

// NewUpstreams implements reactor.Session.
func (s *session) NewUpstreams() []string {
	o, table := s.opening, s.listener.Table()
	if table == o.table {
		return nil
	}
	o.table = table
	if t := table.find([]byte(o.sni)); t != nil && t.ProxyProtocol == o.target.ProxyProtocol {
		return t.To
	}
	return nil
}

// Connected implements reactor.Session.
func (s *session) Connected(addr string, failures int, now time.Time) {
	o, took := s.opening, now.Sub(s.opening.received)
	s.listener.dialFailures.Add(uint64(failures))
	s.listener.dials[o.target.class()].observe(took)
	if s.record != nil {
		s.record.Upstream, s.record.Dial = addr, milliseconds(took)
	}
	if s.proxy.log.Enabled(context.Background(), slog.LevelDebug) {
		s.proxy.log.Debug("connection routed", "listener", s.listener.name, "remote", s.remote, "sni", o.sni,
			"addr", addr)
	}
	s.endOpening()
}

// endOpening releases the state that is not needed after the connection to an
// upstream. It may be called again.
func (s *session) endOpening() {
	if s.opening != nil {
		s.endWait()
		s.proxy.hellos.resize(&s.opening.held, 0)
		*s.opening = opening{}
		openings.Put(s.opening)
		s.opening = nil
	}
}

// Count implements reactor.Session.
func (s *session) Count(up, down int) {
	s.listener.up.Add(uint64(up))
	s.listener.down.Add(uint64(down))
	if s.record != nil {
		s.record.bytesUp.Add(uint64(up))
		s.record.bytesDown.Add(uint64(down))
	}
}

// Fail implements reactor.Session.
func (s *session) Fail(why error, failures int) (alert []byte) {
	s.listener.dialFailures.Add(uint64(failures))
	r := s.classify(why)
	s.refuse(r)
	return r.alert()
}

// classify returns the refusal for an error of an engine.
func (s *session) classify(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if o := s.opening; o == nil || o.target != nil { // the route is known: the upstream failed
		r := &refusal{reason: ReasonUpstreamUnreachable, err: err}
		if o != nil {
			r.sni = o.sni
		}
		switch {
		case errors.Is(err, upstream.ErrClientGone):
			r.reason, r.err = ReasonClientGone, nil
		case errors.Is(err, upstream.ErrFull):
			r.reason = ReasonUpstreamLimit
		}
		return r
	}
	if _, ok := errors.AsType[*NotTLSError](err); ok {
		return &refusal{reason: ReasonNotTLS, err: err}
	}
	switch {
	case errors.Is(err, reactor.ErrShed):
		return &refusal{reason: ReasonLimit, err: err}
	case errors.Is(err, ErrHelloTooLarge):
		return &refusal{reason: ReasonHelloTooLarge, err: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{reason: ReasonHelloTimeout,
			err: fmt.Errorf("no complete ClientHello within %v", s.proxy.helloTimeout)}
	}
	return &refusal{reason: ReasonHelloCut, err: err}
}

func (s *session) refuse(r *refusal) {
	if s.record != nil {
		s.record.End = r.reason.String()
	}
	s.proxy.refuse(s.listener, s.remote, r)
}

// Close implements reactor.Session.
func (s *session) Close(end reactor.End) {
	s.listener.active.Add(^uint64(0))
	s.finish(end)
}

// finish releases what Accept obtained, and writes the line of the access log.
// For a refused connection the line has the Reason as its end.
func (s *session) finish(end reactor.End) {
	s.endOpening()
	s.proxy.forwarded.remove(s.hello)
	if s.counted {
		s.listener.release(s.remote.Addr())
	}
	if s.record != nil {
		s.record.End = cmp.Or(s.record.End, string(end))
		s.record.close()
	}
}

const (
	// uncountedHello is the size up to which helloMemory does not count a
	// ClientHello, in bytes. Usual clients send less.
	uncountedHello = 4 << 10
	// maxHelloMemory bounds the memory of all larger ClientHellos together, in
	// bytes: 1,000 ClientHellos of the largest size.
	maxHelloMemory = 64 << 20
)

// helloMemory bounds the memory of ClientHellos that are not forwarded yet.
// Without a bound, clients could exhaust the memory of a gateway: they could
// stop in the middle of large ClientHellos, or send large ClientHellos to an
// upstream that does not respond.
type helloMemory struct {
	max  atomic.Int64
	held atomic.Int64
}

var errHelloMemory = &refusal{reason: ReasonLimit, err: errors.New(
	"its ClientHello is large, and the memory for large ClientHellos is used up")}

// resize changes the count of one ClientHello from *counted to n bytes. It
// returns false if the limit is reached.
func (m *helloMemory) resize(counted *int64, n int64) bool {
	more := n - *counted
	if more == 0 {
		return true
	}
	if m.held.Add(more) > m.max.Load() && more > 0 {
		m.held.Add(-more)
		return false
	}
	*counted = n
	return true
}
