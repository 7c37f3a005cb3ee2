// SPDX-License-Identifier: MPL-2.0

package ctsapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

const typeJSON = "application/json"

// sample is a request that a CTS has answered, with the status and the keys of
// the response.
type sample struct {
	Name, Method, Path, Body string
	JSON                     bool // the request has the content type
	Code                     int
	Keys                     []string
	// Differs is the reason for another response than that of CTS.
	Differs string
}

func readSamples(t testing.TB) (all []sample) {
	t.Helper()
	b, err := os.ReadFile("testdata/requests.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &all); err != nil || len(all) == 0 {
		t.Fatalf("%d requests, %v, want some", len(all), err)
	}
	return all
}

// The requests are sent in the order in which they were sent to a CTS.
func TestAPI_Samples(t *testing.T) {
	all := readSamples(t)
	t.Chdir("../config/testdata") // has the module ./mod
	url := serve(t, newMemory())
	for _, s := range all {
		contentType := "application/x-www-form-urlencoded" // as curl sends it
		if s.JSON {
			contentType = typeJSON
		}
		resp, body := do(t, s.Method, url+s.Path, contentType, s.Body)
		if resp.StatusCode != s.Code {
			t.Errorf("%s: status %d (%s), want %d", s.Name, resp.StatusCode, body, s.Code)
		}
		if diff := cmp.Diff(s.Keys, keysOf(body)); diff != "" {
			t.Errorf("%s: keys differ (-want +got):\n%s", s.Name, diff)
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("%s: Access-Control-Allow-Origin = %q, want none", s.Name, got)
		}
	}
}

// equalJSON compares JSON texts without the id of the request.
func equalJSON(t *testing.T, got []byte, want string) {
	t.Helper()
	var g, w map[string]any
	if err := errors.Join(json.Unmarshal(got, &g), json.Unmarshal([]byte(want), &w)); err != nil {
		t.Fatalf("%s, %s: %v", got, want, err)
	}
	delete(g, "request_id")
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("JSON differs (-want +got):\n%s", diff)
	}
}

func TestAPI_CreateValues(t *testing.T) {
	const request = `{"task":{"name":"two","description":"d","enabled":false,"module":"example/m/aws","version":"1.0","providers":["a","b.x"],
		"variables":{"v":"[1]"},"condition":{"catalog_services":{"regexp":"^w","datacenter":"dc2","namespace":"n","node_meta":{"k":"v"},
		"use_as_module_input":false}},"module_input":{"services":{"regexp":"","filter":"\"a\" in Tags","cts_user_defined_meta":{"m":"n"}},
		"consul_kv":{"path":"p","recurse":true}},"buffer_period":{"min":"2s"}}}`
	m := newMemory()
	url := serve(t, m)
	resp, body := do(t, "POST", url+"/v1/tasks", typeJSON+"; charset=utf-8", request)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("POST = %d, %s, want 201", resp.StatusCode, body)
	}
	want := strings.NewReplacer(`"min":"2s"`, `"enabled":true,"min":"2s","max":"8s"`, `"filter"`, `"datacenter":"","namespace":"","filter"`,
		`"recurse":true`, `"recurse":true,"datacenter":"","namespace":""`).Replace(request)
	equalJSON(t, body, want)
	_, body = do(t, "GET", url+"/v1/tasks/two", "", "")
	equalJSON(t, body, want)
	if got := m.tasks["two"]; got.Origin != task.OriginAPI || got.Group != task.DefaultGroup || got.GetEnabled() {
		t.Errorf("stored task = %v, want a disabled task of the API with the default group", got)
	}
}

func TestAPI_EncodeOwnKinds(t *testing.T) {
	m := newMemory()
	m.tasks["one"].Driver, m.tasks["one"].Terraform = task.DriverExec, nil
	m.tasks["one"].Conditions = []*pb.TaskQuery{{Kind: task.KindNodes}, {Kind: task.KindKV, Path: "a"}}
	_, body := do(t, "GET", serve(t, m)+"/v1/tasks/one", "", "")
	equalJSON(t, body, `{"task":{"name":"one","description":"the first","enabled":true,"module":"","version":"","providers":[],
		"variables":{},"condition":{"consul_kv":{"path":"a","recurse":false,"datacenter":"","namespace":"",
		"use_as_module_input":true}},"module_input":{}}}`)
}

