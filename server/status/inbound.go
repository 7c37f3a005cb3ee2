// SPDX-License-Identifier: MPL-2.0

package status

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// reportTick is the interval of the checks for silent datacenters.
	reportTick = time.Second
	// minSilence is the time without a packet or echo from all other
	// datacenters after which they are silent.
	minSilence = 5 * time.Second
	// silencePerDC is the time without a packet after which one of many
	// datacenters is silent, per datacenter. Gossip reaches the members of a
	// large federation less often.
	silencePerDC = 2 * time.Second
	// With up to maxEchoed datacenters, each of them sends echo requests at the
	// interval of Tunnel.EchoInterval. One that exceeds the interval by
	// echoDelay is silent, if this time is shorter than that of silencePerDC.
	echoDelay = 2 * time.Second
	maxEchoed = 128
	// A datacenter that has never sent anything is not silent before startPerDC
	// multiplied by the number of datacenters. When many datacenters start
	// together, requests would open a session between each two of them.
	startPerDC = 500 * time.Millisecond
	// The pause between two requests for the report of a datacenter. It doubles
	// while the datacenter reports that it reaches the local one: its packets
	// then arrive at another server of the local datacenter.
	minReportPause, maxReportPause = 2 * time.Second, 30 * time.Second
	// reportTimeout bounds one request, without the time that the other server
	// waits.
	reportTimeout = 3 * time.Second
	// A datacenter that cannot connect to this one is silent before it knows
	// that its paths fail: it needs silentAfter from the echo request that does
	// not arrive. A request for its report therefore waits there.
	maxReportWait = silentAfter + time.Second
	// waitTick is the interval at which a server that waits looks at its paths.
	waitTick = 250 * time.Millisecond
	// maxRequests bounds the requests at one time. A fault of the local gateways
	// silences all datacenters, and a few reports are enough to describe it.
	maxRequests = 3
	// While more than maxUnpaced datacenters are silent, maxRequests begin per
	// requestPerDC and datacenter, or per maxRequestPause. On a busy machine all are
	// silent, and the requests of all servers would keep it busy.
	maxUnpaced      = 24
	requestPerDC    = 250 * time.Millisecond
	maxRequestPause = 30 * time.Second
	// maxReported bounds the addresses in a report.
	maxReported = 16
)

// inboundReports tracks whether other datacenters reach the local datacenter.
// Packets and echoes from a datacenter prove it. A silent datacenter is
// requested to report the state of its paths. Nothing is sent while no
// datacenter is silent.
type inboundReports struct {
	mu      sync.Mutex
	silence time.Duration // time without a packet after which a datacenter is silent
	began   time.Time     // first of the last requests while many are silent: see requestPerDC
	begun   int           // requests since then
	states  map[string]*inboundState
}

// inboundState is the state of one datacenter.
type inboundState struct {
	since   time.Time  // the datacenter became known
	last    time.Time  // last packet; zero: never
	report  pathReport // the last report; the direction is "" if there is none
	at      time.Time  // of report
	next    time.Time  // earliest time of the next request
	pause   time.Duration
	pending bool // a request has no response yet
}

// lastSign returns the time of the last packet, or that at which a datacenter
// without one became known.
func (s *inboundState) lastSign() time.Time {
	if s.last.IsZero() {
		return s.since
	}
	return s.last
}

