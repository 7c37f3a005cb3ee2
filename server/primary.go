// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
)

var (
	descPrimary  = desc("primary", "1 for the datacenter whose federated records are here: the primary.", "dc")
	descDisputed = desc("primary_disputed", "1 for each other datacenter whose servers name another primary than this one's, with that name.", "dc", "primary")
	descRivals   = desc("primaries", "Datacenters that are known to be a primary: more than 1 is a fault. The leader alone knows of others.")
	descDiffer   = desc("primary_servers_differ", "Living servers of this datacenter that are configured with another primary than this one.")
)

// primaries tells which primary the living servers of this datacenter are configured with, and which of its servers are unknown.
// Those of an older version do not tell.
func (p *parts) primaries() (named map[string]string, unknown []string) {
	named = map[string]string{p.cfg.Node: p.cfg.PrimaryDC}
	members := p.lan.Members()
	for _, m := range members {
		if primary := m.Tags[federation.TagPrimary]; m.Alive() && m.Name != p.cfg.Node && primary != "" {
			named[m.Name] = primary
		}
	}
	voters, _ := p.store.Peers() // without, there is nobody to lead
	for _, node := range voters {
		if node != p.cfg.Node && !slices.ContainsFunc(members, func(m gossip.Member) bool { return m.Name == node }) {
			unknown = append(unknown, node)
		}
	}
	return named, unknown
}

// localServers implements replication.Servers.
type localServers struct{ *parts }

func (s localServers) ConfiguredPrimaries() (map[string]string, []string) { return s.primaries() }

func (s localServers) Changed() <-chan struct{} { return s.lan.Changed() }

// remoteServers implements replication.Remote.
type remoteServers struct{ *parts }

func (s remoteServers) ReplicationClient(dc string) (pb.ReplicationServiceClient, error) {
	return pb.NewReplicationServiceClient(s.calls.Reader(dc)), nil
}

func (s remoteServers) PathsChanged() <-chan struct{} { return s.book.Changed() }

// recordsOfPrimary is where writes of federated records go that are not made here.
func (p *parts) recordsOfPrimary() (pb.ResourceServiceClient, error) {
	if p.primacy.PrimaryDC() == p.cfg.DC {
		return p.resources.Client(), p.primacy.Writable()
	}
	c, err := p.recordsOf(p.primacy.PrimaryDC())
	if err != nil || time.Since(p.primacy.DemotedAt()) > gaveUpFor {
		return c, err
	}
	return onlyOwn{c, p}, nil
}

// gaveUpFor is how long others may take a datacenter for the primary that has become a secondary.
const gaveUpFor = time.Minute

// onlyOwn hands writes on to the primary for callers of this datacenter. Others come because they take this one for the primary yet:
// they are told to ask again, and not that they may not.
type onlyOwn struct {
	pb.ResourceServiceClient
	p *parts
}

func (o onlyOwn) check(ctx context.Context) error {
	if who, err := rpc.Peer(ctx); err == nil && who.DC != o.p.cfg.DC {
		return fmt.Errorf("%s is not the primary, %s is: ask again in a moment, or see: wanfed status", o.p.cfg.DC, o.p.primacy.PrimaryDC())
	}
	return nil
}

// Write implements pb.ResourceServiceClient.
func (o onlyOwn) Write(ctx context.Context, req *pb.WriteRequest, opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	return o.ResourceServiceClient.Write(ctx, req, opts...)
}

// Delete implements pb.ResourceServiceClient.
func (o onlyOwn) Delete(ctx context.Context, req *pb.DeleteRequest, opts ...grpc.CallOption) (*pb.DeleteResponse, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	return o.ResourceServiceClient.Delete(ctx, req, opts...)
}

// differ says which servers of this datacenter are configured with which primary, where it is not the same; else it is empty.
func (s source) differ() (text string, others int) {
	named, _ := s.p.primaries()
	by := map[string][]string{}
	for node, primary := range named {
		by[primary] = append(by[primary], node)
		if primary != s.p.cfg.PrimaryDC {
			others++
		}
	}
	if len(by) == 1 {
		return "", 0
	}
	var parts []string
	for _, primary := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[primary])
		parts = append(parts, fmt.Sprintf("%s by %s", primary, strings.Join(by[primary], ", ")))
	}
	return strings.Join(parts, "; "), others
}

