// SPDX-License-Identifier: MPL-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/wanfed"
)

// facts are the inputs of evaluate for one datacenter. evaluate is a pure
// function of them: the status page, the HTTP endpoint and the metrics have its
// result.
type facts struct {
	// DatacenterStatus has the counts and the paths. Its Own and Primary are
	// set.
	api.DatacenterStatus
	// local is the datacenter of the responding server.
	local string
	// conflict is the remedy for two datacenters that claim one name or that
	// name different primaries, or "".
	conflict string
	// unused are addresses of another datacenter that local gateways or servers
	// also have.
	unused []federation.UnusedAddress
	// hasState reports whether the datacenter has a federation state.
	hasState bool
	// raft is the component of the Raft group. Only the local datacenter has
	// it.
	raft api.ComponentStatus
	// gateways are the gateways of the local datacenter.
	gateways []gatewayFact
	// refused has the reasons why gateways of the local datacenter cannot
	// register, by node. Only the leader has them.
	refused map[string]string
	// reports are reports of other datacenters about their paths to the local
	// datacenter. The local datacenter has all reports, and another datacenter
	// has its own report.
	reports []pathReport
}

// gatewayFact is what the catalog or a federation state has about a gateway.
type gatewayFact struct {
	node, wan string
	healthy   bool
	conflict  string // addresses of a refused gateway with the same name, or ""
}

// pathReport describes how the servers of datacenter dc reach the local
// datacenter.
type pathReport struct {
	dc        string
	direction api.Direction
	failures  []addressFailure
}

// addressFailure is a gateway address of the local datacenter that a datacenter
// cannot use.
type addressFailure struct {
	addr  string
	class wanfed.FailureClass
}

// evaluate returns the status of a datacenter with its directions, its state,
// the cause and the remedy.
func evaluate(f facts) api.DatacenterStatus {
	d := f.DatacenterStatus
	switch {
	case d.Own:
		d.State, d.Cause, d.Advice = f.here()
	default:
		d.Outbound, d.Inbound = outbound(d.Paths), inbound(f.reports)
		d.State, d.Cause, d.Advice = f.remote(d.Outbound, d.Inbound)
	}
	return d
}

// here evaluates the local datacenter.
func (f facts) here() (state api.Health, cause, advice string) {
	critical := slices.DeleteFunc(slices.Clone(f.gateways), func(g gatewayFact) bool { return g.healthy })
	names := make([]string, len(critical))
	for i, g := range critical {
		names[i] = g.node
	}
	switch {
	case f.conflict != "":
		return api.HealthDegraded, "another datacenter is in conflict with " + f.Name, f.conflict
	case f.raft.State != "ok" && f.raft.State != "":
		return api.HealthDegraded, "the Raft group is not ok: " + f.raft.State, f.raft.Detail
	case len(f.refused) > 0:
		node := slices.Min(slices.Collect(maps.Keys(f.refused)))
		cause, advice, _ := strings.Cut(f.refused[node], ": ")
		return api.HealthDegraded, fmt.Sprintf("the gateway %s cannot register: %s", node, cause), advice
	case len(f.gateways) == 0:
		return api.HealthDegraded, f.Name + " has no gateway", fmt.Sprintf(
			"start a gateway here: wanfed gateway --dc %s --node gw1 --server ADDR --lan ADDR --wan ADDR …", f.Name)
	case len(critical) == len(f.gateways):
		return api.HealthDegraded, fmt.Sprintf("no gateway of %s is healthy: %s", f.Name, list(names)),
			"start a gateway, or read its log for the reason why it cannot register"
	}
	if i := slices.IndexFunc(f.gateways, func(g gatewayFact) bool { return g.conflict != "" }); i >= 0 {
		g := f.gateways[i]
		return api.HealthDegraded, "two gateways of " + f.Name + " are called " + g.node, fmt.Sprintf(
			"stop one of them, or give it another name and certificate: the one with WAN address %s is used, "+
				"and the one with %s is refused", g.wan, g.conflict)
	}
	if cause, advice := f.partialCause(); cause != "" && inbound(f.reports) != api.DirectionFailing {
		return api.HealthDegraded, cause, advice
	}
	if cause, advice := f.inboundCause(); cause != "" {
		if inbound(f.reports) == api.DirectionFailing {
			return api.HealthOneWay, cause, advice
		}
		return api.HealthDegraded, cause, advice
	}
	switch {
	case len(critical) > 0:
		return api.HealthDegraded, fmt.Sprintf("the gateway %s is critical", list(names)), "start it, or read its log"
	case f.ServersAlive < f.ServersKnown:
		return api.HealthDegraded, f.serversDown(), "see which servers are down: wanfed members --wan (" + f.Name + ")"
	}
	return api.HealthOK, "", ""
}

