// SPDX-License-Identifier: MPL-2.0

package view_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/view"
	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
	"github.com/wanfed/wanfed/internal/testutil"
)

// queryWait replaces consul.Wait.
const queryWait = time.Second

// consulViews are views of an agent. Consul's program cannot be part of the
// tests because of its licence, so consultest replaces it.
type consulViews struct {
	t *testing.T
	*view.Views
	agent *consultest.Agent
}

func newConsulViews(t *testing.T, token string, wait time.Duration) *consulViews {
	t.Helper()
	agent := consultest.NewAgent(t, "dc1")
	c, err := consul.Config{Addr: agent.URL(), Token: token}.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	v, err := view.NewConsul(c, view.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	v.SetConsulWait(wait)
	run(t, v.Run)
	return &consulViews{t, v, agent}
}

func (v *consulViews) open(text string) *view.View {
	v.t.Helper()
	q := &pb.TaskQuery{}
	if err := protojson.Unmarshal([]byte(text), q); err != nil {
		v.t.Fatal(err)
	}
	w, err := v.Open(q)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(w.Close)
	return w
}

// await waits until a view has a current value that has all parts of want.
func (v *consulViews) await(w *view.View, want ...string) view.Value {
	v.t.Helper()
	return awaitValue(v.t, w, func(got view.Value, ok bool) error {
		if !ok || !got.Connected || got.Err != nil || !json.Valid(got.JSON) {
			return fmt.Errorf("value = %s, %v, connected %v, error %v; want a current one", got.JSON, ok, got.Connected, got.Err)
		}
		for _, part := range want {
			if !strings.Contains(string(got.JSON), part) {
				return fmt.Errorf("value = %s, want a part %s", got.JSON, part)
			}
		}
		return nil
	})
}

// awaitAbsent waits until a view has no part.
func (v *consulViews) awaitAbsent(w *view.View, part string) {
	v.t.Helper()
	awaitValue(v.t, w, func(got view.Value, ok bool) error {
		if !ok || strings.Contains(string(got.JSON), part) {
			return fmt.Errorf("value = %s, %v, want one without %s", got.JSON, ok, part)
		}
		return nil
	})
}

// awaitOld waits until a view is cut off because of an error with one of the
// texts, which | separates. It keeps the value.
func (v *consulViews) awaitOld(w *view.View, before view.Value, text string) view.Value {
	v.t.Helper()
	return awaitValue(v.t, w, func(got view.Value, ok bool) error {
		has := func(part string) bool { return strings.Contains(got.Err.Error(), part) }
		if got.Connected || got.Err == nil || !slices.ContainsFunc(strings.Split(text, "|"), has) {
			return fmt.Errorf("connected = %v, error %v; want an error with %q", got.Connected, got.Err, text)
		}
		if !ok || string(got.JSON) != string(before.JSON) || got.Trigger != before.Trigger {
			return fmt.Errorf("value = %s, %v, want still %s", got.JSON, ok, before.JSON)
		}
		return nil
	})
}

func awaitValue(t *testing.T, w *view.View, check func(view.Value, bool) error) (got view.Value) {
	t.Helper()
	testutil.Await(t, 20*time.Second, "the value of a view", func(context.Context) error {
		v, ok := w.Value()
		got = v
		return check(v, ok)
	})
	return got
}

var (
	web1 = consultest.Instance{ID: "web1", Service: "web", Node: "n1", Port: 80, Tags: []string{"b", "a"}}
	web2 = consultest.Instance{ID: "web2", Service: "web", Node: "n2", Address: "10.1.0.77", Port: 81}
	db1  = consultest.Instance{ID: "db1", Service: "db", Node: "n1", Port: 5432}
)

func critical(i consultest.Instance) consultest.Instance {
	i.Status = "critical"
	return i
}

func TestConsul_Values(t *testing.T) {
	v := newConsulViews(t, "", queryWait)
	v.agent.SetInstances(web1, web2, db1)
	v.agent.SetKeys(map[string]string{"app/a": "1", "app/b": "2", "other": "3"})
	services := v.open(`{"kind":"services","names":["web"]}`)
	v.await(services, `{"web1.n1.dc1":{"address":"10.1.0.9",`, `"web2.n2.dc1":{"address":"10.1.0.77",`, `"node_datacenter":"dc1"`,
		`"port":80,"status":"passing","tags":["a","b"]}`)
	v.await(v.open(`{"kind":"services","names":["web"],"filter":"Service.Port == 81"}`), `{"web2.n2.dc1":{`)
	both := v.open(`{"kind":"services","names":["db","web"],"datacenter":"dc1"}`)
	v.await(both, `"db1.n1.dc1"`, `"web1.n1.dc1"`)
	pattern := v.open(`{"kind":"services","regexp":"^w"}`)
	v.await(pattern, `"web1.n1.dc1"`, `"web2.n2.dc1"`)
	names := v.open(`{"kind":"catalog-services","regexp":""}`)
	v.await(names, `{"db":[],"web":["a","b"]}`)
	v.await(v.open(`{"kind":"catalog-services","regexp":"","nodeMeta":{"x":"y"}}`), `{}`)
	v.await(v.open(`{"kind":"nodes"}`), `{"n1":{"address":"10.1.0.9",`, `"name":"n2","status":"passing"`)
	keys := v.open(`{"kind":"consul-kv","path":"app/","recurse":true}`)
	v.await(keys, `{"app/a":"1","app/b":"2"}`)
	v.await(v.open(`{"kind":"consul-kv","path":"other"}`), `{"other":"3"}`)
	v.await(v.open(`{"kind":"consul-kv","path":"absent"}`), `{}`)

	// Changes. A change of a check does not end the query for the names, so a
	// pattern is read again after a while.
	v.agent.SetKeys(map[string]string{"app/b": "4"})
	v.await(keys, `{"app/b":"4"}`)
	v.agent.SetInstances(web1, critical(web2), db1)
	v.awaitAbsent(services, "web2")
	v.awaitAbsent(pattern, "web2")
	v.agent.SetInstances(web1)
	v.await(names, `{"web":["a","b"]}`)
	v.awaitAbsent(both, "db1")
}

// A change of a service is seen by a pattern before its query ends by itself.
func TestConsul_PatternFollowsNames(t *testing.T) {
	v := newConsulViews(t, "", consul.Wait*60)
	v.agent.SetInstances(web1)
	w := v.open(`{"kind":"services","regexp":"."}`)
	v.await(w, `"web1.n1.dc1"`)
	v.agent.SetInstances(web1, web2, db1)
	v.await(w, `"web2.n2.dc1"`, `"db1.n1.dc1"`)
}

// Faults of the agent keep the last value, and its age is known.
func TestConsul_Faults(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(v *consulViews)
		end   func(v *consulViews)
		want  string
	}{
		"status 500": {
			fault: func(v *consulViews) {
				v.agent.SetFault(func(w http.ResponseWriter, _ *http.Request) bool { v.agent.Error500(w, ""); return true })
			},
			end: func(v *consulViews) { v.agent.SetFault(nil) }, want: "No path to datacenter",
		},
		"status 429": {
			fault: func(v *consulViews) {
				v.agent.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
					http.Error(w, "rate limit exceeded, try again later", http.StatusTooManyRequests)
					return true
				})
			},
			end: func(v *consulViews) { v.agent.SetFault(nil) }, want: "limits.http_max_conns_per_client",
		},
		"the token is deleted": {
			fault: func(v *consulViews) { v.agent.SetToken("new") },
			end:   func(v *consulViews) { v.agent.SetToken("") }, want: "set consul.token",
		},
		"the token loses its rights": {
			fault: func(v *consulViews) { v.agent.SetFiltered(true) },
			end:   func(v *consulViews) { v.agent.SetFiltered(false) }, want: "may not read",
		},
		"another program answers": {
			fault: func(v *consulViews) {
				v.agent.SetFault(func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true })
			},
			end: func(v *consulViews) { v.agent.SetFault(nil) }, want: "404|has no index",
		},
		"restart": {
			fault: func(v *consulViews) { v.agent.Stop() },
			end:   func(v *consulViews) { v.agent.Start(true) }, want: "no Consul agent answers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newConsulViews(t, "old", queryWait)
			v.agent.SetInstances(web1)
			v.agent.SetKeys(map[string]string{"k": "1"})
			views := []*view.View{v.open(`{"kind":"services","names":["web"]}`), v.open(`{"kind":"services","regexp":"web"}`),
				v.open(`{"kind":"catalog-services","regexp":"web"}`), v.open(`{"kind":"consul-kv","path":"k"}`),
				v.open(`{"kind":"consul-kv","path":"k","recurse":true}`), v.open(`{"kind":"nodes"}`)}
			before := make([]view.Value, len(views))
			for i, w := range views {
				before[i] = v.await(w)
			}
			at := time.Now()
			tt.fault(v)
			for i, w := range views {
				if got := v.awaitOld(w, before[i], tt.want); got.Since.After(time.Now()) || got.Since.After(at.Add(time.Second)) {
					t.Errorf("Since = %v after the fault, want the time of the last response", got.Since.Sub(at))
				}
			}
			v.agent.SetInstances(web1, web2)
			v.agent.SetKeys(map[string]string{"k": "2"})
			tt.end(v)
			v.await(views[0], `"web2.n2.dc1"`)
			v.await(views[1], `"web2.n2.dc1"`)
			v.await(views[3], `{"k":"2"}`)
			v.await(views[4], `{"k":"2"}`)
			v.await(views[5], `"n2"`)
		})
	}
}

