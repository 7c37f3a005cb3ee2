// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// Limit bounds the time of Run.
	Limit = 9500 * time.Millisecond
	// requestTimeout bounds one request to a server.
	requestTimeout = 3 * time.Second
	// settleTime bounds the time, from the start of Run, in which the probes and
	// the status must agree.
	settleTime = 9 * time.Second
	// settleTick is the interval of requests for the status in that time.
	settleTick = 250 * time.Millisecond
)

// Result is the result of one check.
type Result string

// The values of Result, in ascending severity.
const (
	OK   Result = "ok"
	Warn Result = "warn"
	Fail Result = "fail"
)

// Finding is one check with its result.
type Finding struct {
	Result Result `json:"result"`
	Check  string `json:"check"`
	// Cause is the cause of a warning or a failure. Otherwise it is what the
	// check found.
	Cause  string `json:"cause"`
	Remedy string `json:"remedy,omitempty"`

	rank rank
}

// rank orders findings of one result: a lower rank is closer to the cause.
type rank int

const (
	rankSettings rank = iota
	rankFiles
	rankMachine
	rankMTU
	rankHeadline
	rankStatus
	rankDatacenter
	rankPath
	rankRemote
	rankOther
)

// Report is the result of Run.
type Report struct {
	// Findings begin with failures. Warnings follow.
	Findings []Finding `json:"findings"`
	// Duration is the time that Run took, in seconds.
	Duration float64 `json:"duration"`
}

// Failed reports whether a check failed.
func (r Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Result == Fail })
}

// Config configures Run.
type Config struct {
	Machine Machine
	// Identity is used to connect to other datacenters if the machine has no
	// certificate. Default (nil): none.
	Identity *tlsutil.Identity
	// Client calls the server whose status is used. Required.
	Client *api.Client
	// Datacenters are the names of the datacenters to check. Default (nil): all
	// that the status and the settings contain.
	Datacenters []string
}

// run is the state of one Run. The fields below mu are guarded by it.
type run struct {
	Config
	start time.Time

	mu       sync.Mutex
	findings []Finding
}

func (r *run) add(rank rank, result Result, check, cause, remedy string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.findings = append(r.findings, Finding{result, check, cause, remedy, rank})
}

// Run checks the machine and the federation. It returns within Limit, or when
// ctx ends.
func Run(ctx context.Context, cfg Config) Report {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	r := &run{Config: cfg, start: time.Now()}
	r.findings = slices.Clone(cfg.Machine.findings)
	r.checkFiles()
	var local sync.WaitGroup // everything that runs next to the probes
	local.Go(func() { r.checkDisk(ctx) })

	st, serverRuns := r.requestStatus(ctx)
	local.Go(func() { r.checkPorts(ctx, serverRuns) })
	r.checkAddresses()
	var views []view
	local.Go(func() { views = r.requestViews(ctx, st) })
	probes := r.probeAll(ctx, r.knownPaths(st))
	settled := st
	if serverRuns {
		settled = r.settle(ctx, st, probes)
		r.reportStatus(settled)
		r.checkVersions(ctx)
	}
	r.reportPaths(settled, probes)
	local.Wait()
	r.reportViews(settled, views, probes)
	return Report{Findings: sorted(r.findings), Duration: time.Since(r.start).Seconds()}
}

var severity = map[Result]int{Fail: 0, Warn: 1, OK: 2}

// sorted returns the findings in the order of their importance.
func sorted(findings []Finding) []Finding {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(severity[a.Result], severity[b.Result]), cmp.Compare(a.rank, b.rank),
			strings.Compare(a.Check, b.Check))
	})
	return findings
}

// includes reports whether a datacenter is to be checked.
func (r *run) includes(dc string) bool {
	return len(r.Datacenters) == 0 || slices.Contains(r.Datacenters, dc)
}

// settle returns the status after it agrees with the probes about which
// datacenters are reachable. A status that disagrees is older than a fault.
// Without processes, this machine may lack routes that the servers have.
func (r *run) settle(ctx context.Context, st api.Status, probes map[string][]probe) api.Status {
	if r.Machine.isForeign() {
		return st
	}
	for time.Since(r.start) < settleTime && ctx.Err() == nil && !agree(st, probes) {
		backoff.Sleep(ctx, settleTick, nil)
		rctx, cancel := context.WithTimeout(ctx, requestTimeout)
		next, err := r.Client.Status(rctx, api.QueryOptions{})
		cancel()
		if err == nil {
			st = next
		}
	}
	return st
}

// agree reports whether st lists those datacenters as unreachable to which no
// probe succeeded. Open connections may work over a path with a small MTU.
func agree(st api.Status, probes map[string][]probe) bool {
	for _, d := range st.Datacenters {
		ps := probes[d.Name]
		if len(ps) > 0 && !slices.ContainsFunc(ps, probe.mtu) && works(ps) == (d.Health() == api.HealthUnreachable) {
			return false
		}
	}
	return true
}
