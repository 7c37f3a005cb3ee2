// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// PathStatus is what is known about reaching one datacenter through one hop: from dials, probes and echoes.
type PathStatus struct {
	DC    string
	Addr  string // of the hop, as in the address book
	Via   string // what the hop is; "server" for a server of the own datacenter
	Local bool   // a gateway of the own datacenter

	Health      PathHealth
	LastSuccess time.Time     // zero: never
	LastError   string        // of the last failure, even if it works again
	LastErrorAt time.Time     // zero: never failed
	Probed      bool          // the last failure was a probe's
	RTT         time.Duration // of a dial's last TLS handshake: one network round trip, or two over an own gateway, and the peer's work
	SmoothedRTT time.Duration // round trip to a server there, from echoes, and from dials as half their duration; 0: not measured
	Remote      string        // ip:port that the last success dialed: Addr itself, or an address of its name; "" if none
	Attempts    uint64        // dials
	Failures    uint64        // of those; not those that were cancelled because another hop was faster

	Probes        uint64
	ProbeFailures uint64
}

// PathHealth sums a path up.
type PathHealth string

const (
	PathUntested PathHealth = "untested" // neither worked nor failed yet
	PathOK       PathHealth = "ok"       // worked when it was last used or probed
	PathFailing  PathHealth = "failing"  // failed since
	PathSlow     PathHealth = "slow"     // had not worked by when another hop, tried later, had
)

type pathKey struct{ dc, addr string }

// paths remembers the evidence about each (datacenter, hop) of the book, and nothing about others.
type paths struct {
	book  *SharedAddressBook
	ownDC string
	mode  Mode
	wake  chan struct{} // size 1: for the Prober, a path failed

	mu     sync.Mutex
	known  map[pathKey]*pathState
	seen   *AddressBook             // that known was last reduced to
	turned map[string]chan struct{} // by datacenter; closed and removed when a hop to it has become good
	hold   time.Duration            // how long a failure counts: see evidence.suspect
	health chan struct{}            // closed and replaced when a hop's health changes
}

type pathState struct {
	PathStatus
	evidence
	probed time.Time // end of the last probe
	spread float64   // 0 to 1: of the time to the next one
}

func newPaths(book *SharedAddressBook, ownDC string, mode Mode) *paths {
	return &paths{
		book: book, ownDC: ownDC, mode: mode, wake: make(chan struct{}, 1),
		known: map[pathKey]*pathState{}, turned: map[string]chan struct{}{}, hold: penalty, health: make(chan struct{}),
	}
}

// stateLocked returns the entry of (dc, hop), nil when the book has no such hop.
func (p *paths) stateLocked(dc string, hop Path) *pathState {
	p.reduceLocked()
	k := pathKey{dc, hop.Addr}
	s := p.known[k]
	if s == nil && inBook(p.seen, dc, hop.Addr, p.ownDC) {
		s = &pathState{PathStatus: PathStatus{DC: dc, Addr: hop.Addr}}
		p.known[k] = s
	}
	if s != nil {
		s.Via, s.Local = hop.Via, hop.Local
	}
	return s
}

// reduceLocked forgets what has left the book.
func (p *paths) reduceLocked() {
	routes := p.book.Load()
	if routes == p.seen {
		return
	}
	for k := range p.known {
		if !inBook(routes, k.dc, k.addr, p.ownDC) {
			delete(p.known, k)
		}
	}
	p.seen = routes
}

