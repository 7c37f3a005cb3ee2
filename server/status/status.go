// SPDX-License-Identifier: MPL-2.0

package status

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gateway/xds"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/audit"
	"github.com/wanfed/wanfed/server/keyring"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Config has the components that a Reporter reads. All fields are
// required, except Audit.
type Config struct {
	DC, Node        string
	MeshGatewayMode string
	BootstrapExpect int

	Book        *wanfed.SharedAddressBook
	Dialer      *wanfed.Dialer
	Tunnel      *wanfed.Tunnel
	Mux         *wanfed.Mux // accepts the connections of the TLS port
	HTTPMux     *wanfed.Mux // accepts the connections of the HTTP API
	Edge        *rpc.Edge
	Store       *raftstore.Store
	LAN, WAN    *gossip.Pool
	Keyring     *keyring.Service
	Gateways    *catalog.Gateways
	AddressBook *federation.AddressBookUpdater
	Joiner      *federation.Joiner
	Claims      *federation.Claims
	Clones      *federation.Clones
	Claimant    *federation.Claimant
	Primary     *PrimaryView
	AntiEntropy *replication.AntiEntropy
	Snapshots   *operator.Schedule
	Source      *replication.Source
	Operator    *operator.Service
	Envoys      *xds.Server
	Certificate func() *x509.Certificate // certificate of this server
	Identity    *tlsutil.Identity        // has the revocation lists
	Audit       *audit.Log               // nil: no audit log
	// Server returns a client of any server of another datacenter.
	Server func(dc string) pb.ServerServiceClient
}

// Reporter reports the state of this server's components and of the
// datacenters, with the cause of a failure and its remedy. It has all methods
// of httpapi.Cluster except Query. It also implements prometheus.Collector.
type Reporter struct {
	cfg     Config
	inbound inboundReports
}

// NewReporter returns a Reporter.
func NewReporter(cfg Config) *Reporter { return &Reporter{cfg: cfg} }

// Status implements httpapi.Cluster.
func (r *Reporter) Status(ctx context.Context) (api.Status, error) {
	dcs, err := r.datacenters(ctx)
	if err != nil {
		return api.Status{}, err
	}
	replicated, err := r.replicatedTypes(ctx)
	if err != nil {
		return api.Status{}, err
	}
	daemons, err := r.syncFacts(ctx)
	if err != nil {
		return api.Status{}, err
	}
	leader, _, _ := r.Leader()
	return api.Status{
		Datacenter: r.cfg.DC, Node: r.cfg.Node, Leader: leader, PrimaryDatacenter: r.cfg.Primary.manager.PrimaryDC(),
		PrimaryEpoch: r.cfg.Primary.manager.Epoch(), Replicated: replicated,
		MeshGatewayMode: r.cfg.MeshGatewayMode, Version: version.Version, Headline: headline(dcs),
		Gossip: r.cfg.Keyring.Status(), Datacenters: dcs, Components: append(r.components(), daemons.components()...),
	}, nil
}

// datacenters returns the status of each datacenter: the local datacenter
// first, then by name.
func (r *Reporter) datacenters(ctx context.Context) ([]api.DatacenterStatus, error) {
	states, _, err := federation.ListStates(ctx, r.cfg.Store)
	if err != nil {
		return nil, err
	}
	gateways, err := catalog.ListGateways(ctx, r.cfg.Store)
	if err != nil {
		return nil, err
	}
	locals := gatewayFacts(gateways)
	byDC := map[string]*pb.FederationState{}
	for _, st := range states {
		byDC[st.Datacenter] = st
	}
	links, now := r.links(), time.Now()
	members := r.cfg.WAN.Members()
	servers, unreachable := countServers(members), federation.UnreachableGateways(members)
	names := r.Datacenters()
	slices.Sort(names[1:])
	out := make([]api.DatacenterStatus, 0, len(names))
	for _, dc := range names {
		f := r.facts(dc, byDC[dc], links[dc])
		f.ServersAlive, f.ServersKnown = servers[dc].alive, servers[dc].known
		f.gateways = locals
		if f.Own {
			f.UnreachableGateways = unreachableGateways(dc, locals, unreachable)
			f.GatewaysHealthy, f.GatewaysKnown = countGateways(gateways)
			f.refused = r.cfg.Gateways.Refused()
			f.reports = r.inbound.all(names[1:], r.cfg.Tunnel.LastReceived, now)
		} else {
			f.UnreachableGateways = unreachableGateways(dc, gatewayFacts(byDC[dc].GetMeshGateways()), unreachable)
			f.reports = r.inbound.all([]string{dc}, r.cfg.Tunnel.LastReceived, now)
		}
		out = append(out, evaluate(f))
	}
	return out, nil
}

