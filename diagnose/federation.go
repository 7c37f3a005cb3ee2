// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/api"
)

const (
	// maxSkew is the difference of two clocks from which on it is a warning.
	// From failSkew on, new certificates may not be valid.
	maxSkew, failSkew = 5 * time.Second, time.Minute
	// maxViews bounds the datacenters whose status is requested.
	maxViews = 32
)

// requestStatus requests the status of the server, and reports whether it
// responded.
func (r *run) requestStatus(ctx context.Context) (st api.Status, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sent := time.Now()
	st, err := r.Client.Status(ctx, api.QueryOptions{})
	const check = "server"
	addr := r.Client.Addr()
	unreachable, isUnreachable := errors.AsType[*api.UnreachableError](err)
	switch {
	case err == nil:
		r.add(rankFiles, OK, check, fmt.Sprintf("%s of %s, version %s, at %s", st.Node, st.Datacenter, st.Version, addr), "")
		r.checkClock(st, sent, time.Now())
		return st, true
	case isUnreachable && (errors.Is(unreachable.Err, syscall.ECONNREFUSED) || errors.Is(unreachable.Err, syscall.ENOENT)):
		r.add(rankFiles, Warn, check, "no server runs at "+addr, "start it: wanfed server; or set --http-addr")
	case ctx.Err() != nil:
		r.add(rankFiles, Fail, check, addr+" accepts connections and does not respond",
			"the server is stuck or overloaded: read its log, and restart it")
	case isUnreachable && errors.Is(unreachable.Err, io.EOF):
		r.add(rankFiles, Fail, check, describe(err), "check which program listens there, or set --http-addr")
	default:
		r.add(rankFiles, Fail, check, describe(err), "check --http-addr and the certificate files")
	}
	return api.Status{}, false
}

// checkClock compares the clock of the server that has sent st with that of this
// machine. The age of a federation state is measured by the clock of the server.
// sent and received are the times of the request and the response.
func (r *run) checkClock(st api.Status, sent, received time.Time) {
	i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool {
		return d.RecordAge != nil && !d.UpdatedAt.IsZero()
	})
	if i < 0 {
		return
	}
	d := st.Datacenters[i]
	now := d.UpdatedAt.Add(time.Duration(*d.RecordAge * float64(time.Second)))
	skew, direction := sent.Sub(now), "slow"
	if ahead := now.Sub(received); ahead > skew {
		skew, direction = ahead, "fast"
	}
	check := fmt.Sprintf("clock of %s in %s", st.Node, st.Datacenter)
	result := Fail
	switch {
	case skew < maxSkew:
		r.add(rankOther, OK, check, "equal to that of this machine", "")
		return
	case skew < failSkew:
		result = Warn
	}
	r.add(rankOther, result, check, fmt.Sprintf("%v %s, compared with this machine", skew.Round(time.Second), direction),
		"synchronize the clocks of both machines (NTP): certificates depend on them")
}

// reportStatus adds the causes and remedies of the status.
func (r *run) reportStatus(st api.Status) {
	headline := headlineCause(st)
	for _, d := range st.Datacenters {
		if !d.Own && !r.includes(d.Name) {
			continue
		}
		rank, result, check := rankStatus, Warn, "status of "+d.Name
		switch d.Health() {
		case api.HealthOK:
			r.add(rank, OK, check, "ok", "")
			continue
		case api.HealthOneWay, api.HealthUnreachable:
			result = Fail
		}
		if d.Own && d.GatewaysHealthy == 0 {
			result = Fail // no datacenter can connect
		}
		if d.Cause == headline {
			rank = rankHeadline
		}
		r.add(rank, result, check, fmt.Sprintf("%s: %s", d.Health(), d.Cause), d.Advice)
	}
	for _, c := range st.Components {
		if c.State != "ok" && c.State != "" {
			r.add(rankOther, Warn, fmt.Sprintf("%s of %s", c.Name, st.Node), c.State, c.Detail)
		}
	}
}

