// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net"
	"sync/atomic"
)

// Listener is what the listeners of one kind have in common: a table and counters. A gateway has a LAN side, for the servers of
// its own datacenter, and a WAN side, for other datacenters. All methods may be called by anyone at any time.
type Listener struct {
	name    string
	sockets []net.Listener
	table   atomic.Pointer[Table]

	accepted, active, up, down, dialFailures atomic.Uint64
	refused                                  [reasons]atomic.Uint64
	hellos, dials                            [routeClasses]histogram
	gate                                     gate
}

// NewListener returns a listener on these sockets, which [Proxy.Run] serves and
// closes. Its table is empty: it refuses every name until SetTable.
func NewListener(name string, sockets ...net.Listener) *Listener {
	s := &Listener{name: name, sockets: sockets}
	s.table.Store(&Table{})
	return s
}

// Name is the name given to NewSide, as logs and metrics show it.
func (s *Listener) Name() string { return s.name }

// Addrs returns the addresses of the listener's sockets, in the order in which
// NewListener received them.
func (s *Listener) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(s.sockets))
	for i, socket := range s.sockets {
		addrs[i] = socket.Addr()
	}
	return addrs
}

// Table returns the current table.
func (s *Listener) Table() *Table { return s.table.Load() }

// SetTable routes connections by t from now on. Open connections stay as they are.
func (s *Listener) SetTable(t *Table) { s.table.Store(t) }

// Stats are the counters of one side since its start.
type Stats struct {
	// Accepted counts connections that came, Refused those of them that were not forwarded.
	Accepted uint64
	Refused  map[Reason]uint64
	// Active is the number of client connections that are open now.
	Active uint64
	// BytesUp went from clients to upstreams, BytesDown the other way. The bytes of a slow connection are counted when it
	// has moved 32 KiB or ends.
	BytesUp, BytesDown uint64
	// DialFailures counts attempts to reach an upstream address that failed, also when another address then worked.
	DialFailures uint64
	// Sources is from how many addresses connections are open; see Policy.
	Sources int
	// Hellos are the times from the accept to the whole ClientHello, Dials those from there to an upstream, of connections
	// that came so far.
	Hellos, Dials map[RouteClass]Histogram
}

// Stats reads the counters. They are not read at one instant.
func (s *Listener) Stats() Stats {
	st := Stats{
		Accepted: s.accepted.Load(), Active: s.active.Load(), Refused: make(map[Reason]uint64, reasons),
		BytesUp: s.up.Load(), BytesDown: s.down.Load(), DialFailures: s.dialFailures.Load(),
		Sources: s.gate.sources(), Hellos: readAll(&s.hellos), Dials: readAll(&s.dials),
	}
	for _, r := range Reasons {
		st.Refused[r] = s.refused[r].Load()
	}
	return st
}
