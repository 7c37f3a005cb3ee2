// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"strings"

	"github.com/hashicorp/serf/serf"
)

// Status of a member. The numbers are serf's and stand in the HTTP API.
type Status int

// The statuses.
const (
	StatusNone Status = iota
	StatusAlive
	StatusLeaving
	StatusLeft
	StatusFailed
)

// String gives the word that tables show.
func (s Status) String() string { return serf.MemberStatus(s).String() }

// Member is one server as the pool knows it.
type Member struct {
	// Name is <node> in a LAN pool and <node>.<dc> in the WAN pool.
	Name string
	// Addr is the advertised ip:port. In the WAN pool it means nothing outside the member's own datacenter.
	Addr   string
	Host   string
	Port   uint16
	Tags   map[string]string // must not be changed
	Status Status

	ProtocolMin, ProtocolMax, ProtocolCur uint8
	DelegateMin, DelegateMax, DelegateCur uint8
}

// Alive says that the member is believed to be up.
func (m Member) Alive() bool { return m.Status == StatusAlive }

func byName(a, b Member) int { return strings.Compare(a.Name, b.Name) }

// fromSerf shares the tags with serf, which replaces the map and never changes it.
//
// Who leaves is alive until an event tells the end. For serf it is leaving from when it hears of that, and tells nobody; and when the farewell of
// a former life comes late to who has just started, serf has a member that is back as leaving, until it hears otherwise, of which it
// tells nobody either.
func fromSerf(m serf.Member) Member {
	status := Status(m.Status)
	if status == StatusLeaving {
		status = StatusAlive
	}
	return Member{
		Name: m.Name, Addr: addrOf(m), Host: m.Addr.String(), Port: m.Port,
		Tags: m.Tags, Status: status,
		ProtocolMin: m.ProtocolMin, ProtocolMax: m.ProtocolMax, ProtocolCur: m.ProtocolCur,
		DelegateMin: m.DelegateMin, DelegateMax: m.DelegateMax, DelegateCur: m.DelegateCur,
	}
}