// remote evaluates another datacenter.
func (f facts) remote(out, in api.Direction) (state api.Health, cause, advice string) {
	switch {
	case f.conflict != "" && out == api.DirectionOK:
		return api.HealthDegraded, f.Name + " is in conflict with another datacenter", f.conflict
	case f.conflict != "":
		return api.HealthUnreachable, f.Name + " is in conflict with another datacenter", f.conflict
	case len(f.unused) > 0 && out != api.DirectionOK:
		cause, advice = f.unusedCause()
		return api.HealthUnreachable, cause, advice
	case len(f.Paths) == 0 && f.ServersAlive == 0:
		return api.HealthUnreachable, "no gateway of " + f.Name + " is known",
			"start a gateway there; if the datacenter was removed: " + removedAdvice(f.DatacenterStatus)
	case out == api.DirectionFailing:
		cause, advice = f.outboundCause()
		return api.HealthUnreachable, cause, advice
	case out == api.DirectionUnknown:
		return api.HealthUnknown, "no path to " + f.Name + " has a result that is new enough",
			"repeat the command in a minute"
	case in == api.DirectionFailing:
		cause, advice = f.inboundCause()
		return api.HealthOneWay, cause, advice
	case len(f.unused) > 0:
		cause, advice = f.unusedCause()
		return api.HealthDegraded, cause, advice
	case len(f.UnreachableGateways) > 0:
		cause, advice = f.partialCause()
		return api.HealthDegraded, cause, advice
	case f.ServersAlive == 0:
		return api.HealthDegraded, f.Name + " responds, but none of its servers is alive in the WAN pool",
			"read the last error, and the status of " + f.Name
	case f.ServersAlive < f.ServersKnown:
		return api.HealthDegraded, f.serversDown(), "see which servers are down: wanfed members --wan (" + f.Name + ")"
	case !f.hasState:
		return api.HealthDegraded, f.Name + " has written no federation state", "check that it has a gateway"
	case f.GatewaysKnown == 0:
		return api.HealthDegraded, f.Name + " has no gateway", "start a gateway there, or read its log"
	case f.GatewaysHealthy < f.GatewaysKnown:
		return api.HealthDegraded, fmt.Sprintf("%d of %d gateways of %s are healthy", f.GatewaysHealthy,
				f.GatewaysKnown, f.Name),
			"start a gateway there, or read its log"
	}
	return api.HealthOK, "", ""
}

// unusedCause returns the cause and the remedy if addresses of a datacenter are
// not used.
func (f facts) unusedCause() (cause, advice string) {
	u := f.unused[0]
	cause = fmt.Sprintf("the address %s of a gateway of %s is also the address of the %s of %s, and is not used",
		u.Addr, f.Name, u.Holder, f.local)
	if more := len(f.unused) - 1; more > 0 {
		cause += fmt.Sprintf("; %d more addresses are not used", more)
	}
	return cause, fmt.Sprintf("set wan of that gateway of %s to an address that %s reaches and does not use itself",
		f.Name, f.local)
}

