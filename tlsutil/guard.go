// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Guard is a connection below TLS that ends with the right of its peer to exist.
// Accepted and Dialed return it. TLS must use it as its connection, and Admit
// must be called after the handshake. From then on, the Identity verifies the
// certificate of the peer again at the times that Run states, and closes the
// connection if the verification fails. Guard costs nothing per byte.
type Guard struct {
	net.Conn
	id         *Identity
	use        x509.ExtKeyUsage // required of the certificate of the peer
	generation uint64           // of the trust before the handshake
	reason     atomic.Pointer[error]
	refresh    Refresh // nil: accepted, or the peer cannot be dialed again

	key    chainKey // guarded by openConns.mu, like closed
	closed bool
}

// Accepted returns a Guard for a connection that a listener accepted.
func (i *Identity) Accepted(raw net.Conn) *Guard { return i.guard(raw, x509.ExtKeyUsageClientAuth) }

// Dialed returns a Guard for a connection that this process opened. refresh
// dials the peer again. It may be nil: see Refresh.
func (i *Identity) Dialed(raw net.Conn, refresh Refresh) *Guard {
	g := i.guard(raw, x509.ExtKeyUsageServerAuth)
	g.refresh = refresh
	return g
}

func (i *Identity) guard(raw net.Conn, use x509.ExtKeyUsage) *Guard {
	return &Guard{Conn: raw, id: i, use: use, generation: i.generation.Load()}
}

// Client performs a TLS handshake as the client on raw, with ClientConfig, and
// returns a connection that a Guard watches. It closes raw after an error.
func (i *Identity) Client(ctx context.Context, raw net.Conn, serverName string, alpn ...string) (*tls.Conn, error) {
	g := i.Dialed(raw, i.refreshTCP(raw, alpn))
	c := tls.Client(g, i.ClientConfig(serverName, alpn...))
	err := c.HandshakeContext(ctx)
	if err == nil {
		err = g.Admit(c)
	}
	if err != nil {
		_ = g.Close()
		return nil, err
	}
	return c, nil
}

// Admit adds the connection to those that the Identity watches. c is the TLS
// connection over g, after its handshake. If the certificate of the peer is not
// valid any more, Admit closes the connection and returns the reason.
func (g *Guard) Admit(c *tls.Conn) error {
	certs := c.ConnectionState().PeerCertificates
	g.id.conns.add(g, certs, g.id.peerOf(certs))
	if g.generation == g.id.generation.Load() {
		return nil // the handshake verified the certificate with the present trust
	}
	err := g.id.verifyPeer(certs, g.use, time.Now())
	if err != nil {
		g.end(err)
	}
	return err
}

// end closes the connection because of err.
func (g *Guard) end(err error) {
	err = fmt.Errorf("connection closed: %w", err)
	g.reason.Store(&err)
	_ = g.Close()
}

// explain replaces the error of a connection that the Identity closed.
func (g *Guard) explain(err error) error {
	if err != nil {
		if reason := g.reason.Load(); reason != nil {
			return *reason
		}
	}
	return err
}

// Read implements net.Conn.
func (g *Guard) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	return n, g.explain(err)
}

// Write implements net.Conn.
func (g *Guard) Write(b []byte) (int, error) {
	n, err := g.Conn.Write(b)
	return n, g.explain(err)
}

// Close implements net.Conn.
func (g *Guard) Close() error {
	g.id.conns.remove(g)
	return g.Conn.Close()
}

// SetLinger calls SetLinger of a TCP connection. Other connections ignore it.
func (g *Guard) SetLinger(sec int) error {
	if c, ok := g.Conn.(interface{ SetLinger(sec int) error }); ok {
		return c.SetLinger(sec)
	}
	return nil
}

// openConns are the open connections of an Identity by the certificates of
// their peers. A peer with many connections is verified once.
type openConns struct {
	mu     sync.Mutex
	chains map[chainKey]*openChain
	peers  map[Peer]*openPeer
	ended  uint64 // connections that were closed because a verification failed
	// checkAt is the time of the next check by Run. sooner (size 1) wakes Run
	// because a certificate expires, or a handshake is due, before that.
	checkAt time.Time
	sooner  chan struct{}
}

// chainKey identifies certificates and the use for which they are verified.
type chainKey struct {
	sum [sha256.Size]byte
	use x509.ExtKeyUsage
}

// openChain has the connections of one peer with the same certificates.
type openChain struct {
	certs []*x509.Certificate // the first is that of the peer
	peer  Peer                // zero: the certificate does not identify a peer
	conns map[*Guard]struct{}
}

func (o *openConns) add(g *Guard, certs []*x509.Certificate, peer Peer) {
	h := sha256.New()
	for _, c := range certs {
		h.Write(c.Raw)
	}
	key := chainKey{[sha256.Size]byte(h.Sum(nil)), g.use}
	o.mu.Lock()
	defer o.mu.Unlock()
	if g.closed {
		return
	}
	g.key = key
	chain := o.chains[key]
	if chain == nil {
		if o.chains == nil {
			o.chains = map[chainKey]*openChain{}
		}
		chain = &openChain{certs: certs, peer: peer, conns: map[*Guard]struct{}{}}
		o.chains[key] = chain
		o.wakeLocked(certs[0].NotAfter)
		o.addPeerLocked(chain)
	}
	chain.conns[g] = struct{}{}
}

// schedule sets the time of the next check.
func (o *openConns) schedule(at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checkAt = at
}

func (o *openConns) remove(g *Guard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.closed = true
	if chain := o.chains[g.key]; chain != nil {
		delete(chain.conns, g)
		if len(chain.conns) == 0 {
			delete(o.chains, g.key)
			o.removePeerLocked(chain)
		}
	}
}

// verifyPeer verifies the certificates of a peer as a handshake does: its chain,
// the time, and whether it is revoked.
func (i *Identity) verifyPeer(certs []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) error {
	chains, err := verifyFor(certs, i.current.Load().cas, use, now)
	if err != nil {
		return err
	}
	return i.revoked.Load().check(chains)
}

// closeInvalid verifies the peers of all open connections, and closes the
// connections of those that fail. It returns the earliest expiry of a
// certificate of the others, or the zero time.
func (i *Identity) closeInvalid(now time.Time) (next time.Time) {
	// A verification takes some 100 us, and Close waits for the lock.
	for key, certs := range i.conns.certificates() {
		end, err := i.verifyOpen(certs, key.use, now)
		if err == nil {
			if next.IsZero() || end.Before(next) {
				next = end
			}
			continue
		}
		conns := i.conns.end(key)
		for _, g := range conns {
			g.end(err)
		}
		i.logger.Warn("connections closed: certificate of the peer is no longer valid", "peer", title(certs[0]),
			"serial", certs[0].SerialNumber.Text(16), "count", len(conns), "err", err)
	}
	return next
}

// certificates returns the certificates of the peers of all open connections.
func (o *openConns) certificates() map[chainKey][]*x509.Certificate {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[chainKey][]*x509.Certificate, len(o.chains))
	for key, chain := range o.chains {
		out[key] = chain.certs
	}
	return out
}

// end returns the open connections of a peer, and counts them as ended.
func (o *openConns) end(key chainKey) (conns []*Guard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if chain := o.chains[key]; chain != nil {
		conns = slices.Collect(maps.Keys(chain.conns))
	}
	o.ended += uint64(len(conns))
	return conns
}

// EndedConnections returns the number of connections that were closed because
// the certificate of the peer was no longer valid.
func (i *Identity) EndedConnections() uint64 {
	i.conns.mu.Lock()
	defer i.conns.mu.Unlock()
	return i.conns.ended
}
