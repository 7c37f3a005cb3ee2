// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/wanfed/wanfed/internal/broadcast"
)

// Path is one way to reach a datacenter: an address to dial.
type Path struct {
	// Addr is host:port. The host is an IP address or a DNS name. A name is
	// resolved when it is dialed, at most once every 5 s.
	Addr string
	// Via names the kind of address in logs and in the status output, for
	// example "remote gateway" or "configured address".
	Via string
	// Local is true if Addr is a gateway of the local datacenter. See Mode.
	Local bool
	// Rank is the health of the path according to the author of the address
	// book. Among paths that Mode does not separate, a lower rank is dialed
	// first.
	Rank int
}

// Ranks of a Path.
const (
	RankHealthy  = 0 // no known problem
	RankCritical = 1 // the gateway is reported as down
	RankCached   = 2 // it worked before, but no source lists it now; not probed while another path works
)

// AddressBook lists the known paths to every server of the federation. It is an
// immutable value.
type AddressBook struct {
	// Servers maps the node name of each local server to its address
	// (host:port).
	Servers map[string]string
	// Paths lists the paths to each other datacenter, by datacenter name. The
	// order decides between paths that Mode, Rank and measurements do not
	// separate.
	Paths map[string][]Path
}

// SharedAddressBook holds the current AddressBook. One writer stores; dialers
// load. The zero value holds an empty address book.
type SharedAddressBook struct {
	current atomic.Pointer[AddressBook]
	changed broadcast.Broadcast
}

var emptyAddressBook = &AddressBook{}

// Load returns the current address book, never nil. The caller must not change
// it.
func (b *SharedAddressBook) Load() *AddressBook {
	return cmp.Or(b.current.Load(), emptyAddressBook)
}

// Changed returns a channel that is closed at the next Store. A caller that
// must not miss a change calls Changed before Load.
func (b *SharedAddressBook) Changed() <-chan struct{} { return b.changed.Wait() }

// Store publishes r and closes the channels that Changed returned. The caller
// must not change r afterwards.
func (b *SharedAddressBook) Store(r *AddressBook) {
	b.current.Store(r)
	b.changed.Notify()
}

// Mode selects which kind of path to another datacenter is dialed first. The
// other kinds are the fallback in every mode.
type Mode string

const (
	// ModeLocal prefers gateways of the local datacenter, so that all traffic
	// leaves the datacenter there. It is the default.
	ModeLocal Mode = "local"
	// ModeRemote prefers gateways of the remote datacenter and bypasses the
	// local ones.
	ModeRemote Mode = "remote"
	// ModeAuto prefers the fastest path. Among paths that are about equally
	// fast, a local gateway is preferred.
	ModeAuto Mode = "auto"
)

// Check returns an error if m is not a known mode. The empty mode stands for
// ModeLocal.
func (m Mode) Check() error {
	switch m {
	case "", ModeLocal, ModeRemote, ModeAuto:
		return nil
	}
	return fmt.Errorf("%q is none of %s, %s and %s", string(m), ModeLocal, ModeRemote, ModeAuto)
}

// class returns the preference of m for the kind of path of p. A lower class is
// dialed first.
func (m Mode) class(p Path) int {
	if m == ModeAuto || (m == ModeRemote) != p.Local {
		return 0
	}
	return 1
}
