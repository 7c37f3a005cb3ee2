// SPDX-License-Identifier: MPL-2.0

package view

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

// mixed are queries of all kinds that the catalog and the keys have.
var mixed = []string{
	`{"kind":"services","names":["a","b"]}`,
	`{"kind":"services","regexp":"[bc]","userMeta":{"k":"v"}}`,
	`{"kind":"services","names":["a","c"],"filter":"Node.Meta.m == x or any Checks as c { c.Status != passing }"}`,
	`{"kind":"catalog-services","regexp":""}`,
	`{"kind":"catalog-services","regexp":"","nodeMeta":{"m":"x"}}`,
	`{"kind":"nodes"}`,
	`{"kind":"consul-kv","path":"k/","recurse":true}`,
	`{"kind":"consul-kv","path":"k/1"}`,
}

// change makes a random change of the catalog and the keys of dc1.
func change(m *memory, r *rand.Rand) {
	pick := func(from string) string { i := r.IntN(len(from)); return from[i : i+1] }
	// The instances 1 of node n.n1 and 1.n of node n1 have one key.
	node, id := []string{"n1", "n2", "n.n1"}[r.IntN(3)], []string{"1", "2", "1.n"}[r.IntN(3)]
	key := "k/" + pick("123")
	owner := func(kind, name string) string {
		switch r.IntN(4) {
		case 0:
			return ""
		case 1:
			return "other"
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.data[table{"dc1", kind}][name].ID.UID
	}
	status := []string{"passing", "passing", "warning", "critical"}[r.IntN(4)]
	switch r.IntN(10) {
	case 0, 1:
		m.put("dc1", "Node", node+pick(" y"), "", &pb.Node{Node: node, Address: "10.0.0." + pick("123"),
			Meta: map[string]string{"m": pick("xy")}})
	case 2, 3, 4:
		m.put("dc1", "Service", node+"/"+id, owner("Node", node+" "), &pb.Service{Node: node, Id: id, Service: pick("abc"),
			Tags: []string{pick("st"), pick("uv")}})
	case 5:
		m.put("dc1", "Check", node+"/"+id, owner("Service", node+"/"+id), &pb.Check{Node: node, CheckId: "c", ServiceId: id,
			Status: status})
	case 6:
		m.put("dc1", "Check", node, owner("Node", node+" "), &pb.Check{Node: node, CheckId: "n", Status: status})
	case 7:
		m.put("dc1", "Entry", key, "", &pb.KVEntry{Value: []byte(pick("xyz"))})
	case 8:
		m.del("dc1", "Entry", key)
	case 9:
		m.del("dc1", []string{"Node", "Service", "Check"}[r.IntN(3)], []string{node + " ", node + "/" + id, node}[r.IntN(3)])
	}
}

// TestViews_RandomOrders compares views that received random changes on streams
// with random delays and cuts, with views that received the last state alone.
func TestViews_RandomOrders(t *testing.T) {
	for seed := range uint64(60) {
		testutil.Bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			m := newMemory()
			m.delay = func() time.Duration { return rand.N(20 * time.Millisecond) }
			v := start(t, m)
			views := make([]*View, len(mixed))
			for step := range 300 {
				if i := r.IntN(40); i < len(views) && views[i] == nil {
					views[i] = open(t, v, mixed[i])
				}
				if r.IntN(30) == 0 {
					kind := []string{"", "Node", "Service", "Check"}[r.IntN(4)]
					m.setDown("dc1", kind, step%2 == 0)
				}
				change(m, r)
				time.Sleep(time.Duration(r.Int64N(int64(10 * time.Millisecond))))
			}
			for _, kind := range []string{"", "Node", "Service", "Check"} {
				m.setDown("dc1", kind, false)
			}
			for i := range views {
				if views[i] == nil {
					views[i] = open(t, v, mixed[i])
				}
			}
			time.Sleep(time.Minute)
			last := newMemory()
			last.data = m.data
			fresh := start(t, last)
			objects := 0
			for i, query := range mixed {
				w := open(t, fresh, query)
				time.Sleep(10 * time.Second)
				got, want := value(t, views[i]), value(t, w)
				if string(got.JSON) != string(want.JSON) || got.Trigger != want.Trigger || !maps.Equal(got.Keys, want.Keys) {
					t.Errorf("seed %d: value of %s = %s, want %s", seed, query, got.JSON, want.JSON)
				}
				if !got.Connected || got.Err != nil {
					t.Errorf("seed %d: value of %s: connected = %v, error %v, want true, nil", seed, query, got.Connected, got.Err)
				}
				objects += len(want.Keys)
			}
			if objects == 0 {
				t.Errorf("seed %d: no view has an object", seed)
			}
		})
	}
}

