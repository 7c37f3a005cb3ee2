// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/tlsutil"
)

// Tags of members of the WAN pool.
const (
	TagRole    = "role"
	TagDC      = "dc"
	TagNodeID  = "id"
	TagPrimary = "primary"
	TagPort    = "port"
	TagBuild   = "build"
)

// RoleValue is the value of TagRole for a server. Consul's servers require it.
const RoleValue = "consul"

// WANName returns the name of a node in the WAN pool.
func WANName(node, dc string) string { return node + "." + dc }

// DatacenterOf returns the datacenter in the name of a member of the WAN pool.
func DatacenterOf(member string) string {
	_, dc, _ := strings.Cut(member, ".")
	return dc
}

// SplitWANName splits <node>.<dc> and checks both parts.
func SplitWANName(name string) (node, dc string, err error) {
	node, dc, ok := strings.Cut(name, ".")
	if !ok {
		return "", "", fmt.Errorf("WAN member name %q is not <node>.<dc>", name)
	}
	if err := tlsutil.CheckLabel(node); err != nil {
		return "", "", fmt.Errorf("WAN member name %q: node: %w", name, err)
	}
	if err := tlsutil.CheckLabel(dc); err != nil {
		return "", "", fmt.Errorf("WAN member name %q: datacenter: %w", name, err)
	}
	return node, dc, nil
}

// Admit returns a check for members of the WAN pool, for a server of dc that is
// configured with primary. A member that names another primary is rejected and
// passed to onConflict, if that is not nil.
func Admit(dc, primary string, onConflict func(node, dc, primary string)) func(gossip.Member) error {
	return func(m gossip.Member) error {
		node, memberDC, err := SplitWANName(m.Name)
		if err != nil {
			return err
		}
		if tag := m.Tags[TagDC]; tag != memberDC {
			return fmt.Errorf("WAN member %s says its datacenter is %q", m.Name, tag)
		}
		if named := m.Tags[TagPrimary]; named != primary {
			if onConflict != nil {
				onConflict(node, memberDC, named)
			}
			return fmt.Errorf("%s says the primary datacenter is %q, %s says %q: set the same primary_datacenter everywhere",
				m.Name, named, dc, primary)
		}
		return nil
	}
}
