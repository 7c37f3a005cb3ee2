// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// PathStatus is what dials told about reaching one datacenter through one hop.
type PathStatus struct {
	DC   string
	Addr string // of the hop, as in the address book
	Via  string // what the hop is; "server" for a server of the own datacenter

	LastSuccess time.Time     // zero: never
	LastError   string        // of the last failure, even if it works again
	LastErrorAt time.Time     // zero: never failed
	RTT         time.Duration // of the last TLS handshake: one network round trip and the peer's work
	Attempts    uint64
	Failures    uint64 // of those; not those that were cancelled because another hop was faster
}

type pathKey struct{ dc, addr string }

// paths remembers the evidence about each (datacenter, hop) of the book, and nothing about others.
type paths struct {
	book *Book

	mu    sync.Mutex
	known map[pathKey]*pathState
	seen  *Routes // that known was last reduced to
}

type pathState struct {
	PathStatus
	evidence
	addr string // the address of a DNS name that worked last
}

func newPaths(book *Book) *paths { return &paths{book: book, known: map[pathKey]*pathState{}} }

// stateLocked returns the entry of (dc, hop), nil when the book has no such hop.
func (p *paths) stateLocked(dc string, hop Hop, ownDC string) *pathState {
	routes := p.book.Load()
	if routes != p.seen {
		for k := range p.known {
			if !inBook(routes, k.dc, k.addr, ownDC) {
				delete(p.known, k)
			}
		}
		p.seen = routes
	}
	k := pathKey{dc, hop.Addr}
	s := p.known[k]
	if s == nil && inBook(routes, dc, hop.Addr, ownDC) {
		s = &pathState{PathStatus: PathStatus{DC: dc, Addr: hop.Addr}}
		p.known[k] = s
	}
	if s != nil {
		s.Via = hop.Via
	}
	return s
}

func inBook(r *Routes, dc, addr, ownDC string) bool {
	if dc == ownDC {
		for _, a := range r.Servers {
			if a == addr {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(r.Hops[dc], func(h Hop) bool { return h.Addr == addr })
}

// update changes the entry of (dc, hop), if the book has it.
func (p *paths) update(dc string, hop Hop, ownDC string, change func(*pathState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.stateLocked(dc, hop, ownDC); s != nil {
		change(s)
	}
}

// trusted gives those of hops that no recent failure speaks against.
func (p *paths) trusted(dc string, hops []Hop, now time.Time) []Hop {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Hop
	for _, h := range hops {
		if s := p.known[pathKey{dc, h.Addr}]; s == nil || !s.suspect(now) {
			out = append(out, h)
		}
	}
	return out
}

// order is orderHops with what is known now.
func (p *paths) order(dc string, hops []Hop, now time.Time) []Hop {
	p.mu.Lock()
	defer p.mu.Unlock()
	return orderHops(hops, func(h Hop) evidence {
		if s := p.known[pathKey{dc, h.Addr}]; s != nil {
			return s.evidence
		}
		return evidence{}
	}, now)
}

// lastAddr is the address that worked last for a hop that is a DNS name, "" if none.
func (p *paths) lastAddr(dc, hopAddr string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.known[pathKey{dc, hopAddr}]; s != nil {
		return s.addr
	}
	return ""
}

func (p *paths) status(ownDC string) []PathStatus {
	p.mu.Lock()
	routes := p.book.Load()
	var out []PathStatus
	for k, s := range p.known {
		if inBook(routes, k.dc, k.addr, ownDC) {
			out = append(out, s.PathStatus)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(out, func(a, b PathStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Addr, b.Addr))
	})
	return out
}
