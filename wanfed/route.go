// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/tlsutil"
)

// target is where a packet or a stream goes, and the key of links and sessions: by datacenter and node, never by IP
// address alone, since datacenters' subnets overlap.
type target struct {
	dc   string
	node string // empty: any server of dc
	addr string // host:port; only for a server of the own datacenter whose name is not known yet
}

func (t target) String() string {
	switch {
	case t.node != "":
		return t.node + "." + t.dc
	case t.addr != "":
		return t.addr
	}
	return "*." + t.dc
}

// parseTarget reads the name and address by which memberlist calls a member of pool. The address matters only where the
// pool allows a member without a name. It allocates only for names that are not in lower case.
func parseTarget(pool Pool, name, addr, ownDC string) (target, error) {
	t := target{dc: ownDC}
	name = strings.ToLower(name)
	switch {
	case pool == PoolLAN:
		t.node = name
	case name == "":
		return target{}, fmt.Errorf("address %s has no node name; members of the WAN pool are called <node>.<dc>", addr)
	default:
		node, dc, ok := strings.Cut(name, ".")
		if !ok || tlsutil.CheckLabel(dc) != nil {
			return target{}, fmt.Errorf("%q is no name of the form <node>.<dc>", name)
		}
		t.node, t.dc = node, dc
	}
	switch {
	case t.node == "*":
		t.node = ""
	case name == "":
		t.addr = addr
	case tlsutil.CheckLabel(t.node) != nil:
		return target{}, fmt.Errorf("%q has no node name that is a DNS label", name)
	}
	return t, nil
}

// verdict is what a server does with a frame or a stream that reached it.
type verdict uint8

const (
	deliver   verdict = iota // it is for this server
	relay                    // it is for another server of this datacenter
	misrouted                // it is for another server and may not travel further
	forbidden                // this peer may not send it at all
)

// routeFor decides what self does with what peer sent for the node called name in pool. Whether that node exists is another
// question. A frame travels between datacenters at most once and is relayed at most once: only what came from another
// datacenter is handed on, so it cannot loop.
func routeFor(self, peer tlsutil.Peer, pool Pool, name string) verdict {
	switch {
	case pool == PoolLAN && peer.DC != self.DC:
		return forbidden
	case name == "" || name == self.Node:
		return deliver
	case pool == PoolWAN && peer.DC != self.DC:
		return relay
	}
	return misrouted
}
