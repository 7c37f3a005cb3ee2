// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"crypto/x509"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Refresh opens a connection to the server with the name serverName over the
// path of an open connection, completes the handshake, and closes it. Both ends
// then know the present certificate of the other one. Run calls Refresh for open
// connections that this process has dialed: after the local certificate was
// replaced, and from the last sixth of the life of the certificate of the peer
// until the peer has a new one.
type Refresh func(ctx context.Context, serverName string) error

const (
	// refreshTimeout bounds one Refresh.
	refreshTimeout = 10 * time.Second
	// minRefresh is the minimum time between two Refreshes of one peer.
	minRefresh = time.Second
	// maxRefreshes is the number of Refreshes at the same time.
	maxRefreshes = 8
)

// refreshTCP returns the Refresh of a TCP connection that Client uses, or nil.
func (i *Identity) refreshTCP(raw net.Conn, alpn []string) Refresh {
	addr, ok := raw.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	return func(ctx context.Context, serverName string) error {
		again, err := (&net.Dialer{}).DialContext(ctx, addr.Network(), addr.String())
		if err != nil {
			return err
		}
		c, err := i.Client(ctx, again, serverName, alpn...)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// openPeer is a peer with open connections.
type openPeer struct {
	chains int // in openConns.chains
	// newest is the certificate of the peer that was issued last, of all handshakes
	// since the peer has open connections.
	newest []*x509.Certificate
	// refreshAt is the time of the next Refresh, if a connection was dialed.
	refreshAt time.Time
}

// peerOf returns the peer of verified certificates, or the zero Peer.
func (i *Identity) peerOf(certs []*x509.Certificate) Peer {
	p, err := PeerFromCert(certs[0], i.domain)
	if err != nil {
		return Peer{}
	}
	return p
}

// wakeLocked wakes Run if at is before the next check.
func (o *openConns) wakeLocked(at time.Time) {
	if at.Before(o.checkAt) {
		select {
		case o.sooner <- struct{}{}:
		default:
		}
	}
}

// addPeerLocked adds a new chain to its peer.
func (o *openConns) addPeerLocked(chain *openChain) {
	if chain.peer == (Peer{}) {
		return
	}
	p := o.peers[chain.peer]
	if p == nil {
		if o.peers == nil {
			o.peers = map[Peer]*openPeer{}
		}
		p = &openPeer{}
		o.peers[chain.peer] = p
	}
	p.chains++
	if leaf := chain.certs[0]; p.newest == nil || newer(leaf, p.newest[0]) {
		p.newest, p.refreshAt = chain.certs, leaf.NotAfter.Add(-lifeOf(leaf)/6)
		o.wakeLocked(p.refreshAt)
	}
}

// newer reports whether a was issued after b. The certificates of a new CA may
// expire before those of the old one.
func newer(a, b *x509.Certificate) bool {
	return a.NotBefore.After(b.NotBefore) || a.NotBefore.Equal(b.NotBefore) && a.NotAfter.After(b.NotAfter)
}

func (o *openConns) removePeerLocked(chain *openChain) {
	if p := o.peers[chain.peer]; p != nil {
		if p.chains--; p.chains == 0 {
			delete(o.peers, chain.peer)
		}
	}
}

// refreshAll makes a Refresh of each peer due.
func (o *openConns) refreshAll(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.peers {
		p.refreshAt = now
	}
	o.wakeLocked(now)
}

// retryRefresh makes a Refresh of a peer due soon, because one has failed.
func (o *openConns) retryRefresh(peer Peer, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.peers[peer]; p != nil && p.refreshAt.After(now.Add(minRefresh)) {
		p.refreshAt = now.Add(minRefresh)
		o.wakeLocked(p.refreshAt)
	}
}

// newestOf returns the newest certificate of a peer, or nil.
func (o *openConns) newestOf(peer Peer) []*x509.Certificate {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.peers[peer]; p != nil {
		return p.newest
	}
	return nil
}

// Certificates returns the certificates that this process knows to be in use: its
// own, and the newest one of each peer with an open connection.
// Each is followed by its intermediates.
func (i *Identity) Certificates() [][]*x509.Certificate {
	all := [][]*x509.Certificate{i.current.Load().chain}
	i.conns.mu.Lock()
	defer i.conns.mu.Unlock()
	for _, p := range i.conns.peers {
		all = append(all, p.newest)
	}
	return all
}

// retireGrace is the time for which a peer can show a certificate of a CA that
// stays, after a Trust has removed the CA of its connection.
const retireGrace = time.Minute

// verifyOpen verifies the peer of an open connection. A certificate that has
// expired is verified at the end of its life, and one of a retired CA with that
// CA, if the peer has shown a newer one, in another handshake, that is valid now.
// After a CA was retired, the peer has time to show it. verifyOpen returns the
// time at which the verification must be repeated.
func (i *Identity) verifyOpen(
	certs []*x509.Certificate, use x509.ExtKeyUsage, now time.Time,
) (end time.Time, err error) {
	end, err = certs[0].NotAfter, i.verifyPeer(certs, use, now)
	if err == nil {
		return end, nil
	}
	m, at := i.current.Load(), now
	if now.After(end) {
		at = end
	}
	newest := i.conns.newestOf(i.peerOf(certs))
	switch graceEnd := m.retiredAt.Add(retireGrace); {
	case newest != nil && newest[0].NotAfter.After(now) && i.verifyPeer(newest, use, now) == nil:
		end = newest[0].NotAfter
	case at.Equal(now) && now.Before(graceEnd):
		end = graceEnd
	default:
		return end, err
	}
	chains, old := verifyFor(certs, poolOf(slices.Concat(m.roots, m.retired)), use, at)
	if old != nil {
		return end, err
	}
	return end, i.revoked.Load().check(chains)
}

// dueRefresh is a Refresh that is due.
type dueRefresh struct {
	peer Peer
	call Refresh
}

// dueRefreshes returns the Refreshes that are due, and the time of the next one,
// or the zero time.
func (o *openConns) dueRefreshes(now time.Time) (due []dueRefresh, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, chain := range o.chains {
		p := o.peers[chain.peer]
		call := chain.refresh()
		if p == nil || key.use != x509.ExtKeyUsageServerAuth || call == nil || now.After(p.newest[0].NotAfter) {
			continue
		}
		if !p.refreshAt.After(now) {
			due = append(due, dueRefresh{chain.peer, call})
			p.refreshAt = now.Add(max(minRefresh, p.newest[0].NotAfter.Sub(now)/2))
			if begin := p.newest[0].NotAfter.Add(-lifeOf(p.newest[0]) / 6); begin.After(p.refreshAt) {
				p.refreshAt = begin
			}
		}
		if next.IsZero() || p.refreshAt.Before(next) {
			next = p.refreshAt
		}
	}
	return due, next
}

// refresh returns the Refresh of a connection of the chain, or nil.
func (c *openChain) refresh() Refresh {
	for g := range c.conns {
		if g.refresh != nil {
			return g.refresh
		}
	}
	return nil
}

// refreshPeers starts the Refreshes that are due. It returns the time of the
// next one, or the zero time.
func (w *watcher) refreshPeers(ctx context.Context, now time.Time) (next time.Time) {
	due, next := w.i.conns.dueRefreshes(now)
	if len(due) == 0 {
		return next
	}
	w.refreshes.Go(func() {
		var group errgroup.Group
		group.SetLimit(maxRefreshes)
		for _, d := range due {
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
				defer cancel()
				if err := d.call(ctx, name(d.peer.Role, d.peer.Node, d.peer.DC, w.i.domain)); err != nil {
					w.i.logger.Debug("handshake failed: a connection may end with a certificate", "peer", d.peer, "err", err)
					w.i.conns.retryRefresh(d.peer, time.Now())
				}
				return nil
			})
		}
		_ = group.Wait() // the functions return nil
	})
	return next
}