// silent returns the silent datacenters whose next request is due: first, then
// the others by name. echo is Tunnel.EchoInterval.
func (i *inboundReports) silent(
	dcs []string, first string, echo time.Duration, lastReceived func(dc string) time.Time, now time.Time,
) (silent []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.states == nil {
		i.states = map[string]*inboundState{}
	}
	var newest time.Time
	for _, dc := range dcs {
		s := i.states[dc]
		if s == nil {
			s = &inboundState{since: now}
			i.states[dc] = s
		}
		if s.last = lastReceived(dc); s.lastSign().After(newest) {
			newest = s.lastSign()
		}
	}
	if len(i.states) > len(dcs) {
		maps.DeleteFunc(i.states, func(dc string, _ *inboundState) bool { return !slices.Contains(dcs, dc) })
	}
	i.silence = max(minSilence, time.Duration(len(dcs))*silencePerDC)
	if len(dcs) <= maxEchoed {
		i.silence = min(i.silence, echo+echoDelay)
	}
	if now.Sub(newest) >= minSilence {
		i.silence = minSilence
	}
	for _, dc := range dcs {
		switch s := i.states[dc]; {
		case now.Sub(s.lastSign()) < i.silence:
			*s = inboundState{since: s.since, last: s.last, pending: s.pending}
		case s.last.IsZero() && now.Sub(s.since) < time.Duration(len(dcs))*startPerDC:
		case !s.pending && !now.Before(s.next):
			silent = append(silent, dc)
		}
	}
	slices.Sort(silent)
	if j := slices.Index(silent, first); j > 0 {
		silent = slices.Insert(slices.Delete(silent, j, j+1), 0, first)
	}
	return silent
}

// record stores a report of a datacenter. A report with an unknown direction
// means that the request failed.
func (i *inboundReports) record(r pathReport, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.states[r.dc]
	if s == nil {
		return
	}
	if r.direction == api.DirectionFailing {
		s.pause = minReportPause
	} else {
		s.pause = min(max(2*s.pause, minReportPause), maxReportPause)
	}
	s.next, s.pending = now.Add(s.pause), false
	if r.direction != api.DirectionUnknown {
		s.report, s.at = r, now
	}
}

// busy reports whether no request may begin now.
func (i *inboundReports) busy(silent int, now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.busyLocked(silent, now)
}

func (i *inboundReports) busyLocked(silent int, now time.Time) bool {
	pause := min(time.Duration(len(i.states))*requestPerDC, maxRequestPause)
	if silent > maxUnpaced && i.begun >= maxRequests && now.Sub(i.began) < pause {
		return true
	}
	pending := 0
	for _, s := range i.states {
		if s.pending {
			pending++
		}
	}
	return pending >= maxRequests
}

// begin begins a request for the report of a datacenter, which record ends. It
// returns false if maxRequests have no response yet, or have begun a short time ago:
// see requestPerDC. The request waits at the other server for the time wait, unless
// more than maxRequests datacenters are silent.
func (i *inboundReports) begin(dc string, silent int, now time.Time) (wait time.Duration, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.states[dc]
	if s == nil || i.busyLocked(silent, now) {
		return 0, false
	}
	if i.begun >= maxRequests || i.began.IsZero() {
		i.began, i.begun = now, 0
	}
	i.begun++
	s.pending = true
	if silent > maxRequests {
		return 0, true
	}
	return maxReportWait, true
}

// all returns the reports of the datacenters that have one. Recent packets of a
// datacenter are a report. Reports that are too old are omitted.
func (i *inboundReports) all(dcs []string, lastReceived func(dc string) time.Time, now time.Time) (out []pathReport) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, dc := range dcs {
		s := i.states[dc]
		switch {
		case s == nil:
		case now.Sub(lastReceived(dc)) < i.silence:
			out = append(out, pathReport{dc: dc, direction: api.DirectionOK})
		case s.report.dc != "" && now.Sub(s.at) < staleProbes*max(s.pause, minReportPause)+reportTimeout:
			out = append(out, s.report)
		}
	}
	return out
}

// RunReports requests reports of silent datacenters until ctx ends, if this
// server reaches them.
func (r *Reporter) RunReports(ctx context.Context) error {
	var requests sync.WaitGroup
	defer requests.Wait()
	for ctx.Err() == nil {
		backoff.Sleep(ctx, reportTick, nil)
		dcs := slices.Collect(maps.Keys(r.cfg.Book.Load().Paths))
		silent := r.inbound.silent(dcs, r.cfg.Primary.manager.PrimaryDC(), r.cfg.Tunnel.EchoInterval(),
			r.cfg.Tunnel.LastReceived, time.Now())
		if len(silent) == 0 || r.inbound.busy(len(silent), time.Now()) {
			continue
		}
		links := r.links(silent...)
		for _, dc := range silent {
			if outbound(r.paths(dc, links[dc])) != api.DirectionOK {
				continue
			}
			if wait, ok := r.inbound.begin(dc, len(silent), time.Now()); ok {
				requests.Go(func() { r.request(ctx, dc, wait) })
			}
		}
	}
	return nil
}

