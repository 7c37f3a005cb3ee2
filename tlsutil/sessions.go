// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"container/list"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"sync"
	"time"
)

// sessionLife is how long after a handshake in which both sides proved that they have their keys its session can be
// resumed. A session that goes back to another by resuming ends with it.
const sessionLife = time.Hour

// maxSessions bounds the sessions that are kept of each side, about 2 KiB each.
const maxSessions = 2048

// servedSession is a session that a peer may come back to. The ticket that the peer has is a random number: nothing can be
// read from it, and nobody but the process that has the session can use it.
type servedSession struct {
	state  []byte
	sni    string
	proved time.Time // when the peer last proved that it has its key
	until  time.Time
}

// keptSession is a session of a peer that can be called again.
type keptSession struct {
	state  *tls.ClientSessionState
	proved time.Time
}

// resumable makes cfg, for one handshake that asks for sni, take up and give out sessions of m.
func (m *material) resumable(cfg *tls.Config, sni string) {
	var proved time.Time // of the session that is resumed: the last that UnwrapSession gave, crypto/tls goes no further
	cfg.SessionTicketsDisabled = false
	cfg.UnwrapSession = func(ticket []byte, _ tls.ConnectionState) (*tls.SessionState, error) {
		s, ok := m.served.take(string(ticket))
		if !ok || s.sni != sni || !time.Now().Before(s.until) {
			return nil, nil // a full handshake follows
		}
		state, err := tls.ParseSessionState(s.state)
		if err != nil {
			return nil, nil
		}
		proved = s.proved
		return state, nil
	}
	cfg.WrapSession = func(cs tls.ConnectionState, state *tls.SessionState) ([]byte, error) {
		s := servedSession{sni: sni, proved: time.Now()}
		if cs.DidResume {
			s.proved = proved
		}
		s.until = s.proved.Add(sessionLife)
		if end := firstEnd(cs.VerifiedChains).NotAfter; end.Before(s.until) {
			s.until = end
		}
		var err error
		if s.state, err = state.Bytes(); err != nil {
			return nil, err
		}
		ticket := make([]byte, 32)
		rand.Read(ticket)
		leaf := sha256.Sum256(cs.PeerCertificates[0].Raw)
		m.served.put(string(leaf[:])+sni, string(ticket), s)
		return ticket, nil
	}
}

// dialSessions is the tls.ClientSessionCache of one dial.
type dialSessions struct {
	kept *shelf[keptSession]

	mu     sync.Mutex
	proved time.Time // when the peer proved that it has its key: zero before the handshake
}

// Get takes the session: each ticket is used once (RFC 8446 appendix C.4).
func (d *dialSessions) Get(name string) (*tls.ClientSessionState, bool) {
	s, ok := d.kept.take(name)
	if !ok || time.Since(s.proved) >= sessionLife {
		return nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proved = s.proved
	return s.state, true
}

func (d *dialSessions) Put(name string, state *tls.ClientSessionState) {
	d.mu.Lock()
	proved := d.proved
	d.mu.Unlock()
	if state != nil && !proved.IsZero() { // nil: forget it, which Get did
		d.kept.put(name, name, keptSession{state, proved})
	}
}

// verified notes that the peer of a full handshake proved itself.
func (d *dialSessions) verified(cs tls.ConnectionState) {
	if cs.DidResume {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proved = time.Now()
}

// shelf holds things that can be taken once, by their id. Of each owner it has the newest, of all owners at most
// maxSessions: the oldest goes first.
type shelf[T any] struct {
	mu     sync.Mutex
	order  list.List                // of *shelved[T], oldest first
	owners map[string]*list.Element // nil when empty
	ids    map[string]*list.Element
}

type shelved[T any] struct {
	owner, id string
	thing     T
}

func (s *shelf[T]) put(owner, id string, thing T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners == nil {
		s.owners, s.ids = map[string]*list.Element{}, map[string]*list.Element{}
	}
	if old := s.owners[owner]; old != nil {
		s.removeLocked(old)
	}
	if s.order.Len() >= maxSessions {
		s.removeLocked(s.order.Front())
	}
	e := s.order.PushBack(&shelved[T]{owner, id, thing})
	s.owners[owner], s.ids[id] = e, e
}

func (s *shelf[T]) take(id string) (thing T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.ids[id]
	if e == nil {
		return thing, false
	}
	thing = e.Value.(*shelved[T]).thing
	s.removeLocked(e)
	return thing, true
}

func (s *shelf[T]) removeLocked(e *list.Element) {
	v := s.order.Remove(e).(*shelved[T])
	delete(s.owners, v.owner)
	delete(s.ids, v.id)
}