func (f facts) serversDown() string {
	return fmt.Sprintf("%d of %d servers of %s are alive", f.ServersAlive, f.ServersKnown, f.Name)
}

// outbound returns the state of the paths to a datacenter. It is unknown while
// no path works and the result of a path is missing. Cached and unconfirmed addresses are tried
// only after the others, so their results are not awaited.
func outbound(paths []api.PathStatus) api.Direction {
	failing, missing := false, false
	for _, p := range paths {
		switch {
		case p.Health == string(wanfed.PathOK):
			return api.DirectionOK
		case p.Health == string(wanfed.PathFailing):
			failing = true
		case p.Via != federation.ViaCached && p.Via != federation.ViaUnconfirmed:
			missing = true
		}
	}
	if failing && !missing {
		return api.DirectionFailing
	}
	return api.DirectionUnknown
}

// inbound returns the state of the paths from other datacenters, according to
// their reports.
func inbound(reports []pathReport) api.Direction {
	in := api.DirectionUnknown
	for _, r := range reports {
		switch r.direction {
		case api.DirectionOK:
			return api.DirectionOK
		case api.DirectionFailing:
			in = api.DirectionFailing
		}
	}
	return in
}

// causeOrder lists the classes of failures, the most informative class first. A
// path that fails at a later step has more information about the cause.
var causeOrder = []wanfed.FailureClass{
	wanfed.FailureOtherCA, wanfed.FailureCertificate, wanfed.FailureUnknownName, wanfed.FailureUpstream,
	wanfed.FailureTimeout, wanfed.FailureClosed, wanfed.FailureRefused, wanfed.FailureResolve, wanfed.FailureOther,
	wanfed.FailureNoRoute,
}

func causeRank(p api.PathStatus) int {
	i := slices.Index(causeOrder, wanfed.FailureClass(p.Failure))
	if i < 0 {
		return len(causeOrder)
	}
	return i
}

// OutboundCause returns the cause and the remedy if no path of d, a datacenter
// other than local, works. At least one path is failing. Callers that probe
// paths without a server thus have the texts of the status.
func OutboundCause(local string, d api.DatacenterStatus) (cause, advice string) {
	return facts{DatacenterStatus: d, local: local}.outboundCause()
}

// outboundCause returns the cause and the remedy if no path to a datacenter
// works.
func (f facts) outboundCause() (cause, advice string) {
	var failing []api.PathStatus
	for _, p := range f.Paths {
		if p.Health == string(wanfed.PathFailing) {
			failing = append(failing, p)
		}
	}
	remote := remoteAddresses(f.Paths)
	worst := slices.MinFunc(failing, func(a, b api.PathStatus) int { return cmp.Compare(causeRank(a), causeRank(b)) })
	at := worst.Via + " " + worst.Address
	if worst.Via == federation.ViaLocalGateway && len(remote) > 0 {
		at = list(remote)
	}
	switch class := wanfed.FailureClass(worst.Failure); class {
	case wanfed.FailureOtherCA:
		return fmt.Sprintf("the certificates of %s and %s are signed by different CAs", f.local, f.Name),
			"all datacenters need certificates of one CA: compare the files of ca_file"
	case wanfed.FailureCertificate:
		return fmt.Sprintf("a certificate between %s and %s is not valid: %s", f.local, f.Name, worst.LastError),
			"check the clocks of both datacenters, the validity of the certificates, and that one CA signed them: " +
				"wanfed tls inspect"
	case wanfed.FailureUnknownName:
		if f.Primary {
			return fmt.Sprintf("the gateway at %s responds, but does not know the datacenter %s", at, f.Name),
				"check primary_datacenter: it must be the name of the datacenter of this gateway (see wanfed " +
					"status there)"
		}
		return fmt.Sprintf("the gateway at %s responds, but does not know the datacenter %s", at, f.Name),
			"check that the address belongs to a gateway of " + f.Name
	case wanfed.FailureRefused, wanfed.FailureNoRoute, wanfed.FailureTimeout, wanfed.FailureUpstream:
		if worst.Via == federation.ViaLocalGateway && class == wanfed.FailureRefused {
			return fmt.Sprintf("the local gateway %s does not accept connections: %s", worst.Address, class),
				"start the gateway, or read its log"
		}
	}
	cause = fmt.Sprintf("%s does not respond at %s: %s", f.Name, at, cmp.Or(worst.Failure, string(wanfed.FailureOther)))
	advice = fmt.Sprintf(
		"check that a gateway of %s listens there, that its servers run, and that no firewall is between",
		f.Name)
	if slices.ContainsFunc(remote, IsPrivate) {
		advice += "; " + list(slices.DeleteFunc(remote, func(a string) bool { return !IsPrivate(a) })) +
			" is a private address: set wan of that gateway to an address that other datacenters reach"
	}
	return cause, advice + "; if the datacenter was removed: " + removedAdvice(f.DatacenterStatus)
}