// The index decreases, as after a restored snapshot, also while no query is
// pending.
func TestConsul_IndexDecreases(t *testing.T) {
	v := newConsulViews(t, "", queryWait)
	v.agent.SetIndex(1000)
	v.agent.SetKeys(map[string]string{"k": "1"})
	w := v.open(`{"kind":"consul-kv","path":"k"}`)
	v.await(w, `{"k":"1"}`)
	v.agent.SetIndex(5)
	v.agent.SetKeys(map[string]string{"k": "2"})
	v.await(w, `{"k":"2"}`)
	v.agent.SetIndex(2000)
	v.agent.SetKeys(map[string]string{"k": "3"})
	v.await(w, `{"k":"3"}`)
	v.agent.RestartUnnoticed()
	v.agent.SetKeys(map[string]string{"k": "4"})
	v.await(w, `{"k":"4"}`)
}

// A view has no value before the first complete response, and reports why.
func TestConsul_NeverComplete(t *testing.T) {
	v := newConsulViews(t, "", queryWait)
	v.agent.SetInstances(web1)
	v.agent.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/db") {
			v.agent.Error500(w, "rpc error making call: i/o deadline reached")
			return true
		}
		return false
	})
	w := v.open(`{"kind":"services","names":["db","web"]}`)
	awaitValue(t, w, func(got view.Value, ok bool) error {
		if ok || got.Err == nil || !strings.Contains(got.Err.Error(), "i/o deadline reached") {
			return fmt.Errorf("value = %s, %v, error %v; want none and the error of the agent", got.JSON, ok, got.Err)
		}
		return nil
	})
	v.agent.SetFault(nil)
	v.await(w, `"web1.n1.dc1"`)
}