func TestViews_CutOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		sampleCatalog(m)
		var logs strings.Builder
		v := startWith(t, m, slog.New(slog.NewTextHandler(&logs, nil)))
		w := open(t, v, `{"kind":"services","names":["db"],"datacenter":"dc2"}`)
		settle()
		before := value(t, w)
		if !before.Connected || before.Err != nil {
			t.Errorf("connected = %v, error %v, want true, nil", before.Connected, before.Err)
		}
		changed := w.Changed()
		at := time.Now()
		m.setDown("dc2", "", true)
		time.Sleep(time.Hour)
		got := value(t, w)
		if got.Connected || !got.Since.Equal(at) || !errors.Is(got.Err, errDown) {
			t.Errorf("connected = %v since %v, error %v, want false since %v, %v", got.Connected, got.Since, got.Err, at, errDown)
		}
		if string(got.JSON) != string(before.JSON) || !got.At.Equal(before.At) {
			t.Errorf("value after the cut = %s, want %s", got.JSON, before.JSON)
		}
		m.del("dc2", "Service", "m1/db-1")
		m.service("dc2", "m1", "db-2", "db", "passing")
		select {
		case <-changed:
			t.Error("Changed() is closed during the cut, want open")
		default:
		}
		m.setDown("dc2", "", false)
		time.Sleep(2 * maxPause)
		if got = value(t, w); !got.Connected || len(got.Keys) != 1 || got.Keys["db-2.m1.dc2"] == "" {
			t.Errorf("value after the cut = %s, connected %v, want db-2", got.JSON, got.Connected)
		}
		select {
		case <-changed:
		default:
			t.Error("Changed() is open after the change, want closed")
		}
		w.Close()
		settle()
		for _, message := range []string{"stream lost", "stream restored"} {
			if n := strings.Count(logs.String(), message); n != 3 {
				t.Errorf("%d messages %q, want one for each of the 3 streams", n, message)
			}
		}
	})
}

// history returns a function that returns the distinct sets of keys of a view
// since the call of history.
func history(w *View) func() []string {
	var all []string
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			changed := w.Changed()
			if v, ok := w.Value(); ok {
				if keys := fmt.Sprint(slices.Sorted(maps.Keys(v.Keys))); len(all) == 0 || all[len(all)-1] != keys {
					all = append(all, keys)
				}
			}
			select {
			case <-changed:
			case <-stop:
				return
			}
		}
	}()
	return func() []string { close(stop); <-done; return all }
}

// TestViews_ReconnectIsAtomic replaces the catalog while all streams, or the
// streams of one type, are cut. The streams then send their snapshots slowly and
// at different times.
func TestViews_ReconnectIsAtomic(t *testing.T) {
	for _, kind := range []string{"", "Node", "Service", "Check"} {
		t.Run("cut "+kind, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				m := newMemory()
				m.delay = func() time.Duration { return rand.N(time.Second) }
				m.node("dc1", "n1", "10.0.0.1")
				for i := range 5 {
					m.service("dc1", "n1", fmt.Sprint("web-", i), "web", "passing")
				}
				v := start(t, m)
				w := open(t, v, `{"kind":"services","names":["web"]}`)
				time.Sleep(time.Minute)
				seen := history(w)
				synctest.Wait()
				m.setDown("dc1", kind, true)
				time.Sleep(time.Second)
				m.del("dc1", "Node", "n1") // n2 replaces n1
				m.node("dc1", "n2", "10.0.0.2")
				for i := range 5 {
					m.del("dc1", "Service", fmt.Sprint("n1/web-", i))
					m.del("dc1", "Check", fmt.Sprint("n1/web-", i))
					m.service("dc1", "n2", fmt.Sprint("web-", i), "web", "passing")
				}
				time.Sleep(time.Minute)
				m.setDown("dc1", kind, false)
				time.Sleep(time.Minute)
				all := seen()
				if len(all) != 2 || !strings.Contains(all[0], "web-4.n1.dc1") || !strings.Contains(all[1], "web-4.n2.dc1") {
					t.Errorf("the keys were %q, want those of n1 and then those of n2", all)
				}
			})
		})
	}
}

