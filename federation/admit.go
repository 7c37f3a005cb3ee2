// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/tlsutil"
)

// Tags of WAN pool members.
const (
	TagRole    = "role"
	TagDC      = "dc"
	TagNodeID  = "id"
	TagPrimary = "primary"
	TagPort    = "port"
	TagBuild   = "build"
)

// RoleValue is what TagRole holds for a server: the word that Consul's servers demand of members.
const RoleValue = "consul"

// WANName is the name of a node in the WAN pool.
func WANName(node, dc string) string { return node + "." + dc }

// DatacenterOf is the datacenter of a member of the WAN pool, by its name.
func DatacenterOf(member string) string {
	_, dc, _ := strings.Cut(member, ".")
	return dc
}

// SplitWANName splits <node>.<dc>.
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

// Admit returns the rule of who may be a member of the WAN pool of a federation whose primary is primary. Who names another one is
// told to dispute, if that is not nil.
func Admit(dc, primary string, dispute func(node, dc, primary string)) func(gossip.Member) error {
	return func(m gossip.Member) error {
		node, theirDC, err := SplitWANName(m.Name)
		if err != nil {
			return err
		}
		if tag := m.Tags[TagDC]; tag != theirDC {
			return fmt.Errorf("WAN member %s says its datacenter is %q", m.Name, tag)
		}
		if theirs := m.Tags[TagPrimary]; theirs != primary {
			if dispute != nil {
				dispute(node, theirDC, theirs)
			}
			return fmt.Errorf("%s says the primary datacenter is %q, %s says %q: set the same primary_datacenter everywhere",
				m.Name, theirs, dc, primary)
		}
		return nil
	}
}