func inBook(r *AddressBook, dc, addr, ownDC string) bool {
	if dc == ownDC {
		for _, a := range r.Servers {
			if a == addr {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(r.Paths[dc], func(h Path) bool { return h.Addr == addr })
}

// update changes the entry of (dc, hop), if the book has it. It wakes who waits for what changed.
func (p *paths) update(dc string, hop Path, change func(*pathState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stateLocked(dc, hop)
	if s == nil {
		return
	}
	before := s.health()
	change(s)
	after := s.health()
	if after == before {
		return
	}
	close(p.health)
	p.health = make(chan struct{})
	if after == PathOK {
		if c := p.turned[dc]; c != nil {
			close(c)
			delete(p.turned, dc)
		}
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// worked notes a success of (dc, hop). addr is what was dialed, "" for an echo on an open connection; rtt is the round trip
// that it measured.
func (p *paths) worked(dc string, hop Path, addr string, rtt time.Duration, change func(*pathState)) {
	now := time.Now()
	p.update(dc, hop, func(s *pathState) {
		s.evidence.worked(now, rtt)
		s.LastSuccess = now
		if addr != "" {
			s.Remote = addr
		}
		if change != nil {
			change(s)
		}
	})
}

// failed notes a failure of (dc, hop).
func (p *paths) failed(dc string, hop Path, err error, change func(*pathState)) {
	now := time.Now()
	p.update(dc, hop, func(s *pathState) {
		s.evidence.failed(now)
		s.LastErrorAt, s.LastError, s.Probed = now, oneLine(err), false
		change(s)
	})
}

// turnedAt returns a channel that is closed when a hop to dc works that did not, or was not known to.
func (p *paths) turnedAt(dc string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.turned[dc]
	if c == nil {
		c = make(chan struct{})
		p.turned[dc] = c
	}
	return c
}

// setHold sets how long a failure counts.
func (p *paths) setHold(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = d
}

// scorerLocked compares hops to dc by what is known now.
func (p *paths) scorerLocked(dc string, now time.Time) scorer {
	return scorer{mode: p.mode, hold: p.hold, now: now, of: func(h Path) evidence {
		if s := p.known[pathKey{dc, h.Addr}]; s != nil {
			return s.evidence
		}
		return evidence{}
	}}
}

// order is scorer.order with what is known now.
func (p *paths) order(dc string, hops []Path, now time.Time) []Path {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.scorerLocked(dc, now).order(hops)
}

// better is scorer.better with what is known now.
func (p *paths) better(dc string, cur Path, hops []Path, now time.Time) []Path {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.scorerLocked(dc, now).better(cur, hops)
}

// lastAddr is the address of a hop that worked last, "" if none.
func (p *paths) lastAddr(dc, hopAddr string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.known[pathKey{dc, hopAddr}]; s != nil {
		return s.Remote
	}
	return ""
}

// unreachable lists the other datacenters that the book has hops to of which some were tried and none works.
func (p *paths) unreachable() (dcs []string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reduceLocked()
	works := map[string]bool{}
	for k, s := range p.known {
		if h := s.health(); k.dc != p.ownDC && h != PathUntested {
			works[k.dc] = works[k.dc] || h == PathOK
		}
	}
	for dc, ok := range works {
		if !ok {
			dcs = append(dcs, dc)
		}
	}
	return dcs, p.health
}

// measured is the smoothed round trip to a server of dc over a hop; 0: fewer than minSamples were measured.
func (p *paths) measured(dc, hopAddr string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.known[pathKey{dc, hopAddr}]; s != nil && s.samples >= minSamples {
		return s.rtt
	}
	return 0
}

func (s *pathState) health() PathHealth {
	switch {
	case s.bad.After(s.good) && s.bad.After(s.LastErrorAt):
		return PathSlow
	case s.bad.After(s.good):
		return PathFailing
	case s.good.IsZero():
		return PathUntested
	}
	return PathOK
}

func (s *pathState) status() PathStatus {
	st := s.PathStatus
	st.Health, st.SmoothedRTT = s.health(), s.rtt
	return st
}

// status lists what was tried, sorted by datacenter and address.
func (p *paths) status() []PathStatus {
	p.mu.Lock()
	p.reduceLocked()
	out := make([]PathStatus, 0, len(p.known))
	for _, s := range p.known {
		out = append(out, s.status())
	}
	p.mu.Unlock()
	slices.SortFunc(out, func(a, b PathStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Addr, b.Addr))
	})
	return out
}

// ways lists all hops of the book to dc in the order in which a dial would try them now.
func (p *paths) ways(dc string) []PathStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reduceLocked()
	hops := p.scorerLocked(dc, time.Now()).order(p.seen.Paths[dc])
	out := make([]PathStatus, 0, len(hops))
	for _, h := range hops {
		if s := p.known[pathKey{dc, h.Addr}]; s != nil {
			out = append(out, s.status())
		} else {
			out = append(out, PathStatus{DC: dc, Addr: h.Addr, Via: h.Via, Local: h.Local, Health: PathUntested})
		}
	}
	return out
}
