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
	// ClaimInterval is the time between two claims of a server.
	ClaimInterval = 2 * time.Second
	// claimPending is the time for which a claim is not decided after the last
	// claim of another process on the same data directory. It is longer than
	// ClaimInterval with its jitter.
	claimPending = 3 * time.Second
	// claimTimeout is the time after which a claim that is not repeated counts
	// as given up.
	claimTimeout = 15 * time.Second
	// refusalTimeout is the time after which a refused server may take the name
	// of a server that no longer claims it. It is longer than a restart of the
	// machine of that server.
	refusalTimeout = 10 * time.Minute
	// maxClaims limits the stored claims for one server name. A certificate allows
	// claims for one name.
	maxClaims = 16
)

// Claims decides which of several servers with one name is part of the
// federation. It runs on the leader of the primary.
//
// Two datacenters can have one name after a mistake: a machine was cloned, or a
// configuration was copied. Their Raft groups have different ids, unless the
// data directory was cloned too. The federation state of the datacenter contains
// the id of the accepted group. Of two processes with one group id and one node
// name, the process that claimed the name first and still claims it is accepted.
// A process that restarted is not refused, because the earlier process on its
// data directory has ended.
//
// Claims are kept in memory. After a change of the leader, a clone reports that
// it is one.
//
// The zero value is ready. Its methods may be called from any goroutine.
type Claims struct {
	mu  sync.Mutex
	all map[string][]*claim // by WAN name, the earliest first
}

// claim is the claim of one process.
type claim struct {
	req                 *pb.ClaimRequest
	firstSeen, lastSeen time.Time
	refused             bool
	// clone is set once the process was refused because another process uses a
	// clone of its data directory. It stays set until refusalTimeout.
	clone bool
}

// Claim records a claim and decides about it. The argument group is the id of
// the group in the federation state of the datacenter, or "".
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
			for _, o := range claims {
				if o.rivals(own) && now.Sub(o.lastSeen) < claimTimeout {
					rivals = append(rivals, o)
				}
			}
		}
	}
	slices.SortFunc(rivals, func(a, b *claim) int { return a.firstSeen.Compare(b.firstSeen) })
	own.refused = true
	resp := &pb.ClaimResponse{}
	if holder := groupHolder(req, group, rivals); holder != "" {
		resp.Reason = fmt.Sprintf("another datacenter is called %s too: the accepted one has the group id %s%s, and this one has %s; "+
			"stop the wrong one, or, if %s was rebuilt, run: wanfed federation replace %s --id %s",
			req.Datacenter, holder, placesOf(rivals, holder), req.GroupId, req.Datacenter, req.Datacenter, req.GroupId)
	} else if resp.Reason = c.cloneOf(own, now); resp.Reason != "" {
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
		for _, o := range claims {
			if o.refused && now.Sub(o.lastSeen) < claimTimeout {
				out[o.req.Datacenter] = append(out[o.req.Datacenter], o.claimant())
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

// record adds or updates the claim of the process. With too many claims for the
// name, it drops the one that was repeated least recently.
func (c *Claims) record(req *pb.ClaimRequest, now time.Time) *claim {
	name := WANName(req.Node, req.Datacenter)
	i, known := c.find(name, req.Instance)
	if known {
		own := c.all[name][i]
		own.req, own.lastSeen = req, now
		return own
	}
	own := &claim{req: req, firstSeen: now, lastSeen: now, clone: req.Clone}
	if i, known := c.find(name, req.PreviousInstance); known && c.all[name][i].clone {
		own.clone = true // a clone that restarted
	}
	if c.all == nil {
		c.all = map[string][]*claim{}
	}
	if claims := c.all[name]; len(claims) >= maxClaims {
		oldest := slices.MinFunc(claims, func(a, b *claim) int { return a.lastSeen.Compare(b.lastSeen) })
		c.all[name] = slices.DeleteFunc(claims, func(o *claim) bool { return o == oldest })
	}
	c.all[name] = append(c.all[name], own)
	return own
}

// release removes the claim of a process that ends.
func (c *Claims) release(req *pb.ClaimRequest) {
	name := WANName(req.Node, req.Datacenter)
	if i, known := c.find(name, req.Instance); known && !c.all[name][i].clone {
		c.all[name] = slices.Delete(c.all[name], i, i+1)
	}
}

// pending reports whether another process of the same group claimed the name of
// own shortly before own did, and may do so again.
func (c *Claims) pending(own *claim, now time.Time) bool {
	return slices.ContainsFunc(c.all[WANName(own.req.Node, own.req.Datacenter)], func(o *claim) bool {
		return o != own && o.req.GroupId == own.req.GroupId && !o.clone && o.firstSeen.Before(own.firstSeen) &&
			now.Sub(o.lastSeen) < claimPending
	})
}

func (c *Claims) find(name, instance string) (int, bool) {
	i := slices.IndexFunc(c.all[name], func(o *claim) bool { return o.req.Instance == instance })
	return i, i >= 0
}

// sweep removes the claims that were not repeated within refusalTimeout.
func (c *Claims) sweep(now time.Time) {
	for name, claims := range c.all {
		c.all[name] = slices.DeleteFunc(claims, func(o *claim) bool { return now.Sub(o.lastSeen) >= refusalTimeout })
		if len(c.all[name]) == 0 {
			delete(c.all, name)
		}
	}
}

// rivals reports whether o and own compete for a name: two groups for the name
// of a datacenter, or two processes of one group for the name of a server. A
// process whose last claim is older than the first claim of own has ended: own is
// its restart.
func (o *claim) rivals(own *claim) bool {
	if o.req.GroupId != own.req.GroupId {
		return true
	}
	return o.req.Node == own.req.Node && o != own && o.lastSeen.After(own.firstSeen)
}

// groupHolder returns the id of the group that holds the name of the datacenter,
// or "" if that is the group of req.
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

// cloneOf returns the reason to refuse own as a clone, or "". The process that
// claimed the name first and repeats its claim is not a clone.
func (c *Claims) cloneOf(own *claim, now time.Time) string {
	timeout := claimTimeout
	if own.clone {
		timeout = refusalTimeout
	}
	name := WANName(own.req.Node, own.req.Datacenter)
	for _, r := range c.all[name] {
		if r.req.GroupId == own.req.GroupId && r.rivals(own) && !r.clone && now.Sub(r.lastSeen) < timeout &&
			(own.clone || r.firstSeen.Before(own.firstSeen)) {
			return fmt.Sprintf("another server is called %s too, and has the same data directory or a clone of it: it is at %s; "+
				"stop this server, and empty its data directory", name, PlaceOf(r.claimant()))
		}
	}
	if own.clone && now.Sub(own.firstSeen) < refusalTimeout {
		return fmt.Sprintf("another server was called %s too, and had the same data directory or a clone of it; if this server is the right one, "+
			"it is accepted %v after its first claim", name, refusalTimeout)
	}
	return ""
}

// placesOf describes where the servers of a group are.
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

// PlaceOf describes where a claimant is: the WAN addresses of the gateways of
// its datacenter, or without gateways its own address.
func PlaceOf(c *pb.Claimant) string {
	if len(c.Gateways) > 0 {
		return strings.Join(c.Gateways, ", ")
	}
	return c.ServerAddress
}

func (o *claim) claimant() *pb.Claimant {
	return &pb.Claimant{
		Node: o.req.Node, GroupId: o.req.GroupId, Instance: o.req.Instance, ServerAddress: o.req.ServerAddress,
		Gateways: o.req.Gateways, LastSeen: timestamppb.New(o.lastSeen), Refused: o.refused,
	}
}