func TestAPI_Refused(t *testing.T) {
	const services = `"condition":{"services":{"names":["a"]}}`
	create := func(fields string) string { return `{"task":{"name":"x","module":"m",` + fields + `}}` }
	m := newMemory()
	url := serve(t, m)
	for _, test := range []struct {
		method, path, contentType, body string
		code                            int
		want                            string
	}{
		{"POST", "/v1/tasks", "text/plain", create(services), 415, "Content-Type must be application/json"},
		{"POST", "/v1/tasks", "", create(services), 415, "Content-Type"},
		{"POST", "/v1/tasks", typeJSON, `{}`, 400, "task: the task is required"},
		{"POST", "/v1/tasks", typeJSON, `[]`, 400, "decode the body"},
		{"POST", "/v1/tasks", typeJSON, create(services) + `{}`, 400, "data after the object"},
		{"POST", "/v1/tasks", typeJSON, `{"task":{"module":"m",` + services + `}}`, 400, "task.name: the name"},
		{"POST", "/v1/tasks", typeJSON, `{"task":{"name":"a b","module":"m",` + services + `}}`, 400, "task.name: "},
		{"POST", "/v1/tasks", typeJSON, `{"task":{"name":"x",` + services + `}}`, 400, "task.module: module"},
		{"POST", "/v1/tasks", typeJSON, create(`"condition":{}`), 400, "task.condition: a task needs"},
		{"POST", "/v1/tasks", typeJSON, create(`"condition":{"nodes":{}}`), 400, `unknown field`},
		{"POST", "/v1/tasks", typeJSON, create(`"condition":{"services":{"regexp":"("}}`), 400, "task.condition.services.regexp: "},
		{"POST", "/v1/tasks", typeJSON, create(`"condition":{"schedule":{"cron":"* * * * *"}}`), 400, "task.module_input: "},
		{"POST", "/v1/tasks", typeJSON, create(services + `,"module_input":{"consul_kv":{}}`), 400, "task.module_input.consul_kv.path"},
		{"POST", "/v1/tasks", typeJSON, create(services + `,"providers":["a.x","a.y"]`), 400, "task.providers[1]: "},
		{"POST", "/v1/tasks", typeJSON, create(services + `,"variables":{"v":"var.x"}`), 400, `task.variables["v"]: `},
		{"POST", "/v1/tasks", typeJSON, create(services + `,"buffer_period":{"min":"5"}`), 400, "task.buffer_period.min: "},
		{"POST", "/v1/tasks", typeJSON, create(services + `,"buffer_period":{"max":"-5s"}`), 400, "task.buffer_period.max: "},
		{"POST", "/v1/tasks", typeJSON, `{"task":"` + strings.Repeat("x", MaxBody) + `"}`, 413, "more than 1048576 bytes"},
		{"PATCH", "/v1/tasks/off", typeJSON, `{"enabled":1}`, 400, "decode the body"},
		{"PATCH", "/v1/tasks/off/x", typeJSON, `{"enabled":true}`, 400, "must end with the name"},
		{"PUT", "/v1/health", "", "", 405, "GET"},
		{"OPTIONS", "/v1/tasks/off", "", "", 405, "DELETE, GET, PATCH"},
	} {
		resp, body := do(t, test.method, url+test.path, test.contentType, test.body)
		var e struct{ Error struct{ Message string } }
		if err := json.Unmarshal(body, &e); err != nil || resp.StatusCode != test.code || !strings.Contains(e.Error.Message, test.want) {
			t.Errorf("%s %s %.120s = %d, %s, want %d with %q", test.method, test.path, test.body, resp.StatusCode, body, test.code,
				test.want)
		}
	}
	if len(m.tasks) != 2 {
		t.Errorf("%d tasks after refused requests, want 2", len(m.tasks))
	}
}

// A page whose name resolves to a loopback address sends its name as Host.
func TestAPI_Host(t *testing.T) {
	h := New(newMemory(), []string{"sync.example"})
	for host, want := range map[string]int{"evil.example:8558": 403, "sync.example:8558": 200, "localhost:8558": 200, "10.0.0.1": 200} {
		for _, scheme := range []string{"http", "https"} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", scheme+"://"+host+"/v1/health", nil)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if scheme == "https" { // the certificate has the name
				want = 200
			}
			if w.Code != want {
				t.Errorf("GET %s = %d, want %d", r.URL, w.Code, want)
			}
		}
	}
}

