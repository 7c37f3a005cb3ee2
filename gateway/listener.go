// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Listener is a set of sockets with one route table, one policy and one set of
// counters. A gateway has a LAN listener, for the servers of its own
// datacenter, and a WAN listener, for other datacenters. All methods are safe
// for concurrent use.
type Listener struct {
	name    string
	sockets []net.Listener
	table   atomic.Pointer[Table]

	accepted, active, up, down, dialFailures atomic.Uint64
	refused                                  [reasons]atomic.Uint64
	hellos, dials                            [routeClasses]histogram

	rules   atomic.Pointer[rules] // nil: all clients are accepted
	mu      sync.Mutex
	sources map[netip.Addr]int // open connections by source
	rates   sourceRates        // new connections by source
}

// NewListener returns a listener on sockets. [Proxy.Run] serves and closes the
// sockets. The name appears in logs and metrics. The listener has no routes: it
// refuses every connection until SetTable is called.
func NewListener(name string, sockets ...net.Listener) *Listener {
	l := &Listener{name: name, sockets: sockets, sources: map[netip.Addr]int{}}
	l.table.Store(&Table{})
	return l
}

// Name returns the name of the listener.
func (l *Listener) Name() string { return l.name }

// Addrs returns the addresses of the sockets, in the order of NewListener.
func (l *Listener) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(l.sockets))
	for i, socket := range l.sockets {
		addrs[i] = socket.Addr()
	}
	return addrs
}

// Table returns the current route table.
func (l *Listener) Table() *Table { return l.table.Load() }

// SetTable replaces the route table. It takes effect with the next connection.
func (l *Listener) SetTable(t *Table) { l.table.Store(t) }

// Stats are the counters of one listener since its start.
type Stats struct {
	// Accepted counts accepted connections. Refused counts connections that
	// were not forwarded, by reason.
	Accepted uint64
	Refused  map[Reason]uint64
	Active   uint64 // open client connections
	// BytesUp counts bytes from clients to upstreams, BytesDown bytes from
	// upstreams to clients. The portable engine counts after 32 KiB, or at the
	// end of the connection.
	BytesUp, BytesDown uint64
	// DialFailures counts failed attempts to reach an upstream address, even if
	// another address worked afterwards.
	DialFailures uint64
	// Sources is the number of client sources with open connections. Policy
	// defines a source.
	Sources int
	// Hellos are the times from the accept to the complete ClientHello. Dials
	// are the times from the complete ClientHello to the upstream connection.
	Hellos, Dials map[RouteClass]Histogram
}

// Stats returns the counters. It reads them one after the other while
// connections continue, so they may differ by a few connections.
func (l *Listener) Stats() Stats {
	st := Stats{
		Accepted: l.accepted.Load(), Active: l.active.Load(), Refused: make(map[Reason]uint64, reasons),
		BytesUp: l.up.Load(), BytesDown: l.down.Load(), DialFailures: l.dialFailures.Load(),
		Hellos: readAll(&l.hellos), Dials: readAll(&l.dials),
	}
	l.mu.Lock()
	st.Sources = len(l.sources)
	l.mu.Unlock()
	for r := range reasons {
		st.Refused[r] = l.refused[r].Load()
	}
	return st
}

// RouteClass groups connections in statistics. The number of classes does not
// depend on the number of routed names.
type RouteClass uint8

// The classes of routes.
const (
	RouteExact    RouteClass = iota // Route.Match is one name
	RouteWildcard                   // Route.Match is "*.suffix"
	RouteNone                       // the client sent an unknown name, or none
	routeClasses                    // the number of classes
)

// String returns the class as metrics show it.
func (c RouteClass) String() string { return [routeClasses]string{"exact", "wildcard", "none"}[c] }

// class returns the class of t, which may be nil.
func (t *target) class() RouteClass {
	switch {
	case t == nil:
		return RouteNone
	case strings.HasPrefix(t.Match, "*."):
		return RouteWildcard
	}
	return RouteExact
}

// HistogramBounds are the upper bounds of the buckets of a Histogram. Longer
// durations have no bucket.
var HistogramBounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// Histogram counts durations by size.
type Histogram struct {
	Count uint64
	Sum   time.Duration
	// Buckets are cumulative: Buckets[i] counts durations up to
	// HistogramBounds[i].
	Buckets [len(HistogramBounds)]uint64
}

// histogram is a Histogram for concurrent writers. Its counts are not
// cumulative. The last count is that of durations above the largest bound.
type histogram struct {
	sum    atomic.Int64 // nanoseconds
	counts [len(HistogramBounds) + 1]atomic.Uint64
}

func (h *histogram) observe(d time.Duration) {
	i, _ := slices.BinarySearch(HistogramBounds[:], d)
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) read() Histogram {
	out := Histogram{Sum: time.Duration(h.sum.Load())}
	for i := range h.counts {
		out.Count += h.counts[i].Load()
		if i < len(out.Buckets) {
			out.Buckets[i] = out.Count
		}
	}
	return out
}

func readAll(histograms *[routeClasses]histogram) map[RouteClass]Histogram {
	out := make(map[RouteClass]Histogram, routeClasses)
	for class := range routeClasses {
		out[class] = histograms[class].read()
	}
	return out
}
