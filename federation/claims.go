// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

const (
	// ClaimInterval is the interval between two claims of a server.
	ClaimInterval = 2 * time.Second
	// claimPending is the time after the last claim of a process during which a
	// claim of another process with the same group id and node name is not
	// decided. It is longer than ClaimInterval with its jitter.
	claimPending = 3 * time.Second
	// claimTimeout is the time after which a claim that is not repeated ends.
	claimTimeout = 15 * time.Second
	// refusalTimeout is the time after which a refused server may take a name
	// whose claim has ended. It is longer than the restart of a machine.
	refusalTimeout = 10 * time.Minute
	// maxClaims limits the stored claims for one server name. A certificate
	// permits claims for one name only.
	maxClaims = 16
)

// Claims decides which of several servers with the same name is part of the
// federation. It runs on the leader of the primary.
//
// Two datacenters can have the same name by mistake: a machine was cloned, or a
// configuration was copied. Their Raft groups have different ids, unless the
// data directory was cloned too. The federation state of the datacenter
// contains the id of the accepted group. Two processes with the same group id
// and node name use the same data directory or a clone of it. Claims accepts
// the process that claimed the name first and still claims it. A process is
// accepted after a restart, because its last process has ended.
//
// Claims are kept in memory. After a change of the leader, a refused clone
// reports to the new leader that it is a clone.
//
// The zero value is ready. Its methods may be called from any goroutine.
type Claims struct {
	mu  sync.Mutex
	all map[string][]*claim // by WAN name, the earliest first
}

// claim is the claim of one process.
type claim struct {
	req                 *pb.ClaimRequest // last request
	firstSeen, lastSeen time.Time
	refused             bool // by the last response
	// clone is set when the process is refused because another process uses a
	// clone of its data directory. It stays set until refusalTimeout.
	clone bool
}

// Claim records a claim and decides it. group is the group id in the federation
// state of the datacenter, or "".
func (c *Claims) Claim(req *pb.ClaimRequest, group string, now time.Time) *pb.ClaimResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep(now)
	if req.Release {
		c.release(req)
		return &pb.ClaimResponse{Accepted: true}
	}
	own := c.record(req, now)
	var rivals []*claim
	for name, claims := range c.all {
		if DatacenterOf(name) == req.Datacenter {
			for _, other := range claims {
				if other.competesWith(own) && now.Sub(other.lastSeen) < claimTimeout {
					rivals = append(rivals, other)
				}
			}
		}
	}
	slices.SortFunc(rivals, func(a, b *claim) int { return a.firstSeen.Compare(b.firstSeen) })
	own.refused = true
	resp := &pb.ClaimResponse{}
	if holder := groupHolder(req, group, rivals); holder != "" {
		resp.Reason = fmt.Sprintf(
			"another datacenter is called %[1]s too: the accepted one has the group id %s%s, and "+
				"this one has %[4]s; stop the wrong one, or, if %[1]s was rebuilt, run: "+
				"wanfed federation replace %[1]s --id %[4]s",
			req.Datacenter, holder, placesOf(rivals, holder), req.GroupId)
	} else if resp.Reason = c.cloneReason(own, now); resp.Reason != "" {
		own.clone = true
	} else if c.pending(own, now) {
		resp.Pending = true
	} else {
		own.refused, own.clone = false, false
	}
	resp.Accepted, resp.Clone = !own.refused, own.clone
	for _, r := range rivals {
		resp.Rivals = append(resp.Rivals, r.claimant())
	}
	return resp
}

// Rivals returns the refused claims of all datacenters, by datacenter.
func (c *Claims) Rivals(now time.Time) map[string][]*pb.Claimant {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]*pb.Claimant{}
	for _, claims := range c.all {
		for _, cl := range claims {
			if cl.refused && now.Sub(cl.lastSeen) < claimTimeout {
				out[cl.req.Datacenter] = append(out[cl.req.Datacenter], cl.claimant())
			}
		}
	}
	for _, rivals := range out {
		slices.SortFunc(rivals, func(a, b *pb.Claimant) int {
			return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Instance, b.Instance))
		})
	}
	return out
}

// Remove removes all claims of a datacenter. The next claims of its servers are
// decided without them.
func (c *Claims) Remove(dc string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.all, func(name string, _ []*claim) bool { return DatacenterOf(name) == dc })
}

// record adds or updates the claim of the process that sent req. If the name
// has too many claims, record removes the least recently repeated claim.
func (c *Claims) record(req *pb.ClaimRequest, now time.Time) *claim {
	name := WANName(req.Node, req.Datacenter)
	if own := c.find(name, req.Instance); own != nil {
		own.req, own.lastSeen = req, now
		return own
	}
	previous := c.find(name, req.PreviousInstance)
	own := &claim{
		req: req, firstSeen: now, lastSeen: now, clone: req.Clone || previous != nil && previous.clone,
	}
	if len(c.all[name]) >= maxClaims {
		c.remove(name, slices.MinFunc(c.all[name], func(a, b *claim) int { return a.lastSeen.Compare(b.lastSeen) }))
	}
	if c.all == nil {
		c.all = map[string][]*claim{}
	}
	c.all[name] = append(c.all[name], own)
	return own
}

