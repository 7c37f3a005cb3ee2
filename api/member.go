// SPDX-License-Identifier: MPL-2.0

package api

import (
	"fmt"
	"strings"
)

// Member is one server in a gossip pool. In the WAN pool Name is <node>.<dc>, in the LAN pool <node>.
type Member struct {
	Name string
	// Addr is the member's IP address inside its own datacenter: not to be dialed from another.
	Addr   string
	Port   uint16
	Tags   map[string]string
	Status MemberStatus

	// Version ranges of the gossip library: memberlist's (Protocol) and serf's (Delegate).
	ProtocolMin uint8
	ProtocolMax uint8
	ProtocolCur uint8
	DelegateMin uint8
	DelegateMax uint8
	DelegateCur uint8
}

// Tags that every member has.
const (
	TagDatacenter = "dc"
	TagRole       = "role"  // "consul" for servers, Consul's and wanfed's
	TagBuild      = "build" // <version>:<revision>
)

// MemberStatus is what gossip knows of a member: serf's numbers.
type MemberStatus int

// The statuses.
const (
	MemberNone    MemberStatus = 0
	MemberAlive   MemberStatus = 1
	MemberLeaving MemberStatus = 2
	MemberLeft    MemberStatus = 3
	MemberFailed  MemberStatus = 4
)

func (s MemberStatus) String() string {
	switch s {
	case MemberNone:
		return "none"
	case MemberAlive:
		return "alive"
	case MemberLeaving:
		return "leaving"
	case MemberLeft:
		return "left"
	case MemberFailed:
		return "failed"
	}
	return fmt.Sprintf("unknown(%d)", int(s))
}

// Datacenter is where the member is.
func (m Member) Datacenter() string { return m.Tags[TagDatacenter] }

// Type is the member's job, "server" for all that wanfed runs.
func (m Member) Type() string {
	if role := m.Tags[TagRole]; role != "" && role != "consul" {
		return role
	}
	return "server"
}

// Build is the version of the member's program, without its revision.
func (m Member) Build() string {
	build, _, _ := strings.Cut(m.Tags[TagBuild], ":")
	return build
}
