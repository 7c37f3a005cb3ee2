// SPDX-License-Identifier: MPL-2.0

package checks

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// bench is a Runner of srv1 over a store in memory, with requests and reports
// that the test controls.
type bench struct {
	t     *testing.T
	store *resourcetest.Store
	stop  func() // ends Run and waits for it

	mu       sync.Mutex
	result   result
	block    chan struct{} // requests wait for it; nil: they do not
	requests map[string]int
	open     int // requests
	maxOpen  int
	reports  []catalog.CheckUpdate
	err      error // of reports
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOf(t, MaxChecks, MaxRequests)
}

// newBenchOf is newBench with limits.
func newBenchOf(t *testing.T, checks, requests int) *bench {
	t.Helper()
	b := &bench{
		t: t, store: resourcetest.NewStore(), requests: map[string]int{}, result: result{catalog.StatusPassing, "ok"},
	}
	runner, err := New(Config{
		Node: "srv1", Address: netip.MustParseAddr("192.0.2.1"), Backend: b.store, Report: b.report,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	runner.probe, runner.max, runner.requests = b.probe, checks, make(chan struct{}, requests)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		b.store.Close()
	})
	t.Cleanup(b.stop)
	return b
}

func (b *bench) probe(ctx context.Context, p *pb.Probe) result {
	b.mu.Lock()
	b.requests[p.GetTcp()]++
	b.open++
	b.maxOpen = max(b.maxOpen, b.open)
	got, block := b.result, b.block
	b.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	return got
}

// report writes to the store as the leader does.
func (b *bench) report(_ context.Context, u catalog.CheckUpdate) error {
	b.mu.Lock()
	err := b.err
	if err == nil {
		b.reports = append(b.reports, u)
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	r, err := b.store.Read(b.t.Context(), resource.Eventual, resource.ID(catalog.CheckType, catalog.CheckName(u.Node, u.CheckID)))
	if err != nil {
		return err
	}
	c, err := resource.Decode[*pb.Check](r)
	if err != nil {
		return err
	}
	c.Status, c.Output = u.Status, u.Output
	next, err := resource.WithData(r, c)
	if err != nil {
		return err
	}
	_, err = b.store.Commit(b.t.Context(), resource.PutOp(next, r.Version))
	return err
}

// set changes what requests and reports return.
func (b *bench) set(status string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result, b.err = result{status, status + " output"}, err
}

// counts returns the number of requests to a target, and the status of each
// report.
func (b *bench) counts(target string) (requests int, reports []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.reports {
		reports = append(reports, u.Status)
	}
	return b.requests[target], reports
}

// put registers a TCP check, whose target is its id with a port.
func (b *bench) put(node, id string, interval time.Duration, change func(c *pb.Check)) {
	b.t.Helper()
	c := &pb.Check{
		Node: node, CheckId: id, Status: catalog.StatusCritical, Type: catalog.TypeTCP,
		Probe: &pb.Probe{Tcp: id + ":80", Interval: durationpb.New(interval)},
	}
	if change != nil {
		change(c)
	}
	name := catalog.CheckName(node, id)
	version := ""
	r, err := resource.NewNamed(catalog.CheckType, name, resource.CheckUTF8Name, c)
	if old, readErr := b.store.Read(b.t.Context(), resource.Eventual, resource.ID(catalog.CheckType, name)); readErr == nil {
		r, err = resource.WithData(old, c)
		version = old.Version
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.store.Commit(b.t.Context(), resource.PutOp(r, version)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) remove(node, id string) {
	b.t.Helper()
	id2 := resource.ID(catalog.CheckType, catalog.CheckName(node, id))
	if _, err := b.store.Commit(b.t.Context(), resource.RemoveOp(id2, resource.AnyVersion)); err != nil {
		b.t.Fatal(err)
	}
}

// expect fails unless a target has had requests, and the reports have had these
// statuses since the start.
func (b *bench) expect(when, target string, requests int, reports ...string) {
	b.t.Helper()
	synctest.Wait()
	n, got := b.counts(target)
	if n != requests || fmt.Sprint(got) != fmt.Sprint(reports) {
		b.t.Errorf("%s: %d requests to %s with reports %v, want %d with %v", when, n, target, got, requests, reports)
	}
}

// TestRunner runs one check: the first request is within an interval, each
// further one is an interval later, and only changes are reported.
func TestRunner(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.put("srv1", "web", 10*time.Second, nil)
		b.put("srv2", "other", time.Second, nil)
		b.put("srv1", "ttl", time.Second, func(c *pb.Check) { c.Probe, c.Type = nil, catalog.TypeTTL })
		time.Sleep(10 * time.Second)
		b.expect("after an interval", "web:80", 1, "passing")
		time.Sleep(100 * time.Second)
		b.expect("after 11 intervals", "web:80", 11, "passing")
		b.set(catalog.StatusCritical, nil)
		time.Sleep(20 * time.Second)
		b.expect("after a failure", "web:80", 13, "passing", "critical")
		// Another client writes the status.
		b.put("srv1", "web", 10*time.Second, func(c *pb.Check) { c.Status = catalog.StatusPassing })
		time.Sleep(10 * time.Second)
		b.expect("after a write of another client", "web:80", 14, "passing", "critical", "critical")
		b.put("srv1", "web", time.Second, func(c *pb.Check) { c.Probe.Tcp, c.Status = "new:80", catalog.StatusCritical })
		time.Sleep(10 * time.Second)
		b.expect("after a new definition", "web:80", 14, "passing", "critical", "critical", "critical")
		b.expect("after a new definition", "new:80", 10, "passing", "critical", "critical", "critical")
		b.remove("srv1", "web")
		time.Sleep(10 * time.Second)
		b.expect("after a deletion", "new:80", 10, "passing", "critical", "critical", "critical")
		for _, target := range []string{"other:80", "ttl:80"} {
			if n, _ := b.counts(target); n != 0 {
				t.Errorf("%d requests to %s, want none", n, target)
			}
		}
		b.stop()
	})
}

// TestRunner_LeaderChange has no leader for a while. The requests go on as
// before, and the last result is reported once when there is a leader.
func TestRunner_LeaderChange(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		b.put("srv1", "web", 10*time.Second, nil)
		time.Sleep(20 * time.Second)
		b.expect("with a leader", "web:80", 2, "passing")
		b.set(catalog.StatusCritical, resource.ErrNotLeader)
		time.Sleep(30 * time.Second)
		b.expect("without a leader", "web:80", 5, "passing")
		b.set(catalog.StatusCritical, nil)
		time.Sleep(5 * time.Second) // less than an interval: the report is repeated
		n, _ := b.counts("web:80")
		b.expect("with a new leader", "web:80", n, "passing", "critical")
		time.Sleep(50 * time.Second)
		b.expect("later", "web:80", n+5, "passing", "critical")
		b.stop()
	})
}

