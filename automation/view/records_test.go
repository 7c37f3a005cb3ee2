// SPDX-License-Identifier: MPL-2.0

package view

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

func document(t *testing.T, m *memory, name, content string) {
	t.Helper()
	var v structpb.Value
	if err := protojson.Unmarshal([]byte(content), &v); err != nil {
		t.Fatal(err)
	}
	m.put("dc1", "Document", name, "", &pb.Document{Content: &v})
}

func TestValue_Records(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		document(t, m, "a", `{"z":[1,2.5,"<&>",null],"a":{"y":true,"b":1e21}}`)
		document(t, m, "b/1", `"text"`)
		document(t, m, "b/2", `null`)
		m.put("dc1", "Session", "s1", "", &pb.Session{Node: "n1"})
		v := start(t, m)
		const a = `"a":{"a":{"b":1e+21,"y":true},"z":[1,2.5,"\u003c\u0026\u003e",null]}`
		views := map[string]*View{}
		all := map[string]string{
			`{"kind":"document"}`:                                                                 `{` + a + `,"b/1":"text","b/2":null}`,
			`{"kind":"document","names":["a","b/2","absent"]}`:                                    `{` + a + `,"b/2":null}`,
			`{"kind":"document","prefix":"b/"}`:                                                   `{"b/1":"text","b/2":null}`,
			`{"kind":"document","prefix":"b/","names":["a","b/1"]}`:                               `{"b/1":"text"}`,
			`{"kind":"resource","type":"session/v1/Session"}`:                                     `{"s1":{"data":{"node":"n1"},"metadata":{}}}`,
			`{"kind":"resource","type":"session/v1/Session","names":["s2"]}`:                      `{}`,
			`{"kind":"resource","type":"session/v1/Session","prefix":"s","names":["s1","other"]}`: `{"s1":{"data":{"node":"n1"},"metadata":{}}}`,
		}
		for query := range all {
			views[query] = open(t, v, query)
		}
		settle()
		for query, want := range all {
			if got := string(value(t, views[query]).JSON); got != want {
				t.Errorf("value of %s = %s, want %s", query, got, want)
			}
		}
		if n := m.streams(); n != 4 {
			t.Errorf("%d streams, want 4: one for each type and prefix", n)
		}
		document(t, m, "b/1", `"other"`)
		m.del("dc1", "Document", "b/2")
		settle()
		if got, want := string(value(t, views[`{"kind":"document","prefix":"b/"}`]).JSON), `{"b/1":"other"}`; got != want {
			t.Errorf("value after changes = %s, want %s", got, want)
		}
	})
}

func TestOpen_Refused(t *testing.T) {
	v, err := New(newMemory(), Config{Datacenter: "dc1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		q    *pb.TaskQuery
		want string
	}{
		{&pb.TaskQuery{Kind: "schedule", Cron: "* * * * *"}, `kind "schedule" has no data`},
		{&pb.TaskQuery{Kind: "services", Names: []string{"a"}, Namespace: "x"}, "remove namespace"},
		{&pb.TaskQuery{Kind: "services", Names: []string{"a"}, Filter: "Service.Nothing == 1"}, "bad filter"},
		{&pb.TaskQuery{Kind: "services", Names: []string{"a"}, Filter: "any Checks as c { c.Nothing == 1 }"}, "bad filter"},
		{&pb.TaskQuery{Kind: "nodes", Filter: "Service.Port == 1"}, "bad filter"},
		{&pb.TaskQuery{Kind: "resource", Type: "x"}, "is not group/version/Kind"},
	} {
		if _, err := v.Open(test.q); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Open(%v) = %v, want an error with %q", test.q, err, test.want)
		}
	}
	if n := len(v.views) + len(v.feeds); n != 0 {
		t.Errorf("%d views and feeds after errors, want 0", n)
	}
}

// TestValue_FilterError has a filter that fails only for an instance with a port
// and a check. The view keeps what it had.
func TestValue_FilterError(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		m.node("dc1", "n1", "10.0.0.1")
		m.put("dc1", "Service", "n1/web", "", &pb.Service{Node: "n1", Id: "web", Service: "web"})
		v := start(t, m)
		w := open(t, v, `{"kind":"services","names":["web"],"filter":"Service.Port == 0 or (all Checks as c { c.Nothing == 1 })"}`)
		settle()
		if got := value(t, w); len(got.Keys) != 1 || got.Err != nil {
			t.Errorf("value = %s, error %v, want one instance, nil", got.JSON, got.Err)
		}
		m.put("dc1", "Service", "n1/web", "", &pb.Service{Node: "n1", Id: "web", Service: "web", Port: 1})
		m.put("dc1", "Check", "n1/web", "", &pb.Check{Node: "n1", CheckId: "c", ServiceId: "web", Status: "passing"})
		settle()
		if got := value(t, w); len(got.Keys) != 1 || got.Err == nil || !strings.Contains(got.Err.Error(), "Nothing") {
			t.Errorf("value = %s, error %v, want one instance and the error of the filter", got.JSON, got.Err)
		}
		m.del("dc1", "Check", "n1/web")
		settle()
		if got := value(t, w); len(got.Keys) != 1 || got.Err != nil {
			t.Errorf("value = %s, error %v, want one instance, nil", got.JSON, got.Err)
		}
	})
}
