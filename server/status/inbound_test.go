// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

func TestInboundReports(t *testing.T) {
	var i inboundReports
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	received := map[string]time.Time{}
	last := func(dc string) time.Time { return received[dc] }
	dcs := []string{"dc3", "dc2", "dc1"}
	wantSilent := func(s int, want ...string) {
		t.Helper()
		if got := i.silent(dcs, "dc2", 5*time.Second, last, at(s)); !slices.Equal(got, want) {
			t.Errorf("silent() after %d s = %v, want %v", s, got, want)
		}
	}
	wantReports := func(s int, want ...api.Direction) {
		t.Helper()
		var got []api.Direction
		for _, r := range i.all([]string{"dc1", "dc2"}, last, at(s)) {
			got = append(got, r.direction)
		}
		if !slices.Equal(got, want) {
			t.Errorf("all() after %d s = %v, want %v", s, got, want)
		}
	}
	wantSilent(0)                      // new datacenters are not silent
	wantReports(1)                     // and nothing is known about them
	wantSilent(6, "dc2", "dc1", "dc3") // the primary comes first
	received["dc1"], received["dc3"] = at(7), at(7)
	wantSilent(7, "dc2")
	wantReports(7, api.DirectionOK)
	i.record(pathReport{dc: "dc2", direction: api.DirectionOK}, at(7))
	wantReports(8, api.DirectionOK, api.DirectionOK)
	wantSilent(8) // the pause
	wantSilent(9, "dc2")
	i.record(pathReport{dc: "dc2", direction: api.DirectionFailing}, at(9))
	wantReports(10, api.DirectionOK, api.DirectionFailing)
	wantReports(19) // all are too old
	wantSilent(19, "dc2", "dc1", "dc3")
	received["dc2"] = at(20)
	wantSilent(20, "dc1", "dc3")
	wantReports(20, api.DirectionOK)
}

// TestInboundReports_Requests checks that requests wait at the other server
// unless many datacenters are silent, that a datacenter has one request at a
// time, and that all have maxRequests.
func TestInboundReports_Requests(t *testing.T) {
	var i inboundReports
	now := time.Unix(1000, 0)
	never := func(string) time.Time { return time.Time{} }
	dcs := []string{"dc2", "dc3", "dc4", "dc5"}
	i.silent(dcs, "", 5*time.Second, never, now)
	now = now.Add(minSilence)
	begin := func(dc string, silent int, wantWait time.Duration, want bool) {
		t.Helper()
		if wait, ok := i.begin(dc, silent, now); wait != wantWait || ok != want {
			t.Errorf("begin(%s, %d) = %v, %v, want %v, %v", dc, silent, wait, ok, wantWait, want)
		}
	}
	begin("dc2", 4, 0, true)
	begin("dc3", 3, maxReportWait, true)
	begin("dc4", 3, maxReportWait, true)
	begin("dc5", 3, 0, false)
	if got, want := i.silent(dcs, "", 5*time.Second, never, now), []string{"dc5"}; !slices.Equal(got, want) {
		t.Errorf("silent() with three requests = %v, want %v", got, want)
	}
	i.record(pathReport{dc: "dc2", direction: api.DirectionOK}, now)
	begin("dc5", 2, maxReportWait, true)
	now = now.Add(minReportPause)
	if got, want := i.silent(dcs, "", 5*time.Second, never, now), []string{"dc2"}; !slices.Equal(got, want) {
		t.Errorf("silent() after a response and a pause = %v, want %v", got, want)
	}
}

// TestInboundReports_Pace checks that requests to many datacenters begin one after
// another.
func TestInboundReports_Pace(t *testing.T) {
	var i inboundReports
	now := time.Unix(1000, 0)
	dcs := make([]string, 100)
	for n := range dcs {
		dcs[n] = fmt.Sprint("dc", n)
	}
	i.silent(dcs, "", 5*time.Second, func(string) time.Time { return time.Time{} }, now)
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {0, true}, {0, true}, {0, false}, {24 * time.Second, false}, {time.Second, true}} {
		now = now.Add(step.after)
		dcs = dcs[1:]
		_, ok := i.begin(dcs[0], 100, now)
		i.record(pathReport{dc: dcs[0], direction: api.DirectionUnknown}, now)
		if ok != step.want {
			t.Errorf("begin() %v later = %v, want %v", step.after, ok, step.want)
		}
	}
}

// TestAwaitFailing checks that a report waits until the paths fail, and no longer
// than it may.
func TestAwaitFailing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		start := time.Now()
		report := func() *pb.ReachabilityResponse {
			resp := &pb.ReachabilityResponse{State: pb.ReachabilityResponse_STATE_OK}
			if time.Since(start) >= silentAfter {
				resp.State = pb.ReachabilityResponse_STATE_FAILING
			}
			return resp
		}
		for _, want := range []struct {
			wait, took time.Duration
			state      pb.ReachabilityResponse_State
		}{
			{0, 0, pb.ReachabilityResponse_STATE_OK},
			{time.Second, time.Second, pb.ReachabilityResponse_STATE_OK},
			{maxReportWait, silentAfter, pb.ReachabilityResponse_STATE_FAILING},
		} {
			start = time.Now()
			got := awaitFailing(t.Context(), want.wait, report)
			if took := time.Since(start); got.State != want.state || took != want.took {
				t.Errorf("with wait %v: %v after %v, want %v after %v", want.wait, got.State, took, want.state, want.took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		awaitFailing(ctx, maxReportWait, report)
		if took := time.Since(start); took != time.Second {
			t.Errorf("a caller that is gone after 1 s: %v, want 1s", took)
		}
	})
}

