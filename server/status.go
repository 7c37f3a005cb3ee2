// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// Status implements httpapi.Source.
func (s source) Status(ctx context.Context) (api.Status, error) {
	states, _, err := s.FederationStates(ctx)
	if err != nil {
		return api.Status{}, err
	}
	replicated, err := s.replicated(ctx)
	if err != nil {
		return api.Status{}, err
	}
	leader, _, _ := s.Leader()
	out := api.Status{
		Datacenter: s.p.cfg.DC, Node: s.p.cfg.Node, Leader: leader, PrimaryDatacenter: s.p.primacy.PrimaryDC(),
		MeshGatewayMode: s.p.cfg.MeshGatewayMode, Version: version.Version, Gossip: s.p.keyring.Status(), Components: s.components(), Replicated: replicated,
	}
	byDC := map[string]*pb.FederationState{}
	for _, st := range states {
		byDC[st.Datacenter] = st
	}
	used := s.used()
	for _, dc := range s.Datacenters() {
		out.Datacenters = append(out.Datacenters, s.datacenter(dc, byDC[dc], used[dc]))
	}
	return out, nil
}

func (s source) datacenter(dc string, state *pb.FederationState, used string) api.DatacenterStatus {
	d := api.DatacenterStatus{Name: dc, Own: dc == s.p.cfg.DC, Primary: dc == s.p.primacy.PrimaryDC()}
	for _, m := range s.p.wan.Members() {
		if _, mdc, err := federation.SplitWANName(m.Name); err != nil || mdc != dc || m.Status == gossip.StatusLeft {
			continue
		}
		d.ServersKnown++
		if m.Alive() {
			d.ServersAlive++
		}
	}
	for _, g := range state.GetMeshGateways() {
		d.GatewaysKnown++
		if catalog.Healthy(g) {
			d.GatewaysHealthy++
		}
	}
	if state != nil {
		d.UpdatedAt = state.UpdatedAt.AsTime()
		d.RecordAge = api.SecondsPtr(time.Since(d.UpdatedAt))
	}
	if !s.p.primacy.IsPrimary() && !d.Own {
		if st := s.p.primacy.Follower().Status(); !st.LastContact.IsZero() {
			d.ReplicationLag = api.SecondsPtr(lag(st.Connected, st.LastContact))
		}
	}
	var paths []wanfed.PathStatus
	if d.Own {
		paths = slices.DeleteFunc(s.p.dialer.Paths(), func(p wanfed.PathStatus) bool { return p.DC != dc })
	} else {
		paths = s.p.dialer.PathsTo(dc)
		d.Hops = hopsStatus(paths, s.p.addressBook.Origins(dc), used, time.Now())
	}
	s.lastError(&d, paths)
	d.Advice = s.advice(d, state)
	return d
}

// lastError takes the newest of what dialing, joining and, for the primary, replication met. What a probe met of a hop that
// nothing uses is no error of the datacenter as long as another hop works.
func (s source) lastError(d *api.DatacenterStatus, paths []wanfed.PathStatus) {
	note := func(at time.Time, err error) {
		if err != nil && at.After(d.LastErrorAt) {
			d.LastError, d.LastErrorAt = resource.ErrorText(err.Error()), at
		}
	}
	works := slices.ContainsFunc(paths, func(p wanfed.PathStatus) bool { return p.Health == wanfed.PathOK })
	for _, p := range paths {
		if p.LastError != "" && (!p.Probed || !works) {
			note(p.LastErrorAt, fmt.Errorf("%s %s: %s", p.Via, p.Addr, p.LastError))
		}
	}
	if d.Own {
		up := s.p.antiEntropy.Status()
		note(up.LastErrorAt, up.LastError)
		return
	}
	note(s.p.joiner.LastError(d.Name))
	if d.Primary {
		down := s.p.primacy.Follower().Status()
		note(down.LastErrorAt, down.LastError)
	}
}

// advice says what an operator should do about a datacenter, or nothing.
func (s source) advice(d api.DatacenterStatus, state *pb.FederationState) string {
	switch disputed := s.disputed(d.Name); {
	case disputed != "":
		return disputed
	case d.Own && d.GatewaysKnown == 0:
		return fmt.Sprintf("start a gateway here: wanfed gateway --dc %s --node gw1 --server ADDR --lan ADDR --wan ADDR …", d.Name)
	case d.GatewaysKnown > 0 && d.GatewaysHealthy == 0:
		return fmt.Sprintf("no gateway of %s is healthy: start one there, or look at its log", d.Name)
	case d.ServersAlive == 0 && d.ServersKnown > 0:
		return fmt.Sprintf("no server of %s answers: check its servers, its gateways, and the network between the gateways; "+
			"if it is gone for good: %s", d.Name, goneForGood(d))
	case d.ServersAlive == 0:
		return fmt.Sprintf("no server of %s is in the WAN pool: they stopped, or were never reached: check them, and that the WAN addresses of its gateways "+
			"can be dialed from the gateways here; if it is gone for good: %s", d.Name, goneForGood(d))
	case d.ServersAlive < d.ServersKnown:
		return fmt.Sprintf("see which servers are down: wanfed members --wan (%s)", d.Name)
	case state == nil && !d.Own:
		return fmt.Sprintf("%s has written no federation state: has it a gateway?", d.Name)
	}
	return ""
}

// goneForGood says what to do about a datacenter that does not come back.
func goneForGood(d api.DatacenterStatus) string {
	if d.Primary {
		return "give all servers of the others another primary_datacenter, and restart them one at a time"
	}
	return "wanfed federation delete " + d.Name
}

func (s source) components() []api.ComponentStatus {
	out := []api.ComponentStatus{}
	add := func(name string, ok bool, bad, detail string) {
		state := "ok"
		if !ok {
			state = bad
		}
		out = append(out, api.ComponentStatus{Name: name, State: state, Detail: detail})
	}
	leader, _ := s.p.store.Leader()
	voters, _ := s.p.store.Peers()
	state, detail := raftState(leader, voters, s.p.cfg.BootstrapExpect, s.p.lan.Members())
	add("raft", state == "ok", state, detail)
	why := s.p.store.WriteError()
	add("log", why == nil, "cannot be written", detailOf(why, time.Time{}, ""))
	add("lan pool", true, "", fmt.Sprintf("%d of %d members alive", alive(s.p.lan), len(s.p.lan.Members())))
	add("wan pool", true, "", fmt.Sprintf("%d of %d members alive", alive(s.p.wan), len(s.p.wan.Members())))
	add("gossip keys", true, "", s.p.keyring.Detail())
	if s.p.store.IsLeader() {
		up := s.p.antiEntropy.Status()
		add("anti-entropy", up.LastError == nil, "failing", detailOf(up.LastError, up.LastApplied, "last written"))
	}
	return append(out, s.primaryComponent(), s.replicationComponent())
}

func detailOf(err error, at time.Time, what string) string {
	switch {
	case err != nil:
		return resource.ErrorText(err.Error())
	case at.IsZero():
		return ""
	}
	return fmt.Sprintf("%s %s ago", what, time.Since(at).Round(time.Second))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func alive(p *gossip.Pool) int {
	n := 0
	for _, m := range p.Members() {
		if m.Alive() {
			n++
		}
	}
	return n
}