// rivals are the other datacenters that are primaries too, by what they answered. It is for the leader, which asks.
type rivals struct {
	mu  sync.Mutex
	dcs []string
}

func (r *rivals) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dcs
}

// rivalsEvery is how often datacenters whose servers name it as the primary are asked whether it is one.
const rivalsEvery = 3 * time.Second

// watchRivals asks, until ctx ends, those that hold themselves for the primary, and logs a second one once.
func (p *parts) watchRivals(ctx context.Context) error {
	tick := time.NewTicker(rivalsEvery)
	defer tick.Stop()
	for {
		var now []string
		for _, d := range p.disputes.List() {
			if d.ClaimsItself() && d.DC != p.primacy.PrimaryDC() && p.primacy.ProbePrimary(ctx, d.DC) {
				now = append(now, d.DC)
			}
		}
		p.rivals.mu.Lock()
		was := p.rivals.dcs
		p.rivals.dcs = now
		p.rivals.mu.Unlock()
		for _, dc := range now {
			if !slices.Contains(was, dc) {
				p.logger.Error("two primaries: what is written in the one that is given up is lost; decide, and set the same primary_datacenter on all servers",
					"datacenter", dc, "primary", p.primacy.PrimaryDC())
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.rivals.mu.Lock()
			p.rivals.dcs = nil // another leader asks
			p.rivals.mu.Unlock()
			return nil
		}
	}
}

// disputed says what to do about a datacenter that names another primary.
func (s source) disputed(dc string) string {
	own, of := s.p.cfg.DC, s.p.primacy.PrimaryDC()
	for _, d := range s.p.disputes.List() {
		switch {
		case d.DC != dc:
		case slices.Contains(s.p.rivals.list(), dc):
			return fmt.Sprintf("%s is a primary too, besides %s: what is written in the one that is given up is lost; decide, and set the same primary_datacenter on all servers", dc, of)
		default:
			return fmt.Sprintf("servers of %s (%s) name %s as primary_datacenter, those of %s name %s: set the same one on all servers", dc, d.Node, d.Primary, own, s.p.cfg.PrimaryDC)
		}
	}
	return ""
}

// primaryComponent tells which datacenter is the primary, and what stands in the way.
func (s source) primaryComponent() api.ComponentStatus {
	of := s.p.primacy.PrimaryDC()
	c := api.ComponentStatus{Name: "primary", State: "ok", Detail: of}
	if of == s.p.cfg.DC {
		c.Detail += ", this datacenter"
	}
	disputes, rivals := s.p.disputes.List(), s.p.rivals.list()
	switch differ, _ := s.differ(); {
	case len(rivals) > 0 && s.disputed(rivals[0]) != "":
		c.State, c.Detail = "two primaries", s.disputed(rivals[0])
	case differ != "":
		c.State = "servers differ"
		c.Detail = fmt.Sprintf("%s until all servers here have the same primary_datacenter: %s", c.Detail, differ)
	case s.p.primacy.PendingReason() != "":
		c.State, c.Detail = "changing", resource.ErrorText(s.p.primacy.PendingReason())
	case of != s.p.cfg.PrimaryDC:
		c.State, c.Detail = "changing", fmt.Sprintf("%s still, not yet %s; the leader knows why", of, s.p.cfg.PrimaryDC)
	case len(disputes) > 0:
		c.State, c.Detail = "disputed", s.disputed(disputes[0].DC)
	}
	return c
}

// primary reports which datacenter is the primary and who sees that otherwise.
func (c collector) primary(gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(descPrimary, 1, c.p.primacy.PrimaryDC())
	gauge(descRivals, float64(1+len(c.p.rivals.list())))
	for _, d := range c.p.disputes.List() {
		gauge(descDisputed, 1, d.DC, d.Primary)
	}
	_, others := source(c).differ()
	gauge(descDiffer, float64(others))
}