// Equal queries and equal services share requests. More queries than the agent
// accepts connections take turns.
func TestConsul_Connections(t *testing.T) {
	v := newConsulViews(t, "", queryWait)
	v.agent.SetInstances(web1)
	var open, highest atomic.Int64
	v.agent.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		highest.Store(max(highest.Load(), open.Add(1)))
		context.AfterFunc(r.Context(), func() { open.Add(-1) })
		return false
	})
	for range 10 {
		v.await(v.open(`{"kind":"services","names":["web"]}`), "web1")
		v.await(v.open(`{"kind":"services","names":["web"],"filter":"Service.Port == 80"}`), "web1")
	}
	if n := highest.Load(); n != 1 {
		t.Errorf("%d concurrent requests for one service, want 1", n)
	}
	var views []*view.View
	for i := range 300 {
		views = append(views, v.open(fmt.Sprintf(`{"kind":"services","names":["s%d"]}`, i)))
	}
	v.agent.SetInstances(web1, consultest.Instance{ID: "x", Service: "s299", Node: "n1", Port: 1})
	testutil.Await(t, 60*time.Second, "all views", func(context.Context) error {
		for i, w := range views {
			if _, ok := w.Value(); !ok {
				return fmt.Errorf("view %d has no value", i)
			}
		}
		return nil
	})
	if n := highest.Load(); n > 128 {
		t.Errorf("%d concurrent requests, want at most 128", n)
	}
}

func TestConsul_RefusesOtherKinds(t *testing.T) {
	v := newConsulViews(t, "", queryWait)
	for _, kind := range []string{"document", "resource", "federation", "gateway", "member", "datacenter"} {
		_, err := v.Open(&pb.TaskQuery{Kind: kind, Type: "config/v1/Document"})
		if err == nil || !strings.Contains(err.Error(), "Consul does not have this data") {
			t.Errorf("Open(%s) = %v, want an error about Consul", kind, err)
		}
	}
	if _, err := view.NewConsul((*api.Client)(nil), view.Config{}); err == nil {
		t.Error("NewConsul(nil) = nil, want an error")
	}
}