// TestRunner_Limits runs many checks whose requests block.
func TestRunner_Limits(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBenchOf(t, 50, 8)
		b.block = make(chan struct{})
		for i := range 53 {
			b.put("srv1", fmt.Sprint(i), time.Second, func(c *pb.Check) { c.Probe.Timeout = durationpb.New(time.Minute) })
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.mu.Lock()
		open := b.maxOpen
		b.mu.Unlock()
		if open != 8 {
			t.Errorf("%d requests at a time, want 8", open)
		}
		if _, reports := b.counts(""); fmt.Sprint(reports) != "[critical critical critical]" {
			t.Errorf("reports = %.200v, want three checks beyond the limit as critical", reports)
		}
		b.stop()
	})
}

func TestThresholds(t *testing.T) {
	for _, tt := range []struct {
		probe      *pb.Probe
		in, status string // p, w and c; "-": the status stays
	}{
		{&pb.Probe{}, "pcwcp", "pcwcp"},
		{&pb.Probe{SuccessBeforePassing: 3, FailuresBeforeCritical: 2}, "pppcpccppp", "--p--" + "-c--p"},
		{&pb.Probe{FailuresBeforeWarning: 1, FailuresBeforeCritical: 3}, "pcccc", "pwwcc"},
		{&pb.Probe{FailuresBeforeCritical: 2}, "cpcc", "-p-c"},
	} {
		names := map[rune]string{'p': catalog.StatusPassing, 'w': catalog.StatusWarning, 'c': catalog.StatusCritical}
		got := ""
		state := thresholds{probe: tt.probe}
		for _, in := range tt.in {
			r, ok := state.add(result{status: names[in]})
			if !ok {
				got += "-"
			} else {
				got += r.status[:1]
			}
		}
		if got != tt.status {
			t.Errorf("thresholds of %v for %s = %s, want %s", tt.probe, tt.in, got, tt.status)
		}
	}
}