// gatewayFacts returns the gateways in the form of facts.
func gatewayFacts(gateways []*pb.MeshGateway) []gatewayFact {
	out := make([]gatewayFact, len(gateways))
	for i, g := range gateways {
		out[i] = gatewayFact{
			node: g.GetNode().GetNode(), wan: catalog.TaggedAddr(g, catalog.TagWAN), healthy: catalog.Healthy(g),
			conflict: catalog.NameConflict(g),
		}
	}
	return out
}

// links returns the packet links to the named, or all other, datacenters, by name.
func (r *Reporter) links(dcs ...string) map[string]wanfed.LinkStatus {
	links := map[string]wanfed.LinkStatus{}
	for _, l := range r.cfg.Tunnel.Links(dcs...) {
		if l.DC != r.cfg.DC && (links[l.DC].DC == "" || !l.ConnectedSince.IsZero()) {
			links[l.DC] = l
		}
	}
	return links
}

// facts returns what this server knows about a datacenter.
func (r *Reporter) facts(dc string, state *pb.FederationState, link wanfed.LinkStatus) facts {
	manager := r.cfg.Primary.manager
	f := facts{local: r.cfg.DC, hasState: state != nil}
	d := &f.DatacenterStatus
	d.Name, d.Own, d.Primary = dc, dc == r.cfg.DC, dc == manager.PrimaryDC()
	d.GatewaysHealthy, d.GatewaysKnown = countGateways(state.GetMeshGateways())
	if state != nil {
		d.UpdatedAt = state.UpdatedAt.AsTime()
		d.RecordAge = api.SecondsPtr(time.Since(d.UpdatedAt))
	}
	if !manager.IsPrimary() && !d.Own {
		if st := manager.Follower().Status(); !st.LastContact.IsZero() {
			d.ReplicationLag = api.SecondsPtr(lag(st.Connected, st.LastContact))
		}
	}
	var paths []wanfed.PathStatus
	if d.Own {
		paths = slices.DeleteFunc(r.cfg.Dialer.Paths(), func(p wanfed.PathStatus) bool { return p.DC != dc })
		f.raft = r.raftComponent()
	} else {
		paths = r.cfg.Dialer.PathsTo(dc)
		f.unused = r.cfg.AddressBook.Unused(dc)
		d.Paths = pathStatuses(paths, r.cfg.AddressBook.Origins(dc), link, time.Now())
	}
	r.setLastError(d, paths)
	f.conflict = cmp.Or(r.cfg.Primary.conflict(dc), r.rivals(*d))
	if d.Primary && !d.Own {
		f.conflict = cmp.Or(f.conflict, manager.Follower().OtherGroup())
	}
	if d.Primary && d.Own {
		f.conflict = cmp.Or(f.conflict, r.cfg.Source.RejectedBy())
	}
	return f
}

type serverCount struct{ alive, known int }

// countServers returns the numbers of members by datacenter, without members
// that left.
func countServers(members []gossip.Member) map[string]serverCount {
	counts := map[string]serverCount{}
	for _, m := range members {
		_, dc, err := federation.SplitWANName(m.Name)
		if err != nil || m.Status == gossip.StatusLeft {
			continue
		}
		n := counts[dc]
		if n.known++; m.Alive() {
			n.alive++
		}
		counts[dc] = n
	}
	return counts
}

func countGateways(gateways []*pb.MeshGateway) (healthy, known int) {
	for _, g := range gateways {
		if catalog.Healthy(g) {
			healthy++
		}
	}
	return healthy, len(gateways)
}

