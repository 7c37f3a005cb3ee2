// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// Path is one way to reach a datacenter: an address to dial.
type Path struct {
	// Addr is host:port. The host is an IP address or a DNS name. A dial
	// resolves a DNS name at most once every 5 s.
	Addr string
	// Via names the kind of address in logs and in the status output, for
	// example "remote gateway" or "configured address".
	Via string
	// Local is true if Addr is a gateway of the local datacenter. See Mode.
	Local bool
	// Rank is the health of the path, as known to the writer of the address
	// book. Among paths that Mode prefers equally, the lowest rank is dialed
	// first.
	Rank int
	// Refuse are the kinds of addresses that are not dialed if a DNS name in Addr
	// resolves to them. Zero: none.
	Refuse netaddr.Class
}

// Ranks of a Path.
const (
	RankHealthy  = 0 // no known problem
	RankCritical = 1 // the gateway is reported as down
	RankCached   = 2 // worked before, but no source lists it now; not probed while another path works
	// RankUnconfirmed is for an address that the datacenter has not confirmed. It
	// is not probed while another path works.
	RankUnconfirmed = 3
)

// AddressBook lists the known paths to every server of the federation. It is an
// immutable value.
type AddressBook struct {
	// Servers maps the node name of each local server to its address
	// (host:port).
	Servers map[string]string
	// Paths lists the paths to each other datacenter, by datacenter name. The
	// order of the list is the last criterion of a dial, after Mode, Rank and
	// the measurements.
	Paths map[string][]Path
}

// SharedAddressBook holds the current AddressBook. One goroutine stores address
// books, and any number of dialers load them. The zero value holds an empty
// address book.
type SharedAddressBook struct {
	current atomic.Pointer[AddressBook]
	changed broadcast.Broadcast
}

var emptyAddressBook = &AddressBook{}

// Load returns the current address book, never nil. The caller must not change
// the address book.
func (b *SharedAddressBook) Load() *AddressBook {
	return cmp.Or(b.current.Load(), emptyAddressBook)
}

// Changed returns a channel that the next Store closes. To miss no change, call
// Changed before Load.
func (b *SharedAddressBook) Changed() <-chan struct{} { return b.changed.Wait() }

// Store publishes book and closes the channels that Changed returned. The
// caller must not change book afterwards.
func (b *SharedAddressBook) Store(book *AddressBook) {
	b.current.Store(book)
	b.changed.Notify()
}

// Mode selects the kind of path to another datacenter that is dialed first. In
// every mode the other kinds are the fallback.
type Mode string

const (
	// ModeLocal, the default, prefers gateways of the local datacenter. All
	// traffic then leaves the datacenter through its own gateways.
	ModeLocal Mode = "local"
	// ModeRemote prefers gateways of the remote datacenter. The traffic then
	// bypasses the local gateways.
	ModeRemote Mode = "remote"
	// ModeAuto prefers the fastest path. Among about equally fast paths, it
	// prefers a local gateway.
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

// class returns the preference of m for p. A dial tries paths of a lower class
// first.
func (m Mode) class(p Path) int {
	if m == ModeAuto || (m == ModeRemote) != p.Local {
		return 0
	}
	return 1
}
