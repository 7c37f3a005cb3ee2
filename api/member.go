// SPDX-License-Identifier: MPL-2.0

package api

import (
	"fmt"
	"strings"
)

// Member is one server in a gossip pool. The JSON is serf's.
type Member struct {
	// Name is <node>.<dc> in the WAN pool and <node> in the LAN pool.
	Name string
	// Addr is the member's IP address. It is valid only inside its datacenter.
	Addr   string
	Port   uint16
	Tags   map[string]string
	Status MemberStatus

	// The lowest and highest supported versions and the version in use.
	// Protocol is memberlist's protocol, and Delegate is serf's protocol.
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
	MemberNone MemberStatus = iota
	MemberAlive
	MemberLeaving
	MemberLeft
	MemberFailed
)

func (s MemberStatus) String() string {
	if names := []string{"none", "alive", "leaving", "left", "failed"}; s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("unknown(%d)", int(s))
}

// Datacenter returns the datacenter of the member.
func (m Member) Datacenter() string { return m.Tags[TagDatacenter] }

// Type returns the type of the member. All members of wanfed have "server".
func (m Member) Type() string {
	if role := m.Tags[TagRole]; role != "" && role != "consul" {
		return role
	}
	return "server"
}

// Build returns the version of the member's program without the revision.
func (m Member) Build() string {
	build, _, _ := strings.Cut(m.Tags[TagBuild], ":")
	return build
}