// remoteAddresses returns the addresses of the gateways of a datacenter: those
// that a source lists now, or the cached ones if there are none.
func remoteAddresses(paths []api.PathStatus) (addrs []string) {
	var cached []string
	for _, p := range paths {
		switch p.Via {
		case federation.ViaRemoteGateway, federation.ViaConfigured:
			addrs = append(addrs, p.Address)
		case federation.ViaCached:
			cached = append(cached, p.Address)
		}
	}
	if len(addrs) == 0 {
		return cached
	}
	return addrs
}

// inboundCause returns the cause and the remedy if other datacenters cannot
// connect to a gateway of the local datacenter. The cause is "" if they can.
func (f facts) inboundCause() (cause, advice string) {
	from, classes := map[string][]string{}, map[string][]string{} // names and classes, by address
	worst := ""
	for _, r := range f.reports {
		for _, a := range r.failures {
			from[a.addr] = append(from[a.addr], r.dc)
			if class := string(a.class); !slices.Contains(classes[a.addr], class) {
				classes[a.addr] = append(classes[a.addr], class)
			}
			if n, most := len(from[a.addr]), len(from[worst]); n > most || n == most && a.addr < worst {
				worst = a.addr
			}
		}
	}
	if worst == "" {
		if inbound(f.reports) != api.DirectionFailing {
			return "", ""
		}
		return fmt.Sprintf("%s cannot connect to %s", list(reporters(f.reports)), f.local),
			"check that a gateway of " + f.local + " runs and that its WAN port is open for the other datacenters"
	}
	gateway := "the gateway"
	if i := slices.IndexFunc(f.gateways, func(g gatewayFact) bool { return g.wan == worst }); i >= 0 {
		gateway = f.gateways[i].node
	}
	return cannotConnect(from[worst], gateway, worst, strings.Join(classes[worst], ", "))
}

// partialCause returns the cause and the remedy if other datacenters cannot
// connect to one gateway of a datacenter, and can connect to another one. The
// cause is "" if there is no such gateway.
func (f facts) partialCause() (cause, advice string) {
	if len(f.UnreachableGateways) == 0 {
		return "", ""
	}
	u := f.UnreachableGateways[0]
	cause, advice = cannotConnect(u.From, u.Gateway, u.Address, u.Failure)
	if more := len(f.UnreachableGateways) - 1; more > 0 {
		cause += fmt.Sprintf("; the same for %d more gateways", more)
	}
	return cause, advice
}

// cannotConnect returns the cause and the remedy if datacenters cannot connect
// to a gateway.
func cannotConnect(from []string, gateway, addr, class string) (cause, advice string) {
	cause = fmt.Sprintf("%s cannot connect to %s at %s: %s", list(from), gateway, addr, class)
	if IsPrivate(addr) {
		return cause + "; is it the private address of a NAT?",
			"set wan of the gateway to the address that other datacenters dial, and wan_bind to the local address"
	}
	return cause, "open this port in the firewall for the other datacenters, or correct wan of the gateway"
}

