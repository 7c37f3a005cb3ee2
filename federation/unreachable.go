// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// TagUnreachable is the name of a tag of leaders in the WAN pool. It contains
// gateways of other datacenters to which the local gateways cannot connect,
// although other gateways of the same datacenter work. The status of every
// datacenter names them. The tag has no other effect.
const TagUnreachable = "unreachable"

// UnreachableGateway is a gateway to which another datacenter cannot connect.
type UnreachableGateway struct {
	From  string // the datacenter that cannot connect
	DC    string // the datacenter of the gateway
	Addr  string // WAN address of the gateway
	Class wanfed.FailureClass
}

// maxTags limits the encoded tags of a member in bytes. It is the limit of serf.
const maxTags = 512

// tagsSize returns an upper bound of the size of encoded tags in bytes.
func tagsSize(tags map[string]string) int {
	size := 4 // version of the encoding, and number of tags
	for k, v := range tags {
		for _, s := range []string{k, v} {
			if size += 1 + len(s); len(s) > 31 { // a longer text has a longer length
				size += 2
			}
		}
	}
	return size
}

// formatUnreachable returns a TagUnreachable with the first gateways that fit
// into room bytes. It omits invalid gateways.
func formatUnreachable(gateways []*pb.UnreachableGateway, room int) string {
	var all []string
	for _, g := range gateways {
		text := strings.Join([]string{g.Datacenter, g.Address, g.Class}, "=")
		if valid := !strings.Contains(text, ",") && len(parseUnreachable("", text)) == 1; !valid {
			continue
		}
		if room -= len(text) + 1; room < -1 { // the first has no comma
			break
		}
		all = append(all, text)
	}
	return strings.Join(all, ",")
}

// parseUnreachable returns the valid gateways in a TagUnreachable of a member of
// datacenter from. It omits gateways of this datacenter.
func parseUnreachable(from, tag string) (out []UnreachableGateway) {
	if tag == "" || len(tag) > maxTags {
		return nil
	}
	for text := range strings.SplitSeq(tag, ",") {
		parts := strings.Split(text, "=")
		if len(parts) != 3 || parts[0] == from || tlsutil.CheckLabel(parts[0]) != nil ||
			netaddr.CheckHostPort(parts[1]) != nil {
			continue
		}
		class := wanfed.FailureClass(parts[2])
		if !slices.Contains(wanfed.FailureClasses, class) {
			class = wanfed.FailureOther
		}
		out = append(out, UnreachableGateway{From: from, DC: parts[0], Addr: parts[1], Class: class})
	}
	return out
}

// UnreachableGateways returns the gateways in TagUnreachable of the alive members
// of the WAN pool, ordered by From.
func UnreachableGateways(members []gossip.Member) (out []UnreachableGateway) {
	for _, m := range members {
		tag := m.Tags[TagUnreachable]
		if _, dc, err := SplitWANName(m.Name); err == nil && tag != "" && m.Alive() {
			out = append(out, parseUnreachable(dc, tag)...)
		}
	}
	slices.SortStableFunc(out, func(a, b UnreachableGateway) int { return strings.Compare(a.From, b.From) })
	return out
}