// release removes the claim of a process that ends.
func (c *Claims) release(req *pb.ClaimRequest) {
	name := WANName(req.Node, req.Datacenter)
	if own := c.find(name, req.Instance); own != nil && !own.clone {
		c.remove(name, own)
	}
}

func (c *Claims) remove(name string, removed *claim) {
	c.all[name] = slices.DeleteFunc(c.all[name], func(cl *claim) bool { return cl == removed })
}

// pending reports whether an earlier process of the same group and name may
// still repeat its claim.
func (c *Claims) pending(own *claim, now time.Time) bool {
	return slices.ContainsFunc(c.all[WANName(own.req.Node, own.req.Datacenter)], func(other *claim) bool {
		return other != own && other.req.GroupId == own.req.GroupId && !other.clone &&
			other.firstSeen.Before(own.firstSeen) && now.Sub(other.lastSeen) < claimPending
	})
}

// find returns the claim of a process, or nil.
func (c *Claims) find(name, instance string) *claim {
	for _, cl := range c.all[name] {
		if cl.req.Instance == instance {
			return cl
		}
	}
	return nil
}

// sweep removes the claims that were not repeated within refusalTimeout.
func (c *Claims) sweep(now time.Time) {
	for name, claims := range c.all {
		c.all[name] = slices.DeleteFunc(claims, func(cl *claim) bool { return now.Sub(cl.lastSeen) >= refusalTimeout })
		if len(c.all[name]) == 0 {
			delete(c.all, name)
		}
	}
}

// competesWith reports whether cl and own claim the same name: two groups the
// name of a datacenter, or two running processes of one group the name of a
// server. If the last claim of cl is older than the first claim of own, the
// process of cl has ended, and own is its restart.
func (cl *claim) competesWith(own *claim) bool {
	if cl.req.GroupId != own.req.GroupId {
		return true
	}
	return cl.req.Node == own.req.Node && cl != own && cl.lastSeen.After(own.firstSeen)
}

// groupHolder returns the id of the accepted group, or "" if the group of req
// is accepted. group is the group id in the federation state.
func groupHolder(req *pb.ClaimRequest, group string, rivals []*claim) string {
	switch group {
	case req.GroupId:
		return ""
	case "":
		for _, r := range rivals {
			if r.req.GroupId != req.GroupId && !r.refused {
				return r.req.GroupId
			}
		}
	}
	return group
}

// cloneReason returns the reason to refuse own as a clone, or "". The process
// that claimed the name first and repeats its claim is not a clone.
func (c *Claims) cloneReason(own *claim, now time.Time) string {
	timeout := claimTimeout
	if own.clone {
		timeout = refusalTimeout
	}
	name := WANName(own.req.Node, own.req.Datacenter)
	for _, other := range c.all[name] {
		if other.req.GroupId == own.req.GroupId && other.competesWith(own) && !other.clone &&
			now.Sub(other.lastSeen) < timeout && (own.clone || other.firstSeen.Before(own.firstSeen)) {
			return fmt.Sprintf("another server is called %s too, and has the same data directory or a clone of "+
				"it: it is "+
				"at %s; stop this server, and empty its data directory", name, PlaceOf(other.claimant()))
		}
	}
	if own.clone && now.Sub(own.firstSeen) < refusalTimeout {
		return fmt.Sprintf("another server was called %s too, and had the same data directory or a clone of it; "+
			"if this "+
			"server is the right one, it is accepted %v after its first claim", name, refusalTimeout)
	}
	return ""
}

// placesOf returns the locations of the servers of a group, for a message.
func placesOf(rivals []*claim, group string) string {
	var places []string
	for _, r := range rivals {
		if p := PlaceOf(r.claimant()); r.req.GroupId == group && !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	if len(places) == 0 {
		return ""
	}
	return " at " + strings.Join(places, ", ")
}

// PlaceOf returns the location of a claimant: the WAN addresses of the gateways
// of its datacenter, or its own address if the datacenter has no gateway.
func PlaceOf(c *pb.Claimant) string {
	if len(c.Gateways) > 0 {
		return strings.Join(c.Gateways, ", ")
	}
	return c.ServerAddress
}

func (cl *claim) claimant() *pb.Claimant {
	return &pb.Claimant{
		Node: cl.req.Node, GroupId: cl.req.GroupId, Instance: cl.req.Instance, ServerAddress: cl.req.ServerAddress,
		Gateways: cl.req.Gateways, LastSeen: timestamppb.New(cl.lastSeen), Refused: cl.refused,
	}
}