// unreachableGateways returns the gateways of datacenter dc to which other
// datacenters cannot connect, ordered by node. The argument gateways are all
// gateways of dc. Reports about an address that no healthy gateway has are old.
func unreachableGateways(
	dc string, gateways []gatewayFact, reports []federation.UnreachableGateway,
) (out []api.UnreachableGateway) {
	for _, g := range gateways {
		var u api.UnreachableGateway
		for _, r := range reports { // ordered by datacenter
			if g.healthy && r.DC == dc && r.Addr == g.wan && !slices.Contains(u.From, r.From) {
				u.Gateway, u.Address, u.Failure = g.node, g.wan, cmp.Or(u.Failure, string(r.Class))
				u.From = append(u.From, r.From)
			}
		}
		if len(u.From) > 0 {
			out = append(out, u)
		}
	}
	return out
}

func reporters(reports []pathReport) (dcs []string) {
	for _, r := range reports {
		if r.direction == api.DirectionFailing {
			dcs = append(dcs, r.dc)
		}
	}
	return dcs
}

// IsPrivate reports whether addr (host:port) is an IP address that is not
// routed on the Internet.
func IsPrivate(addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	return err == nil && (ap.Addr().IsPrivate() || ap.Addr().IsLoopback() || ap.Addr().IsLinkLocalUnicast())
}

// maxListed bounds the names in a sentence.
const maxListed = 4

// list joins names to "a, b and c".
func list(names []string) string {
	n := len(names)
	switch {
	case n > maxListed:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), n-maxListed)
	case n > 1:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

// severity orders the states. The headline has the worst state.
var severity = map[api.Health]int{
	api.HealthUnknown: 1, api.HealthDegraded: 2, api.HealthOneWay: 3, api.HealthUnreachable: 4,
}

// headline returns the state of the federation in one sentence. dcs begins with
// the local datacenter.
func headline(dcs []api.DatacenterStatus) string {
	worst, bad, unreachable := api.DatacenterStatus{State: api.HealthOK}, 0, 0
	for _, d := range dcs {
		if d.State == api.HealthUnreachable {
			unreachable++
		}
		if d.State != api.HealthOK {
			bad++
		}
		if severity[d.State] > severity[worst.State] {
			worst = d
		}
	}
	own := dcs[0]
	if own.State == api.HealthOneWay || own.State == api.HealthDegraded && own.GatewaysHealthy == 0 {
		worst = own // also the cause of the states of other datacenters
	}
	switch {
	case bad == 0 && len(dcs) == 1:
		return own.Name + " is ok; no other datacenter is known"
	case bad == 0:
		return fmt.Sprintf("all %d datacenters are ok", len(dcs))
	case worst.Own:
		return fmt.Sprintf("%s is %s: %s", worst.Name, worst.State, worst.Cause)
	case unreachable > 1 && unreachable == len(dcs)-1:
		return fmt.Sprintf("no other datacenter is reachable: %s", worst.Cause)
	case bad > 1:
		return fmt.Sprintf("%s is %s, and %d more are not ok: %s", worst.Name, worst.State, bad-1, worst.Cause)
	}
	return fmt.Sprintf("%s is %s: %s", worst.Name, worst.State, worst.Cause)
}

const (
	// silentAfter is the time without an echo on an open connection after which
	// its path is failing. An echo is requested every 3 s while packets are
	// sent. The time covers the retransmissions of TCP on a path with loss.
	silentAfter = 4 * time.Second
	// recentEcho is the time after an echo in which a failure of a call or a dial
	// does not count: the interval of echo requests and silentAfter.
	recentEcho = 3*time.Second + silentAfter
	// staleProbes is the number of probe intervals after which the result of a
	// path is unknown.
	staleProbes = 3
)