// TestInboundReports_Many checks that a silent datacenter among many is noticed
// when its echo request is late, and that no datacenter is silent because a peer
// with many links sends few echo requests.
func TestInboundReports_Many(t *testing.T) {
	var i inboundReports
	var dcs []string
	for n := range 40 {
		dcs = append(dcs, fmt.Sprintf("dc%d", n+2))
	}
	start := time.Unix(1000, 0)
	now := start
	last := func(dc string) time.Time {
		if dc == "dc9" {
			return start
		}
		return now
	}
	for _, step := range []struct {
		after, echo time.Duration
		want        []string
	}{
		{0, 5 * time.Second, nil},
		{6 * time.Second, 5 * time.Second, nil},
		{8 * time.Second, 5 * time.Second, []string{"dc9"}},
		{8 * time.Second, 10 * time.Second, nil},
		{13 * time.Second, 10 * time.Second, []string{"dc9"}},
	} {
		now = start.Add(step.after)
		if got := i.silent(dcs, "", step.echo, last, now); !slices.Equal(got, step.want) {
			t.Errorf("silent() after %v with echoes every %v = %v, want %v", step.after, step.echo, got, step.want)
		}
	}
}

// TestInboundReports_Start checks that datacenters that start together are not
// silent at once.
func TestInboundReports_Start(t *testing.T) {
	var i inboundReports
	var dcs []string
	for n := range 40 {
		dcs = append(dcs, fmt.Sprintf("dc%d", n+2))
	}
	never := func(string) time.Time { return time.Time{} }
	start := time.Unix(1000, 0)
	i.silent(dcs, "", 5*time.Second, never, start)
	if got := i.silent(dcs, "", 5*time.Second, never, start.Add(19*time.Second)); len(got) != 0 {
		t.Errorf("silent() after 19 s = %v, want none", got)
	}
	if got := i.silent(dcs, "", 5*time.Second, never, start.Add(20*time.Second)); len(got) != 40 {
		t.Errorf("silent() after 20 s = %d datacenters, want 40", len(got))
	}
}

// TestInboundReports_Pause checks that the requests to a datacenter whose
// packets arrive at another server become rare.
func TestInboundReports_Pause(t *testing.T) {
	var i inboundReports
	never := func(string) time.Time { return time.Time{} }
	now, requests := time.Unix(1000, 0), 0
	for end := now.Add(5 * time.Minute); now.Before(end); now = now.Add(reportTick) {
		for _, dc := range i.silent([]string{"dc1"}, "dc1", 5*time.Second, never, now) {
			requests++
			i.record(pathReport{dc: dc, direction: api.DirectionOK}, now)
		}
		if requests > 0 && len(i.all([]string{"dc1"}, never, now)) != 1 {
			t.Fatalf("the report is missing after %v", now)
		}
	}
	if requests > 14 {
		t.Errorf("requests in 5 minutes = %d, want at most 14", requests)
	}
}

func TestReport(t *testing.T) {
	resp := newReport([]api.PathStatus{
		viaOwn(wanfed.PathFailing, wanfed.FailureUpstream), direct(dc3Addr, wanfed.FailureNoRoute),
		{Address: "192.0.2.1:1", Via: federation.ViaCached, Health: "failing", Failure: "timeout"},
	})
	want := pathReport{"dc1", api.DirectionFailing, []addressFailure{{dc3Addr, wanfed.FailureUpstream}}}
	if d := cmp.Diff(want, parseReport("dc1", resp), cmp.AllowUnexported(pathReport{}, addressFailure{})); d != "" {
		t.Errorf("parseReport() differs (-want +got):\n%s", d)
	}
	if got := parseReport("dc1", newReport([]api.PathStatus{viaOwn(wanfed.PathOK,
		"")})); got.direction != api.DirectionOK {
		t.Errorf("parseReport() = %+v, want ok", got)
	}
	if got := parseReport("dc1", nil); got.direction != api.DirectionUnknown {
		t.Errorf("parseReport(nil) = %+v, want unknown", got)
	}
	many := &pb.ReachabilityResponse{State: pb.ReachabilityResponse_STATE_FAILING}
	for n := range 100 {
		many.Failures = append(many.Failures, &pb.AddressFailure{Address: fmt.Sprintf("192.0.2.1:%d", n+1),
			Class: "\x1b[31mred"})
	}
	got := parseReport("dc1", many)
	if len(got.failures) != maxReported || got.failures[0].class != wanfed.FailureOther {
		t.Errorf("parseReport() = %+v, want %d failures of an unknown class", got, maxReported)
	}
}

// FuzzParseReport checks that no text of a peer reaches the status.
func FuzzParseReport(f *testing.F) {
	seed, err := proto.Marshal(&pb.ReachabilityResponse{State: 2, Failures: []*pb.AddressFailure{{Address: dc3Addr,
		Class: "timeout"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		resp := &pb.ReachabilityResponse{}
		if proto.Unmarshal(b, resp) != nil {
			return
		}
		r := parseReport("dc1", resp)
		if len(r.failures) > maxReported || r.direction == "" {
			t.Errorf("parseReport() = %+v, want a direction and at most %d failures", r, maxReported)
		}
		for _, a := range r.failures {
			if a.class != wanfed.FailureOther && !slices.Contains(wanfed.FailureClasses, a.class) || len(a.addr) > 300 {
				t.Errorf("parseReport() has the failure %+v, want a known class and an address of at most 300 bytes", a)
			}
		}
	})
}