// pathStatuses returns the states of the paths to one datacenter, in the order
// of the paths. The argument link is the packet link to the datacenter.
func pathStatuses(
	paths []wanfed.PathStatus, origins map[string]federation.Origin, link wanfed.LinkStatus, now time.Time,
) []api.PathStatus {
	var out []api.PathStatus
	for _, p := range paths {
		p = current(p, link, now)
		status := api.PathStatus{
			Address: p.Addr, Via: p.Via, Used: p.Addr == link.Path.Addr && !link.ConnectedSince.IsZero(),
			Health: string(p.Health), LastSuccess: p.LastSuccess, LastFailure: p.LastErrorAt, LastError: p.LastError,
			Failure: string(p.Failure), Sources: origins[p.Addr].Sources,
		}
		if p.SmoothedRTT > 0 {
			status.RTT = api.SecondsPtr(p.SmoothedRTT)
		}
		if at := origins[p.Addr].At; !at.IsZero() {
			status.KnowledgeAge = api.SecondsPtr(now.Sub(at))
		}
		out = append(out, status)
	}
	return out
}

// pathUnknown is the health of a path whose last success is too old.
const pathUnknown wanfed.PathHealth = "unknown"

// current returns p with its health now. A path fails if its packet link has no
// echo for silentAfter. It works while its packet link has echoes, even if a
// call or a dial over it failed. The health of a path is unknown if its last
// result is too old.
func current(p wanfed.PathStatus, link wanfed.LinkStatus, now time.Time) wanfed.PathStatus {
	unanswered := link.UnansweredSince
	silent := !unanswered.IsZero() && p.Addr == link.Path.Addr && now.Sub(unanswered) >= silentAfter &&
		p.LastSuccess.Before(unanswered)
	echoes := !link.ConnectedSince.IsZero() && p.Addr == link.Path.Addr && now.Sub(p.LastSuccess) < recentEcho
	switch {
	case echoes && !silent && p.Health == wanfed.PathFailing:
		p.Health = wanfed.PathOK // a call was late, or a dial failed, while the open connection works
	case silent && p.Health != wanfed.PathFailing:
		p.Health, p.Failure, p.LastErrorAt = wanfed.PathFailing, wanfed.FailureTimeout, now
		p.LastError = fmt.Sprintf("no echo on the open connection since %s", now.Sub(unanswered).Round(time.Second))
	case p.Health != wanfed.PathUntested && now.Sub(lastResult(p)) > staleProbes*p.ProbeInterval:
		p.Health = pathUnknown
	}
	return p
}

// lastResult returns the time of the last result that p.Health is based on.
func lastResult(p wanfed.PathStatus) time.Time {
	if p.Health == wanfed.PathFailing {
		return p.LastErrorAt
	}
	return p.LastSuccess
}

// setLastError sets the newest error of dialing, joining and, for the primary,
// replication. The error of a probe counts only if no path works.
func (r *Reporter) setLastError(d *api.DatacenterStatus, paths []wanfed.PathStatus) {
	note := func(at time.Time, err error) {
		if err != nil && at.After(d.LastErrorAt) {
			d.LastError, d.LastErrorAt = rpctext.Plain(err.Error()), at
		}
	}
	works := slices.ContainsFunc(paths, func(p wanfed.PathStatus) bool { return p.Health == wanfed.PathOK })
	for _, p := range paths {
		if p.LastError != "" && (!p.Probed || !works) {
			note(p.LastErrorAt, fmt.Errorf("%s %s: %s", p.Via, p.Addr, p.LastError))
		}
	}
	if d.Own {
		st := r.cfg.AntiEntropy.Status()
		note(st.LastErrorAt, st.LastError)
		return
	}
	note(r.cfg.Joiner.LastError(d.Name))
	if d.Primary {
		st := r.cfg.Primary.manager.Follower().Status()
		note(st.LastErrorAt, st.LastError)
	}
}

