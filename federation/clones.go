// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

// clonePending is the time after the last claim of a process during which a
// process of the same server is requested to claim again at once. It is longer
// than announceInterval with its jitter.
const clonePending = 8 * time.Second

// Clones detects two running processes that are the same server of the primary,
// because its data directory was cloned. It runs on the leader of a secondary, to
// which the servers of the primary send claims. It only reports.
//
// The first claim of a clone looks like that of a restarted server, and a message
// may arrive after the end of its sender. Each response therefore has a new
// nonce, which the next claim of the process returns. A process that returns a
// nonce was alive when the nonce was issued. Two processes with the same group id
// and node name are clones if each has returned a nonce that was issued after the
// first claim of the other. Each of them was then alive after the start of the
// other.
//
// The zero value is ready. Its methods may be called from any goroutine.
type Clones struct {
	mu     sync.Mutex
	claims uint64                // number of all claims
	all    map[string][]*process // by WAN name, the earliest first
}

// process is a process that has claimed to be a server. Claims are numbered in
// the order of their arrival.
type process struct {
	req      *pb.ClaimRequest // last request
	lastSeen time.Time
	first    uint64 // number of the first claim
	nonce    string // in the response to the last claim
	issued   uint64 // number of the last claim
	alive    uint64 // the process has returned a nonce that was issued at this number; 0: none
}

// Claim records a claim of a server of the primary. The response has the clones
// of its process as rivals.
func (c *Clones) Claim(req *pb.ClaimRequest, now time.Time) *pb.ClaimResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep(now)
	own := c.record(req, now)
	resp := &pb.ClaimResponse{Accepted: true, Nonce: own.nonce}
	for _, other := range c.all[WANName(req.Node, req.Datacenter)] {
		switch {
		case other == own || other.req.GroupId != req.GroupId:
		case own.isCloneOf(other):
			resp.Rivals = append(resp.Rivals, other.claimant())
		case now.Sub(other.lastSeen) < clonePending:
			resp.Pending = true
		}
	}
	return resp
}

// record adds or updates the process that sent req.
func (c *Clones) record(req *pb.ClaimRequest, now time.Time) *process {
	name := WANName(req.Node, req.Datacenter)
	c.claims++
	i := slices.IndexFunc(c.all[name], func(p *process) bool {
		return p.req.Instance == req.Instance && p.req.GroupId == req.GroupId
	})
	if i < 0 {
		if c.all == nil {
			c.all = map[string][]*process{}
		}
		if len(c.all[name]) >= maxClaims {
			oldest := slices.MinFunc(c.all[name], func(a, b *process) int { return a.lastSeen.Compare(b.lastSeen) })
			c.all[name] = slices.DeleteFunc(c.all[name], func(p *process) bool { return p == oldest })
		}
		i = len(c.all[name])
		c.all[name] = append(c.all[name], &process{first: c.claims})
	}
	own := c.all[name][i]
	if own.nonce != "" && req.Nonce == own.nonce {
		own.alive = own.issued
	}
	own.req, own.lastSeen, own.nonce, own.issued = req, now, rand.Text(), c.claims
	return own
}

// sweep removes the processes whose claim was not repeated.
func (c *Clones) sweep(now time.Time) {
	for name, all := range c.all {
		c.all[name] = slices.DeleteFunc(all, func(p *process) bool { return now.Sub(p.lastSeen) >= claimTimeout })
		if len(c.all[name]) == 0 {
			delete(c.all, name)
		}
	}
}

func (p *process) isCloneOf(o *process) bool {
	return p != o && p.req.GroupId == o.req.GroupId && p.alive > o.first && o.alive > p.first
}

func (p *process) claimant() *pb.Claimant {
	return &pb.Claimant{
		Node: p.req.Node, GroupId: p.req.GroupId, Instance: p.req.Instance, ServerAddress: p.req.ServerAddress,
		Gateways: p.req.Gateways, LastSeen: timestamppb.New(p.lastSeen),
	}
}

// List returns the processes that have a clone, by the WAN name of the server, in
// the order of their first claims.
func (c *Clones) List(now time.Time) map[string][]*pb.Claimant {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep(now)
	out := map[string][]*pb.Claimant{}
	for name, all := range c.all {
		for _, p := range all {
			if slices.ContainsFunc(all, p.isCloneOf) {
				out[name] = append(out[name], p.claimant())
			}
		}
	}
	return out
}

// DescribeClones returns a message about the running processes of one server of
// the primary, with the remedy.
func DescribeClones(name string, processes []*pb.Claimant) string {
	places := make([]string, len(processes))
	for i, p := range processes {
		places[i] = "at " + p.ServerAddress
		if len(p.Gateways) > 0 {
			places[i] += " behind the gateways " + strings.Join(p.Gateways, ", ")
		}
	}
	slices.Sort(places)
	return fmt.Sprintf("%s runs in %d processes, with one data directory or clones of it: %s; each may have writes of "+
		"federated resources that the others lack: stop the wrong one, and empty its data directory",
		name, len(places), strings.Join(places, "; "))
}
