// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/tlsutil"
)

// target is the destination of a packet or stream, and the key of links and
// sessions. It names a datacenter and a node rather than an IP address, because
// subnets of datacenters may overlap.
type target struct {
	dc   string
	node string // empty: any server of dc
	addr string // host:port; only for a local server whose name is not known yet
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

// parseTarget parses the name and address that memberlist uses for a member of
// pool. It uses the address only in the LAN pool, for a member without a name.
// parseTarget allocates memory only if name is not in lower case.
func parseTarget(pool Pool, name, addr, localDC string) (target, error) {
	t := target{dc: localDC}
	name = strings.ToLower(name)
	switch {
	case pool == PoolLAN:
		t.node = name
	case name == "":
		return target{}, fmt.Errorf("address %s has no node name; members of the WAN pool are called <node>.<dc>", addr)
	default:
		node, dc, ok := strings.Cut(name, ".")
		if !ok || tlsutil.CheckLabel(dc) != nil {
			return target{}, fmt.Errorf("%q is not a name of the form <node>.<dc>", name)
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

// action is the handling of a received frame or stream.
type action uint8

const (
	deliver   action = iota // pass to the local pool
	relay                   // send to another server of this datacenter
	misrouted               // drop: another server is the target, and relaying could cause a loop
	forbidden               // drop: the peer must not send this frame or stream
)

// actionFor returns the action of self for a frame or stream from peer to the
// node called name in pool. It does not check whether that node exists. Only
// traffic from another datacenter is relayed. A frame therefore crosses between
// datacenters at most once, is relayed at most once, and cannot loop.
func actionFor(self, peer tlsutil.Peer, pool Pool, name string) action {
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