// rivals describes other servers that claim the name of d or of one of its
// servers, or returns "". The primary knows the refused servers of all
// datacenters. Each server knows the servers that compete with it, and the clones
// of the servers of the primary.
func (r *Reporter) rivals(d api.DatacenterStatus) string {
	clones := ""
	if d.Primary {
		clones = clonesText(r.clones())
	}
	if !d.Own {
		return cmp.Or(clones, rivalText(d.Name, r.cfg.Claims.Rivals(time.Now())[d.Name]))
	}
	state := r.cfg.Claimant.State()
	return cmp.Or(state.Reason, state.Clones, clones, rivalText(d.Name, state.Rivals))
}

// clones returns the processes of each server of the primary that runs more than
// once, by its WAN name. The leaders of a few secondaries detect them. A server
// that runs more than once publishes it in the WAN pool.
func (r *Reporter) clones() map[string][]*pb.Claimant {
	out := federation.TaggedClones(r.cfg.WAN.Members(), r.cfg.Primary.manager.PrimaryDC())
	maps.Copy(out, r.cfg.Clones.List(time.Now()))
	if own := r.cfg.Claimant.State().Processes; len(own) > 0 {
		out[federation.WANName(r.cfg.Node, r.cfg.DC)] = own
	}
	return out
}

// clonesText describes the first server of the primary that runs more than once,
// or returns "".
func clonesText(clones map[string][]*pb.Claimant) string {
	for _, name := range slices.Sorted(maps.Keys(clones)) {
		return federation.DescribeClones(name, clones[name])
	}
	return ""
}

func rivalText(dc string, rivals []*pb.Claimant) string {
	if len(rivals) == 0 {
		return ""
	}
	rival := rivals[0]
	return fmt.Sprintf("another datacenter has the name %s and is refused: %s at %s, group id %s; "+
		"stop it, or, if it is %s rebuilt, run: wanfed federation replace %s --id %s", dc, rival.Node,
		federation.PlaceOf(rival), rival.GroupId, dc, dc,
		rival.GroupId)
}

// removedAdvice returns the action to take for a datacenter that was removed.
func removedAdvice(d api.DatacenterStatus) string {
	if d.Primary {
		return "set another primary_datacenter on all servers of the other datacenters, and restart them one at a time"
	}
	return "wanfed federation delete " + d.Name
}

func (r *Reporter) raftComponent() api.ComponentStatus {
	leader, _ := r.cfg.Store.Leader()
	voters, _ := r.cfg.Store.Peers()
	state, detail := raftState(leader, voters, r.cfg.BootstrapExpect, r.cfg.LAN.Members())
	select {
	case <-r.cfg.Store.Admitted():
	default:
		detail += "; this server has no vote until it has caught up"
	}
	return api.ComponentStatus{Name: "raft", State: state, Detail: detail}
}