// request requests and records the report of a datacenter, which may wait.
func (r *Reporter) request(ctx context.Context, dc string, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait+reportTimeout)
	defer cancel()
	req := &pb.ReachabilityRequest{Wait: durationpb.New(wait)}
	resp, _ := r.cfg.Server(dc).Reachability(ctx, req) // nil after an error: unknown
	r.inbound.record(parseReport(dc, resp), time.Now())
}

// Reachability returns the report of this server about its paths to datacenter
// dc, for a server of dc. While a path works it blocks: until no path works, ctx
// ends, or wait or maxReportWait is over.
func (r *Reporter) Reachability(ctx context.Context, dc string, wait time.Duration) *pb.ReachabilityResponse {
	report := func() *pb.ReachabilityResponse { return newReport(r.paths(dc, r.links(dc)[dc])) }
	return awaitFailing(ctx, min(wait, maxReportWait), report)
}

// awaitFailing calls report until its state is STATE_FAILING, ctx ends or wait is
// over, and returns the last result.
func awaitFailing(
	ctx context.Context, wait time.Duration, report func() *pb.ReachabilityResponse,
) *pb.ReachabilityResponse {
	for end := time.Now().Add(wait); ; backoff.Sleep(ctx, waitTick, nil) {
		resp := report()
		if resp.State == pb.ReachabilityResponse_STATE_FAILING || ctx.Err() != nil || !time.Now().Before(end) {
			return resp
		}
	}
}

func (r *Reporter) paths(dc string, link wanfed.LinkStatus) []api.PathStatus {
	return pathStatuses(r.cfg.Dialer.PathsTo(dc), nil, link, time.Now())
}

var reportStates = map[api.Direction]pb.ReachabilityResponse_State{
	api.DirectionOK:      pb.ReachabilityResponse_STATE_OK,
	api.DirectionFailing: pb.ReachabilityResponse_STATE_FAILING,
}

// newReport returns a report about paths. The class of an address is that of
// the path through a local gateway, if there is one: servers often cannot dial
// the address themselves.
func newReport(paths []api.PathStatus) *pb.ReachabilityResponse {
	resp := &pb.ReachabilityResponse{State: reportStates[outbound(paths)]}
	if resp.State != pb.ReachabilityResponse_STATE_FAILING {
		return resp
	}
	classes, local := map[string]string{}, ""
	for _, p := range paths {
		classes[p.Address] = p.Failure
		if p.Via == federation.ViaLocalGateway {
			local = p.Failure
		}
	}
	for _, addr := range remoteAddresses(paths) {
		if len(resp.Failures) < maxReported {
			failure := &pb.AddressFailure{Address: addr, Class: cmp.Or(local, classes[addr])}
			resp.Failures = append(resp.Failures, failure)
		}
	}
	return resp
}

// parseReport returns the report of datacenter dc. It bounds the addresses, and
// replaces unknown classes. A nil response has an unknown direction.
func parseReport(dc string, resp *pb.ReachabilityResponse) pathReport {
	r := pathReport{dc: dc, direction: api.DirectionUnknown}
	for direction, state := range reportStates {
		if resp.GetState() == state {
			r.direction = direction
		}
	}
	if r.direction != api.DirectionFailing {
		return r
	}
	for _, f := range resp.GetFailures()[:min(len(resp.GetFailures()), maxReported)] {
		class := wanfed.FailureClass(f.GetClass())
		if !slices.Contains(wanfed.FailureClasses, class) {
			class = wanfed.FailureOther
		}
		if netaddr.CheckHostPort(f.GetAddress()) == nil {
			r.failures = append(r.failures, addressFailure{f.GetAddress(), class})
		}
	}
	return r
}
