// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

var queueType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Item"}

// testQueue is a queue whose get must not block.
type testQueue struct {
	*queue
	t *testing.T
}

func newTestQueue(t *testing.T, r Retry) testQueue {
	q := newQueue(r.withDefaults())
	t.Cleanup(q.close)
	return testQueue{q, t}
}

func (q testQueue) put(c class, names ...string) {
	for _, n := range names {
		q.add(c, resource.ID(queueType, n))
	}
}

// take returns the next n items.
func (q testQueue) take(n int) (items []*item, names string) {
	q.t.Helper()
	var all []string
	for range n {
		if depth, _, _ := q.load(); depth == 0 {
			q.t.Fatalf("queue after %v is empty, want %d items", all, n)
		}
		it, _ := q.get()
		items = append(items, it)
		all = append(all, it.id.Name)
	}
	return items, strings.Join(all, " ")
}

func (q testQueue) wantDepth(want int) {
	q.t.Helper()
	synctest.Wait()
	if got, _, _ := q.load(); got != want {
		q.t.Errorf("depth = %d, want %d", got, want)
	}
}

func TestQueue_DeduplicatesAndRunsAnItemOnce(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{})
		q.put(foreground, "a", "b", "a", "b")
		q.wantDepth(2)
		items, names := q.take(2)
		if names != "a b" {
			t.Errorf("items = %s, want a b", names)
		}
		q.put(foreground, "a", "a")
		q.wantDepth(0) // a is busy
		q.done(items[0], Result{}, nil)
		q.wantDepth(1)
		q.done(items[1], Result{}, nil)
		items, _ = q.take(1)
		q.done(items[0], Result{}, nil)
		if len(q.items) != 0 || len(q.running) != 0 {
			t.Errorf("items = %d, running = %d, want 0, 0", len(q.items), len(q.running))
		}
	})
}

func TestQueue_Fairness(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{})
		q.put(foreground, "hot", "a", "b")
		for _, want := range []string{"hot", "a", "b", "hot", "hot"} {
			items, name := q.take(1)
			if name != want {
				t.Errorf("next = %s, want %s", name, want)
			}
			q.done(items[0], Result{RequeueNow: name == "hot"}, nil)
		}
		items, _ := q.take(1)
		q.done(items[0], Result{}, nil)

		for i := range 20 { // ids of a resync
			q.put(background, fmt.Sprintf("bg%d", i))
			q.put(foreground, fmt.Sprintf("fg%d", i))
		}
		q.put(foreground, "bg19") // a change raises the class
		_, names := q.take(40)
		if want := "bg0"; strings.Index(names, want) > strings.Index(names, "fg8") || strings.Count(names, "bg19") != 1 {
			t.Errorf("items = %s, want %s among the first eight, and bg19 once", names, want)
		}
		if strings.Index(names, "bg19") > strings.Index(names, "bg5 ") {
			t.Errorf("items = %s, want bg19 before bg5", names)
		}
	})
}

func TestQueue_BackoffPerItem(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{Min: time.Second, Max: 5 * time.Second, PerSecond: -1})
		q.put(foreground, "a")
		for _, want := range []time.Duration{1, 2, 4, 5, 5} {
			items, _ := q.take(1)
			got := q.done(items[0], Result{}, errors.New("failed"))
			if want *= time.Second; got < want || got >= want+want/4 {
				t.Errorf("delay = %v, want %v plus up to a quarter", got, want)
			}
			q.put(foreground, "b") // another id is not delayed
			items, name := q.take(1)
			if q.done(items[0], Result{}, nil); name != "b" {
				t.Errorf("next = %s, want b", name)
			}
			time.Sleep(got)
			q.wantDepth(1)
		}
		items, _ := q.take(1)
		q.done(items[0], Result{}, nil) // a success ends the backoff
		q.put(foreground, "a")
		items, _ = q.take(1)
		if got := q.done(items[0], Result{}, errors.New("failed")); got >= 2*time.Second {
			t.Errorf("delay after a success = %v, want about 1s", got)
		}
		q.put(foreground, "a") // a change is not delayed by the backoff
		q.wantDepth(1)
	})
}

func TestQueue_RateLimit(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{Min: time.Millisecond, Max: time.Millisecond, PerSecond: 10, Burst: 5})
		for i := range 105 {
			q.put(foreground, fmt.Sprint(i))
		}
		items, _ := q.take(105)
		for _, it := range items {
			q.done(it, Result{}, errors.New("failed"))
		}
		time.Sleep(2 * time.Millisecond)
		q.wantDepth(5)
		time.Sleep(5 * time.Second)
		q.wantDepth(55)
		time.Sleep(5 * time.Second)
		q.wantDepth(105)
	})
}

func TestQueue_RequeueAfter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{})
		q.put(foreground, "a")
		items, _ := q.take(1)
		q.done(items[0], Result{RequeueAfter: time.Minute}, nil)
		time.Sleep(time.Minute - 1)
		q.wantDepth(0)
		time.Sleep(1 * time.Nanosecond)
		q.wantDepth(1)
		items, _ = q.take(1)
		q.done(items[0], Result{RequeueAfter: time.Minute}, nil)
		q.put(foreground, "a")
		items, _ = q.take(1)
		q.done(items[0], Result{}, nil) // replaces the earlier result
		time.Sleep(time.Hour)
		q.wantDepth(0)
	})
}

func TestQueue_CloseEndsGet(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{})
		done := make(chan *item)
		go func() { it, _ := q.get(); done <- it }()
		synctest.Wait()
		q.close()
		if it := <-done; it != nil {
			t.Errorf("get() = %v, want nil", it)
		}
	})
}

func TestMetrics(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		q := newTestQueue(t, Retry{})
		m := newMetrics("c")
		rt := &Runtime{controllers: []*runner{{Controller: &Controller{Name: "c", Managed: queueType}, metrics: m}}}
		m.started(q.queue)
		q.put(foreground, "a", "b", "c", "d")
		_, _ = q.take(2)
		time.Sleep(3 * time.Second)
		for range 60 {
			m.reconciled(time.Millisecond, time.Second, nil)
		}
		m.reconciled(time.Millisecond, time.Second, errors.New("failed"))
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(rt)
		families, err := registry.Gather()
		if err != nil {
			t.Fatalf("Gather() = %v, want nil", err)
		}
		got := map[string]float64{}
		for _, f := range families {
			metric := f.GetMetric()[0]
			got[strings.TrimPrefix(f.GetName(), "wanfed_controller_")] = metric.GetGauge().GetValue() +
				metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
		for name, want := range map[string]float64{
			"queue_depth": 2, "unfinished_work_seconds": 6, "longest_running_seconds": 3, "running": 1,
			"reconciles_total": 61, "reconcile_errors_total": 1, "retries_total": 1, "restarts_total": 0,
			"panics_total": 0, "queue_latency_seconds": 61, "reconcile_seconds": 61,
		} {
			if got[name] != want {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
		st := rt.Status()[0]
		if st.Queued != 2 || st.LastError != "failed" || st.Rate < 1 || st.Rate > 1.1 {
			t.Errorf("Status() = %+v, want 2 queued, the last error, about 1 reconcile per second", st)
		}
		time.Sleep(10 * time.Minute)
		if rate := rt.Status()[0].Rate; rate > 0.001 {
			t.Errorf("rate after 10 idle minutes = %v, want about 0", rate)
		}
	})
}