// components returns the state of each component of this server, in the order
// of the status page. A component that does not run on this server is omitted.
func (r *Reporter) components() []api.ComponentStatus {
	logErr := r.cfg.Store.WriteError()
	identity := api.ComponentStatus{Name: "identity", State: "ok"}
	claim := r.cfg.Claimant.State()
	if identity.Detail = "group id " + cmp.Or(claim.GroupID, "not known yet"); claim.Reason != "" {
		identity.State, identity.Detail = "refused", claim.Reason
	} else if claim.Clones != "" {
		identity.State, identity.Detail = "conflict", claim.Clones
	} else if d := claim.Duplicate; d != nil {
		identity.State = "conflict"
		identity.Detail = fmt.Sprintf("another server of this datacenter has the name of this server and is refused: "+
			"it is at %s; stop it, or give it another name", d.Address)
	}
	out := []api.ComponentStatus{
		r.raftComponent(),
		{Name: "log", State: okOr("cannot be written", logErr), Detail: errorOrAge(logErr, time.Time{}, "")},
		poolComponent("lan pool", r.cfg.LAN.Members(), "wanfed members"),
		poolComponent("wan pool", r.cfg.WAN.Members(), "wanfed members --wan"),
		identity,
		{Name: "gossip keys", State: "ok", Detail: r.cfg.Keyring.Detail()},
	}
	if r.cfg.Audit != nil {
		st := r.cfg.Audit.Stats()
		detail := fmt.Sprintf("%d lines written since the start, %d dropped", st.Written, st.Dropped)
		if st.Err != nil {
			detail = errorOrAge(st.Err, time.Time{}, "") + "; " + detail
		}
		out = append(out, api.ComponentStatus{Name: "audit log", State: okOr("cannot be written", st.Err), Detail: detail})
	}
	out = append(out, certificateComponent(r.cfg.Identity, time.Now()))
	for _, l := range r.cfg.Identity.RevocationLists() {
		out = append(out, api.ComponentStatus{Name: "revocation list", State: "ok",
			Detail: fmt.Sprintf("list %v of %s, %d certificates and %d names, created %s ago", l.Number, l.Issuer.Subject,
				len(l.Serials), len(l.Names), time.Since(l.Created).Round(time.Second))})
	}
	if voters, _ := r.cfg.Store.Peers(); len(voters) > 1 {
		compared := r.cfg.Operator.Comparison()
		store := api.ComponentStatus{Name: "store", State: "ok", Detail: compared.Detail()}
		if len(compared.Differ) > 0 {
			store.State = "differs"
		}
		out = append(out, store)
	}
	if r.cfg.Store.IsLeader() {
		st := r.cfg.AntiEntropy.Status()
		detail := errorOrAge(st.LastError, st.LastApplied, "last written")
		out = append(out, api.ComponentStatus{Name: "anti-entropy", State: okOr("failing", st.LastError),
			Detail: detail})
	}
	if st := r.cfg.Snapshots.Status(); st.Enabled && r.cfg.Store.IsLeader() {
		age := cmp.Or(errorOrAge(nil, st.Last, "last written"), "none written yet")
		detail := age
		if st.Err != nil {
			detail = errorOrAge(st.Err, st.Last, "") + "; " + age
		}
		out = append(out, api.ComponentStatus{Name: "snapshots", State: okOr("failing", st.Err), Detail: detail})
	}
	out = append(out, r.cfg.Primary.component(), r.replicationComponent())
	out = append(out, envoyComponents(r.cfg.Envoys.Proxies())...)
	if files := r.cfg.Primary.manager.DiscardFiles(); len(files) > 0 {
		out = append(out, api.ComponentStatus{Name: "discarded writes", State: "saved", Detail: fmt.Sprintf(
			"%d files on this server with writes that %s acknowledged as the primary and discarded: compare each with: "+
				"wanfed resource apply --dry-run -f %s; apply or remove it", len(files), r.cfg.DC, files[0])})
	}
	return out
}

// okOr returns "ok" if err is nil, and otherwise state.
func okOr(state string, err error) string {
	if err == nil {
		return "ok"
	}
	return state
}

// poolComponent returns the status of a gossip pool. It ignores members that
// left. The argument command shows the members.
func poolComponent(name string, members []gossip.Member, command string) api.ComponentStatus {
	known, failed := 0, []string{}
	for _, m := range members {
		if m.Status == gossip.StatusLeft {
			continue
		}
		if known++; !m.Alive() {
			failed = append(failed, m.Name)
		}
	}
	c := api.ComponentStatus{Name: name, State: "ok"}
	c.Detail = fmt.Sprintf("%d of %d members alive", known-len(failed), known)
	if len(failed) > 0 {
		c.State = "members failed"
		c.Detail += fmt.Sprintf("; failed: %s (see: %s)", list(failed), command)
	}
	return c
}

// errorOrAge returns the text of err. Without an error, it returns the event
// with the time since at, or "" if at is zero.
func errorOrAge(err error, at time.Time, event string) string {
	switch {
	case err != nil:
		return rpctext.Plain(err.Error())
	case at.IsZero():
		return ""
	}
	return fmt.Sprintf("%s %s ago", event, time.Since(at).Round(time.Second))
}