// headlineCause returns the cause in the headline, which ends with it, or "". Of
// causes that end with each other, it is the longest.
func headlineCause(st api.Status) (cause string) {
	for _, d := range st.Datacenters {
		if strings.HasSuffix(st.Headline, d.Cause) && len(d.Cause) > len(cause) {
			cause = d.Cause
		}
	}
	return cause
}

// checkVersions compares the versions of all servers.
func (r *run) checkVersions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	members, err := r.Client.Members(ctx, true, api.QueryOptions{})
	if err != nil {
		return // the server has stopped since its status
	}
	byVersion, versions := map[string][]string{}, []string{}
	for _, m := range members {
		if m.Status != api.MemberAlive || !r.includes(m.Datacenter()) {
			continue
		}
		if byVersion[m.Build()] == nil {
			versions = append(versions, m.Build())
		}
		byVersion[m.Build()] = append(byVersion[m.Build()], m.Name)
	}
	slices.SortFunc(versions, func(a, b string) int { return len(byVersion[a]) - len(byVersion[b]) })
	switch len(versions) {
	case 0:
	case 1:
		r.add(rankOther, OK, "versions", fmt.Sprintf("all %d servers have %s", len(byVersion[versions[0]]), versions[0]), "")
	default:
		few := versions[0]
		r.add(rankOther, Warn, "versions", fmt.Sprintf("%s has %s, and %d servers have %s", byVersion[few][0], few,
			len(byVersion[versions[len(versions)-1]]), versions[len(versions)-1]), "complete the upgrade of all servers")
	}
}

// view is the status of another datacenter.
type view struct {
	dc             string
	status         api.Status
	sent, received time.Time
	err            error
}

// requestViews requests the status of other datacenters through the local
// server.
func (r *run) requestViews(ctx context.Context, st api.Status) []view {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var all sync.WaitGroup
	var views []view
	for _, d := range st.Datacenters {
		if !d.Own && r.includes(d.Name) && len(views) < maxViews {
			views = append(views, view{dc: d.Name})
		}
	}
	for i := range views {
		all.Go(func() {
			v := &views[i]
			v.sent = time.Now()
			v.status, v.err = r.Client.Status(ctx, api.QueryOptions{Datacenter: v.dc})
			v.received = time.Now()
		})
	}
	all.Wait()
	return views
}

// reportViews adds what other datacenters report about this one. The views of
// datacenters that no path reaches have no information.
func (r *run) reportViews(st api.Status, views []view, probes map[string][]probe) {
	for _, v := range views {
		if ps := probes[v.dc]; len(ps) > 0 && !works(ps) && !r.Machine.isForeign() {
			continue
		}
		check := fmt.Sprintf("path from %s", v.dc)
		if v.err != nil {
			r.add(rankRemote, Warn, check, describe(v.err), "see the status of "+v.dc)
			continue
		}
		r.checkClock(v.status, v.sent, v.received)
		i := slices.IndexFunc(v.status.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == st.Datacenter })
		if i < 0 {
			r.add(rankRemote, Fail, check, fmt.Sprintf("%s does not know the datacenter %s", v.dc, st.Datacenter),
				"check that a gateway of this datacenter runs, and that both have one primary: wanfed status")
			continue
		}
		switch d := v.status.Datacenters[i]; {
		case d.Outbound == api.DirectionFailing:
			r.add(rankRemote, Fail, check, fmt.Sprintf("%s does not reach %s: %s", v.dc, st.Datacenter, d.Cause), d.Advice)
		case d.UpdatedAt.IsZero():
			r.add(rankRemote, Warn, check, fmt.Sprintf("%s has no federation state of %s", v.dc, st.Datacenter),
				"check that a gateway of this datacenter runs, and that the primary is reachable")
		case d.Outbound == api.DirectionOK:
			r.add(rankRemote, OK, check, fmt.Sprintf("%s knows %s, and reaches it", v.dc, st.Datacenter), "")
		default:
			r.add(rankRemote, OK, check, fmt.Sprintf("%s knows %s, and has no recent result of a path", v.dc, st.Datacenter), "")
		}
	}
}