func TestOpen_EqualQueriesShare(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		sampleCatalog(m)
		v := start(t, m)
		a := open(t, v, `{"kind":"services","names":["web","api"]}`)
		b := open(t, v, `{"kind":"services","names":["api","web"],"datacenter":"dc1","triggerOnly":true}`)
		c := open(t, v, `{"kind":"catalog-services","regexp":""}`)
		settle()
		if a.view != b.view || a.view == c.view {
			t.Error("equal queries have two views, or other queries one")
		}
		if n := m.streams(); n != 3 {
			t.Errorf("%d streams, want 3", n)
		}
		a.Close()
		a.Close()
		c.Close()
		m.service("dc1", "n1", "api-2", "api", "passing")
		settle()
		if got := value(t, b); got.Keys["api-2.n1.dc1"] == "" {
			t.Errorf("value after Close of another view = %s, want api-2", got.JSON)
		}
		b.Close()
		settle()
		if n := m.streams(); n != 0 {
			t.Errorf("%d streams after Close of all views, want 0", n)
		}
		if len(v.views)+len(v.feeds) != 0 {
			t.Errorf("%d views and %d feeds after Close of all views, want 0", len(v.views), len(v.feeds))
		}
		d := open(t, v, `{"kind":"services","names":["api"]}`)
		settle()
		if got := value(t, d); len(got.Keys) != 2 {
			t.Errorf("value of a view that was opened again = %s, want two instances", got.JSON)
		}
	})
}

// TestViews_KeysShareStreams has one stream for keys below one element.
func TestViews_KeysShareStreams(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		sampleCatalog(m)
		v := start(t, m)
		for i := range 50 {
			open(t, v, fmt.Sprintf(`{"kind":"consul-kv","path":"app/%d"}`, i))
		}
		w := open(t, v, `{"kind":"consul-kv","path":"app/color"}`)
		settle()
		if n := m.streams(); n != 1 {
			t.Errorf("%d streams, want 1", n)
		}
		m.put("dc1", "Entry", "app/color", "", &pb.KVEntry{Value: []byte("a\xff\"\n${x}")})
		settle()
		if got, want := string(value(t, w).JSON), `{"app/color":"a\ufffd\"\n${x}"}`; got != want {
			t.Errorf("value = %s, want %s", got, want)
		}
	})
}

func TestValue_Trigger(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		sampleCatalog(m)
		v := start(t, m)
		queries := map[string]*View{}
		for _, q := range []string{
			`{"kind":"catalog-services","regexp":""}`, `{"kind":"catalog-services","regexp":"","on":["changed"]}`,
			`{"kind":"services","regexp":""}`, `{"kind":"services","regexp":"","on":["removed","added"]}`,
		} {
			queries[q] = open(t, v, q)
		}
		settle()
		for _, step := range []struct {
			name   string
			change func()
			want   map[string]bool // queries whose trigger changes
		}{
			{"tags", func() { m.service("dc1", "n2", "web-2", "web", "warning", "v3") }, map[string]bool{
				`{"kind":"catalog-services","regexp":"","on":["changed"]}`: true}},
			{"port", func() {
				m.put("dc1", "Service", "n1/api-1", "", &pb.Service{Node: "n1", Id: "api-1", Service: "api", Port: 82})
			}, map[string]bool{`{"kind":"services","regexp":""}`: true}},
			{"health", func() { m.service("dc1", "n2", "web-2", "web", "passing", "v3") }, map[string]bool{
				`{"kind":"services","regexp":""}`: true, `{"kind":"services","regexp":"","on":["removed","added"]}`: true}},
			{"new name", func() { m.service("dc1", "n2", "x", "x", "critical") }, map[string]bool{
				`{"kind":"catalog-services","regexp":""}`: true, `{"kind":"catalog-services","regexp":"","on":["changed"]}`: true}},
			{"removed", func() { m.del("dc1", "Service", "n2/x") }, map[string]bool{
				`{"kind":"catalog-services","regexp":""}`: true, `{"kind":"catalog-services","regexp":"","on":["changed"]}`: true}},
			{"instance removed", func() { m.del("dc1", "Service", "n1/web-1") }, map[string]bool{
				`{"kind":"catalog-services","regexp":"","on":["changed"]}`: true,
				`{"kind":"services","regexp":""}`:                          true, `{"kind":"services","regexp":"","on":["removed","added"]}`: true}},
			{"nothing", func() { m.node("dc1", "n2", "10.0.0.2") }, nil},
		} {
			before := map[string]Value{}
			for q, w := range queries {
				before[q] = value(t, w)
			}
			step.change()
			settle()
			for q, w := range queries {
				if got := value(t, w).Trigger != before[q].Trigger; got != step.want[q] {
					t.Errorf("%s: the trigger of %s changed: %v, want %v", step.name, q, got, step.want[q])
				}
			}
		}
	})
}