// raftState returns the state of the Raft group as this server sees it. The
// argument expect is the bootstrap_expect of the datacenter.
func raftState(leader string, voters []string, expect int, lan []gossip.Member) (state, detail string) {
	running, votersUp := 0, 0
	for _, m := range lan {
		if !m.Alive() {
			continue
		}
		running++
		if slices.Contains(voters, m.Name) {
			votersUp++
		} else if expect == 1 && m.Tags[operator.TagExpect] == "1" && len(voters) > 0 {
			return "split", fmt.Sprintf("%s was started to form a group alone, and is not in the group of this "+
				"server (%d voters): "+
				"restart one of the two with an empty data directory and --retry-join", m.Name, len(voters))
		}
	}
	switch needed := len(voters)/2 + 1; {
	case len(voters) == 0 && expect == 0:
		return "no leader", fmt.Sprintf("in no group yet: %d other servers are alive in the LAN pool; "+
			"the leader of the datacenter adds this server: check retry_join, or set bootstrap_expect to form a new "+
			"datacenter",
			max(running-1, 0))
	case len(voters) == 0 && running < expect:
		return "no leader", fmt.Sprintf("in no group yet: %d servers are needed (bootstrap_expect), and %d run: "+
			"start the other servers, with retry_join", expect, running)
	case leader == "" && len(voters) > 0 && votersUp < needed:
		return "no leader",
			fmt.Sprintf("%d of %d voters alive, and %d are needed: start the other voters (see: wanfed members)",
				votersUp, len(voters), needed)
	}
	state, detail = "ok", fmt.Sprintf("%d voters", len(voters))
	if len(voters) == 1 {
		detail = "1 voter"
	}
	if leader == "" {
		state, leader = "no leader", "none"
	}
	return state, fmt.Sprintf("leader %s, %s", leader, detail)
}

// replicatedTypes returns the replicated types, at the leader of a secondary.
func (r *Reporter) replicatedTypes(ctx context.Context) ([]api.ReplicatedType, error) {
	manager := r.cfg.Primary.manager
	if manager.IsPrimary() || !r.cfg.Store.IsLeader() {
		return nil, nil
	}
	types, err := manager.Follower().TypeStatuses(ctx)
	if err != nil {
		return nil, err
	}
	st := manager.Follower().Status()
	out := make([]api.ReplicatedType, 0, len(types))
	for _, t := range types {
		rt := api.ReplicatedType{
			Type: t.Type, Known: t.Known, Records: t.Records, PrimaryRecords: t.Primary, UnknownRecords: t.Unknown,
			PrimaryIndex: t.Index, Changes: t.Changes, ReceivedBytes: t.Bytes,
		}
		if !st.LastContact.IsZero() {
			rt.Lag = api.SecondsPtr(lag(st.Connected, st.LastContact))
		}
		if !t.Changed.IsZero() {
			rt.LastChange = t.Changed
		}
		out = append(out, rt)
	}
	return out, nil
}

// replicationComponent returns the status of replication.
func (r *Reporter) replicationComponent() api.ComponentStatus {
	c := api.ComponentStatus{Name: "replication", State: "ok"}
	follower := r.cfg.Primary.manager.Follower()
	switch {
	case r.cfg.Primary.manager.IsPrimary():
		if reason := r.cfg.Source.RejectedBy(); reason != "" {
			return api.ComponentStatus{Name: c.Name, State: "refused", Detail: reason}
		}
		st := r.cfg.Source.Status()
		c.Detail = fmt.Sprintf("%d secondaries follow this server", st.Followers)
		if st.Followers == 1 {
			c.Detail = "1 secondary follows this server"
		}
	case !r.cfg.Store.IsLeader():
		c.Detail = "done by the leader"
	default:
		st := follower.Status()
		if !st.Connected {
			c.State = "not connected"
		}
		if c.Detail = errorOrAge(st.LastError, st.LastContact, "last contact"); st.LastError == nil && st.Connected {
			c.Detail = fmt.Sprintf("primary's index %d, %s", st.Index, c.Detail)
		} else {
			index := fmt.Sprintf("replicas have the primary's index %d", max(st.Index, follower.HighestIndex()))
			c.Detail = strings.TrimSuffix(index+"; "+c.Detail, "; ")
		}
		if st.Refused > 0 {
			c.State = "refuses records"
		}
	}
	return c
}

// lag returns the maximum age of the replicas. It is 0 while the stream is
// connected.
func lag(connected bool, last time.Time) time.Duration {
	if connected {
		return 0
	}
	return time.Since(last)
}
