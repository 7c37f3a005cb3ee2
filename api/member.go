// SPDX-License-Identifier: MPL-2.0

package api

import (
	"fmt"
	"strings"
)

// Member is one server in a gossip pool.
type Member struct {
	// Name is <node>.<dc> in the WAN pool and <node> in the LAN pool.
	Name string
	// Addr is the member's IP address. It is valid only inside its datacenter.
	Addr   string
	Port   uint16
	Tags   map[string]string
	Status MemberStatus

	// The version ranges of memberlist (Protocol) and serf (Delegate).
	ProtocolMin, ProtocolMax, ProtocolCur uint8
	DelegateMin, DelegateMax, DelegateCur uint8
}

// Tags that every member has.
const (
	TagDatacenter = "dc"
	TagRole       = "role"  // "consul" for servers of Consul and wanfed
	TagBuild      = "build" // <version>:<revision>
)

// MemberStatus is the state of a member. The values are equal to serf's.
type MemberStatus int

// The states.
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

// Datacenter returns the datacenter of the member.
func (m Member) Datacenter() string { return m.Tags[TagDatacenter] }

// Type returns the type of the member: "server" for all members of wanfed.
func (m Member) Type() string {
	if role := m.Tags[TagRole]; role != "" && role != "consul" {
		return role
	}
	return "server"
}

// Build returns the version of the member's program, without its revision.
func (m Member) Build() string {
	build, _, _ := strings.Cut(m.Tags[TagBuild], ":")
	return build
}