// TestViews_WriteIsOneChange delivers an instance before its critical check.
func TestViews_WriteIsOneChange(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		sampleCatalog(m)
		v := start(t, m)
		w := open(t, v, `{"kind":"services","names":["web"]}`)
		settle()
		changed := w.Changed()
		m.put("dc1", "Service", "n1/web-9", "", &pb.Service{Node: "n1", Id: "web-9", Service: "web"})
		time.Sleep(coalesce / 2)
		m.put("dc1", "Check", "n1/web-9", "", &pb.Check{Node: "n1", CheckId: "c", ServiceId: "web-9", Status: "critical"})
		settle()
		select {
		case <-changed:
			t.Errorf("the view changed to %s, want no change", value(t, w).JSON)
		default:
		}
	})
}

// TestViews_Orphans has services and checks of a node that was deregistered and
// registered again, before their deletion arrives.
func TestViews_Orphans(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		old := m.put("dc1", "Node", "n1", "", &pb.Node{Node: "n1", Address: "10.0.0.1"})
		service := m.put("dc1", "Service", "n1/a", old, &pb.Service{Node: "n1", Id: "a", Service: "a"})
		m.put("dc1", "Service", "n1/b", "", &pb.Service{Node: "n1", Id: "b", Service: "b"})
		m.put("dc1", "Check", "n1/a", service, &pb.Check{Node: "n1", CheckId: "a", ServiceId: "a", Status: "passing"})
		m.put("dc1", "Check", "n1/n", old, &pb.Check{Node: "n1", CheckId: "n", Status: "critical"})
		v := start(t, m)
		w := open(t, v, `{"kind":"services","regexp":""}`)
		names := open(t, v, `{"kind":"catalog-services","regexp":""}`)
		expect := func(step, instances, services string) {
			t.Helper()
			settle()
			if got := fmt.Sprint(slices.Sorted(maps.Keys(value(t, w).Keys))); got != instances {
				t.Errorf("%s: instances = %s, want %s", step, got, instances)
			}
			if got := string(value(t, names).JSON); got != services {
				t.Errorf("%s: services = %s, want %s", step, got, services)
			}
		}
		expect("critical node", "[]", `{"a":[],"b":[]}`)
		m.del("dc1", "Node", "n1")
		expect("without node", "[]", `{}`)
		uid := m.put("dc1", "Node", "n1", "", &pb.Node{Node: "n1", Address: "10.0.0.1"})
		expect("new node", "[b.n1.dc1]", `{"b":[]}`)
		m.put("dc1", "Service", "n1/a", uid, &pb.Service{Node: "n1", Id: "a", Service: "a"})
		m.put("dc1", "Check", "n1/a2", "earlier", &pb.Check{Node: "n1", CheckId: "a", ServiceId: "a", Status: "critical"})
		expect("new service", "[a.n1.dc1 b.n1.dc1]", `{"a":[],"b":[]}`)
	})
}
