// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// passing says whether an accept error comes from a shortage or from the client, so that accepting again makes sense.
func passing(err error) bool {
	for _, e := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// track registers c for closing at the end; false means that the end has come.
func (m *Mux) track(c net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return false
	}
	m.accepted++
	m.conns[c] = struct{}{}
	return true
}

func (m *Mux) forget(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.conns[c]; !ok {
		return
	}
	delete(m.conns, c)
	if m.stopping && len(m.conns) == 0 {
		close(m.drainedc)
	}
}

func (m *Mux) opened(r *muxRoute, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.open += n
	if n > 0 {
		r.total++
	}
}

// stopGrace is how long handlers have, after their ctx ended, to say goodbye on their connections.
const stopGrace = 250 * time.Millisecond

// closeAll refuses new connections and closes those there are: what a handler has not closed itself within stopGrace.
func (m *Mux) closeAll(wg *sync.WaitGroup) {
	m.mu.Lock()
	m.stopping = true
	conns := make([]net.Conn, 0, len(m.conns))
	for c := range m.conns {
		conns = append(conns, c)
	}
	m.mu.Unlock()
	limit := time.Now().Add(stopGrace)
	for _, c := range conns {
		c.SetDeadline(limit) // wakes what reads or writes without a nearer deadline
	}
	if len(conns) == 0 {
		return
	}
	wg.Go(func() {
		t := time.NewTimer(stopGrace)
		defer t.Stop()
		select {
		case <-m.drainedc:
			return
		case <-t.C:
		}
		for _, c := range conns {
			c.Close()
		}
	})
}

// Listener registers a protocol id like Handle and gives its connections, their handshake done, to Accept as *tls.Conn:
// for gRPC and Raft. Who accepts a connection owns it. Accept may be called before Run; it fails with net.ErrClosed when
// Run ended or the listener was closed. Close turns later connections away; the Mux goes on.
func (m *Mux) Listener(alpn string, roles []tlsutil.Role, sameDC bool) net.Listener {
	if alpn == "" {
		panic("wanfed: Mux.Listener needs a protocol id")
	}
	return m.listen([]string{alpn}, roles, sameDC)
}

// HTTPListener is Listener for an HTTP server on a port of its own: for HTTP/2, HTTP/1.1, and clients that offer no protocol,
// which speak HTTP/1.1. With plain, connections that do not begin as TLS does come to Accept too, as they are and with nobody
// checked: for ports that only this machine reaches.
func (m *Mux) HTTPListener(roles []tlsutil.Role, plain bool) net.Listener {
	l := m.listen([]string{"h2", "http/1.1", ""}, roles, false)
	if plain {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.plain = l
	}
	return l
}

// tellHTTP answers a client that speaks HTTP without TLS where HTTPS is served. err is that of its handshake.
func (m *Mux) tellHTTP(err error) {
	var plain tls.RecordHeaderError
	if !errors.As(err, &plain) || plain.Conn == nil || !slices.ContainsFunc(m.routes, func(r *muxRoute) bool { return r.alpn == "http/1.1" }) {
		return
	}
	switch string(plain.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		plain.Conn.SetWriteDeadline(time.Now().Add(closeLimit))
		_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nThis port speaks HTTPS, with client certificates.\n")
	}
}

func (m *Mux) listen(alpn []string, roles []tlsutil.Role, sameDC bool) *muxListener {
	l := &muxListener{m: m, alpn: alpn[0], conns: make(chan net.Conn), donec: make(chan struct{})}
	for _, id := range alpn {
		m.handle(id, roles, sameDC, l.offer)
	}
	m.mu.Lock()
	m.listeners = append(m.listeners, l)
	m.mu.Unlock()
	return l
}

type muxListener struct {
	m     *Mux
	alpn  string        // the first, if there are several
	conns chan net.Conn // *tls.Conn, and what is plain
	once  sync.Once
	donec chan struct{} // closed by Close
}

// offer hands c over to Accept, or closes it.
func (l *muxListener) offer(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
	l.m.forget(c.NetConn()) // before somebody else owns it; offer itself obeys ctx
	select {
	case l.conns <- c:
		return
	case <-l.donec:
		if ctx.Err() != nil {
			break
		}
		l.m.refuse.note(notServed, c.RemoteAddr(), nil, "peer", p, "alpn", c.ConnectionState().NegotiatedProtocol)
	case <-ctx.Done():
	}
	closeConn(c)
}

func (l *muxListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.donec:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

func (l *muxListener) Close() error {
	l.once.Do(func() { close(l.donec) })
	return nil
}

func (m *Mux) closeListeners() {
	m.mu.Lock()
	listeners := m.listeners
	m.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
}

// Addr is the port's address once Run was called, and the protocol id before.
func (l *muxListener) Addr() net.Addr {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.addr != nil {
		return l.m.addr
	}
	return nameAddr(l.alpn)
}

// nameAddr is a net.Addr that is only a name.
type nameAddr string

func (nameAddr) Network() string  { return "tcp" }
func (a nameAddr) String() string { return string(a) }

// MuxStats counts what the port saw since the start.
type MuxStats struct {
	Accepted    uint64            // TCP connections
	Handshaking int               // now
	Refused     map[string]uint64 // by reason
	Protocols   []ProtocolStats   // in order of preference
}

// ProtocolStats counts the connections of one protocol id.
type ProtocolStats struct {
	ALPN  string
	Open  int // now, without those handed over by a Listener
	Total uint64
}

// Stats may be called at any time.
func (m *Mux) Stats() MuxStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MuxStats{Accepted: m.accepted, Handshaking: m.shakes.len(), Refused: m.refuse.counts()}
	for _, r := range m.routes {
		s.Protocols = append(s.Protocols, ProtocolStats{ALPN: r.alpn, Open: r.open, Total: r.total})
	}
	return s
}
