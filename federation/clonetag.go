// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// TagClones is the name of a tag of a server of the primary in the WAN pool. It
// contains the addresses of the processes that are this server, if there are
// several. Only the status of each server uses it. Each process has the tag, so it
// does not matter which of them is the member.
const TagClones = "clones"

// formatClones returns a TagClones with at most room bytes. It omits gateways that
// do not fit, and returns "" if the servers do not fit.
func formatClones(processes []*pb.Claimant, room int) string {
	for gateways := maxClaimGateways; gateways >= 0; gateways-- {
		if tag := clonesText(processes, gateways); len(tag) <= room {
			return tag
		}
	}
	return ""
}

// clonesText returns the processes with a number of gateways each.
func clonesText(processes []*pb.Claimant, gateways int) string {
	texts := make([]string, len(processes))
	for i, p := range processes {
		addrs := append([]string{p.ServerAddress}, p.Gateways[:min(len(p.Gateways), gateways)]...)
		texts[i] = strings.Join(addrs, "@")
	}
	slices.Sort(texts) // the tags of all processes are equal
	return strings.Join(texts, ",")
}

// parseClones returns the processes in a TagClones, or nil if it is not valid.
func parseClones(tag string) (processes []*pb.Claimant) {
	if tag == "" || len(tag) > maxTags {
		return nil
	}
	for text := range strings.SplitSeq(tag, ",") {
		addrs := strings.Split(text, "@")
		if slices.ContainsFunc(addrs, func(a string) bool { return netaddr.CheckHostPort(a) != nil }) {
			return nil
		}
		processes = append(processes, &pb.Claimant{ServerAddress: addrs[0], Gateways: addrs[1:]})
	}
	return processes
}

// TaggedClones returns the processes in TagClones of the alive members of
// datacenter dc, by the WAN name of the server. Members of other datacenters
// cannot report about dc.
func TaggedClones(members []gossip.Member, dc string) map[string][]*pb.Claimant {
	out := map[string][]*pb.Claimant{}
	for _, m := range members {
		if !m.Alive() || DatacenterOf(m.Name) != dc {
			continue
		}
		if processes := parseClones(m.Tags[TagClones]); len(processes) > 0 {
			out[m.Name] = processes
		}
	}
	return out
}