func TestAPI_Failure(t *testing.T) {
	m := newMemory()
	m.err = errors.New("no leader")
	url := serve(t, m)
	for _, request := range []string{"GET /v1/status", "GET /v1/status/tasks", "GET /v1/status/cluster", "GET /v1/tasks",
		"GET /v1/tasks/one", "DELETE /v1/tasks/one", "PATCH /v1/tasks/off"} {
		method, path, _ := strings.Cut(request, " ")
		resp, body := do(t, method, url+path, typeJSON, `{"enabled":true}`)
		if resp.StatusCode != http.StatusInternalServerError || !bytes.Contains(body, []byte("no leader")) {
			t.Errorf("%s = %d, %s, want 500 with the failure", request, resp.StatusCode, body)
		}
	}
}

func TestStatus_OfRuns(t *testing.T) {
	const ok, fail = task.Succeeded, task.Failed
	for _, test := range []struct {
		runs   []string // newest last
		want   string
		events int
	}{
		{nil, unknown, 0}, {[]string{task.Running}, unknown, 0}, {[]string{ok}, successful, 1},
		{[]string{ok, fail}, errored, 2}, {[]string{fail, fail}, critical, 2}, {[]string{fail, ok}, successful, 2},
		{[]string{fail, ok, ok, ok, ok, fail}, errored, 5}, {[]string{fail, ok, ok, ok, fail}, critical, 5},
		{[]string{ok, task.Running}, successful, 1}, {[]string{ok, task.TimedOut}, errored, 2},
		{[]string{ok, task.Refused}, errored, 2},
	} {
		m := newMemory()
		m.runs = map[string][]TaskRun{}
		for _, result := range test.runs {
			m.run("one", result)
		}
		_, body := do(t, "GET", serve(t, m)+"/v1/status/tasks/one?include=events", "", "")
		var got map[string]struct {
			Status string
			Events []struct {
				Success bool
				Error   *struct{ Message string }
			}
		}
		if err := json.Unmarshal(body, &got); err != nil || got["one"].Status != test.want || len(got["one"].Events) != test.events {
			t.Errorf("status of %q = %s, %v, want %s with %d events", test.runs, body, err, test.want, test.events)
		}
		for _, e := range got["one"].Events {
			if e.Success == (e.Error != nil) || e.Error != nil && e.Error.Message == "" {
				t.Errorf("event of %q = %s, want an error unless it succeeded", test.runs, body)
			}
		}
	}
}

// Plans are not events.
func TestStatus_Plan(t *testing.T) {
	m := newMemory()
	m.run("one", task.Failed)
	m.runs["one"][0].Run.Mode = "plan"
	_, body := do(t, "GET", serve(t, m)+"/v1/status/tasks?status=successful", "", "")
	if !bytes.Contains(body, []byte(`"successful"`)) || bytes.Contains(body, []byte(`"off"`)) {
		t.Errorf("GET = %s, want one task, successful", body)
	}
}

func TestStatus_Cluster(t *testing.T) {
	m := newMemory()
	m.cluster = &Cluster{Name: "c", Members: []Member{{ID: "a", ServiceName: "s", Healthy: true, Leader: true, Address: "a:1"}, {ID: "b"}}}
	_, body := do(t, "GET", serve(t, m)+"/v1/status/cluster", "", "")
	equalJSON(t, body, `{"cluster_name":"c","members":[{"id":"a","service_name":"s","healthy":true,"leader":true,"address":"a:1"},
		{"id":"b","service_name":"","healthy":false,"leader":false}]}`)
}

func FuzzBodies(f *testing.F) {
	for _, s := range readSamples(f) {
		if s.Body != "" {
			f.Add(s.Body, s.Method == "PATCH")
		}
	}
	f.Fuzz(func(t *testing.T, body string, patch bool) {
		m := newMemory()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/v1/tasks", strings.NewReader(body))
		if patch {
			r = httptest.NewRequestWithContext(t.Context(), "PATCH", "http://localhost/v1/tasks/off", strings.NewReader(body))
		}
		r.Header.Set("Content-Type", typeJSON)
		w := httptest.NewRecorder()
		New(m, nil).ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%q: status %d, %s", body, w.Code, w.Body)
		}
		for name, stored := range m.tasks {
			if name != "one" && name != "off" && task.Check(stored) != nil {
				t.Errorf("%q: the stored task %v is invalid: %v", body, stored, task.Check(stored))
			}
			if raw, err := json.Marshal(encode(Task{name, stored})); err != nil {
				t.Errorf("%q: Marshal(%v) = %s, %v", body, stored, raw, err)
			}
		}
	})
}
