// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/server/ui"
)

const gatewaysOfDC2 = `[{"Node":{"ID":"","Node":"gw1","Address":"","Datacenter":"dc2","TaggedAddresses":{},"Meta":{},` +
	`"CreateIndex":0,"ModifyIndex":0},` +
	`"Service":{"Kind":"mesh-gateway","ID":"gw1","Service":"","Tags":null,"Address":"","TaggedAddresses":{},` +
	`"Meta":{},"Port":0,` +
	`"Weights":{"Passing":1,"Warning":1},"EnableTagOverride":false,"Proxy":{"Mode":"","MeshGateway":{},"Expose":{}},` +
	`"Connect":{},"PeerName":"",` +
	`"CreateIndex":0,"ModifyIndex":0},"Checks":[]}]`

const stateOfDC2 = `{"Datacenter":"dc2","MeshGateways":` + gatewaysOfDC2 +
	`,"UpdatedAt":"0001-01-01T00:00:00Z","PrimaryModifyIndex":0,"CreateIndex":0,"ModifyIndex":20}`

func TestResponses(t *testing.T) {
	cluster := newFakeCluster()
	cluster.lastContact = 17 * time.Millisecond
	cluster.members = map[bool][]api.Member{
		true: {{Name: "srv1.dc1", Addr: "10.1.0.11", Port: 8300, Tags: map[string]string{"dc": "dc1"},
			Status: api.MemberAlive}},
	}
	cluster.datacenters = []string{"dc1", "dc3", "dc2"}
	cluster.peers = []string{"10.1.0.11:8300", "10.1.0.12:8300"}
	cluster.status = api.Status{Datacenter: "dc1", Node: "srv1", PrimaryDatacenter: "dc1", Version: "0.1.0"}
	const wan = `[{"Name":"srv1.dc1","Addr":"10.1.0.11","Port":8300,"Tags":{"dc":"dc1"},"Status":1,` +
		`"ProtocolMin":0,"ProtocolMax":0,"ProtocolCur":0,"DelegateMin":0,"DelegateMax":0,"DelegateCur":0}]`
	const jsonType = "application/json"
	h := newHandler(t, cluster)
	for _, tt := range []struct {
		target, index, contentType string
		status                     int
		body                       string
	}{
		{"/v1/internal/federation-states", "22", jsonType, 200,
			`[{"Datacenter":"dc1","MeshGateways":[],"UpdatedAt":"0001-01-01T00:00:00Z","PrimaryModifyIndex":0,` +
				`"CreateIndex":0,"ModifyIndex":20},` + stateOfDC2 + `]`},
		{"/v1/internal/federation-states/mesh-gateways", "22", jsonType, 200, `{"dc2":` + gatewaysOfDC2 + `}`},
		{"/v1/internal/federation-state/dc2", "22", jsonType, 200,
			`{"State":` + stateOfDC2 + `,"Index":22,"LastContact":17000000,"KnownLeader":true,"ConsistencyLevel":"",` +
				`"NotModified":false,"Backend":0,"ResultsFilteredByACLs":false}`},
		{"/v1/internal/federation-state/dc9", "22", "", 404, ""},
		{"/v1/internal/federation-state/dc2?dc=dc1&stale", "22", jsonType, 200,
			`{"State":` + stateOfDC2 + `,"Index":22,"LastContact":17000000,"KnownLeader":true,"ConsistencyLevel":"",` +
				`"NotModified":false,"Backend":0,"ResultsFilteredByACLs":false}`},
		{"/v1/agent/members", "", jsonType, 200, `[]`},
		{"/v1/agent/members?wan=0", "", jsonType, 200, `[]`},
		{"/v1/agent/members?wan=1", "", jsonType, 200, wan},
		{"/v1/agent/members?wan", "", jsonType, 200, wan},
		{"/v1/catalog/datacenters", "", jsonType, 200, `["dc1","dc3","dc2"]`},
		{"/v1/catalog/datacenters?pretty", "", jsonType, 200, "[\n    \"dc1\",\n    \"dc3\",\n    \"dc2\"\n]\n"},
		{"/v1/status/leader", "", jsonType, 200, `"10.1.0.11:8300"`},
		{"/v1/status/peers", "", jsonType, 200, `["10.1.0.11:8300","10.1.0.12:8300"]`},
		{api.ControllersPath, "", jsonType, 200, `[]`},
		{api.StatusPath, "", jsonType, 200,
			`{"datacenter":"dc1","node":"srv1","leader":"","primary_datacenter":"dc1","primary_epoch":0,` +
				`"mesh_gateway_mode":"","version":"0.1.0","gossip":{"encrypted":false,"keys":0,"version":0,` +
				`"accepts_plain":false,"sends_plain":false},"datacenters":[],"components":[]}`},
	} {
		t.Run(tt.target, func(t *testing.T) {
			w := get(t.Context(), h, tt.target)
			if w.Code != tt.status {
				t.Errorf("status = %d, want %d", w.Code, tt.status)
			}
			if d := cmp.Diff(tt.body, w.Body.String()); d != "" {
				t.Errorf("body differs (-want +got):\n%s", d)
			}
			want := map[string]string{
				"Content-Type": tt.contentType, api.HeaderIndex: tt.index, api.HeaderKnownLeader: "true",
				api.HeaderLastContact:         "17",
				"Access-Control-Allow-Origin": "",
			}
			for key, value := range want {
				if got := w.Header().Get(key); got != value {
					t.Errorf("header %s = %q, want %q", key, got, value)
				}
			}
		})
	}
}

// TestUI checks that the web UI is served with the other paths, to the same callers.
func TestUI(t *testing.T) {
	h, err := New(Config{DC: "dc1", Policy: policyOf("dc1"), Cluster: newFakeCluster(),
		Logger: slog.New(slog.DiscardHandler), UI: ui.Handler()})
	if err != nil {
		t.Fatal(err)
	}
	if w := get(t.Context(), h, "/ui/"); w.Code != 200 || w.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("GET /ui/ = %d %q, want 200 with a policy", w.Code, w.Header())
	}
	if w := get(t.Context(), h, "/"); w.Code != 302 || w.Header().Get("Location") != "/ui/" {
		t.Errorf("GET / = %d to %q, want 302 to /ui/", w.Code, w.Header().Get("Location"))
	}
	if w := do(t.Context(), h, http.MethodPut, "/ui/"); w.Code != 405 {
		t.Errorf("PUT /ui/ = %d, want 405", w.Code)
	}
	r := httptest.NewRequest("GET", "http://evil.example/ui/", nil) // DNS rebinding
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 403 {
		t.Errorf("GET /ui/ of another host = %d, want 403", w.Code)
	}
}

func TestResponses_EmptyServer(t *testing.T) {
	cluster := &fakeCluster{}
	cluster.set(0)
	h := newHandler(t, cluster)
	for target, want := range map[string]string{
		"/v1/internal/federation-states":               "[]",
		"/v1/internal/federation-states/mesh-gateways": "{}",
		"/v1/catalog/datacenters":                      "[]",
		"/v1/status/leader":                            `""`,
		"/v1/status/peers":                             "[]",
	} {
		w := get(t.Context(), h, target)
		if got := w.Body.String(); got != want {
			t.Errorf("%s = %s, want %s", target, got, want)
		}
		if got := w.Header().Get(api.HeaderKnownLeader); got != "false" {
			t.Errorf("%s: known leader = %q, want false", target, got)
		}
		// With index 0, a client would poll.
		if got := w.Header().Get(api.HeaderIndex); strings.Contains(target, "federation") && got != "1" {
			t.Errorf("%s: index = %q, want 1", target, got)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	cluster := newFakeCluster()
	h := newHandler(t, cluster)
	for _, tt := range []struct {
		method, target string
		status         int
		body           string
	}{
		{"GET", "/", 404, `no such endpoint: "/"; the API is under /v1/ and /api/, metrics are at /metrics`},
		{"GET", "/v1/agent/self", 404,
			`no such endpoint: "/v1/agent/self"; wanfed has only a part of Consul's endpoints`},
		{"PUT", "/v1/session/create", 404, `no such endpoint: "/v1/session/create"; wanfed has only a part of ` +
			`Consul's endpoints`},
		{"GET", "/v1/internal/federation-state/", 404,
			`no such endpoint: "/v1/internal/federation-state/"; wanfed has only a part of Consul's endpoints`},
		{"GET", "/metrics", 404,
			`no such endpoint: "/metrics"; the API is under /v1/ and /api/, metrics are at /metrics`},
		{"POST", "/v1/internal/federation-states", 405,
			"method POST not allowed: /v1/internal/federation-states takes GET, HEAD"},
		{"PUT", "/v1/agent/members", 405, "method PUT not allowed: /v1/agent/members takes GET, HEAD"},
		{"DELETE", "/v1/internal/federation-state/dc2", 405,
			"method DELETE not allowed: /v1/internal/federation-state/dc2 takes GET, HEAD"},
		{"OPTIONS", "/v1/status/leader", 405, "method OPTIONS not allowed: /v1/status/leader takes GET, HEAD"},
		{"GET", "/v1/internal/federation-states?index=-1", 400,
			`bad index "-1": must be a whole number, the X-Consul-Index of an earlier response`},
		{"GET", "/v1/internal/federation-states?index=1x", 400,
			`bad index "1x": must be a whole number, the X-Consul-Index of an earlier response`},
		{"GET", "/v1/internal/federation-states?wait=10", 400, `bad wait "10": must be a duration such as 10s or 5m`},
		{"GET", "/v1/internal/federation-states?wait=-1s", 400, `bad wait "-1s": must be a duration such as 10s or 5m`},
		{"GET", "/v1/status/leader?dc=dc2&wait=soon", 400, `bad wait "soon": must be a duration such as 10s or 5m`},
		{"GET", "/v1/agent/members?wan=perhaps", 400, `bad wan "perhaps": must be 1 or 0`},
		{"GET", "/v1/agent/members?%zz", 400, `bad query string: invalid URL escape "%zz"`},
	} {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			w := do(t.Context(), h, tt.method, tt.target)
			if w.Code != tt.status || w.Body.String() != tt.body {
				t.Errorf("response = %d %q, want %d %q", w.Code, w.Body, tt.status, tt.body)
			}
			if allow := w.Header().Get("Allow"); tt.status == 405 && allow != "GET, HEAD" {
				t.Errorf("header Allow = %q, want GET, HEAD", allow)
			}
		})
	}
	cluster.err = errors.New("store is closed")
	for _, target := range []string{"/v1/internal/federation-states", "/v1/internal/federation-state/dc2",
		api.StatusPath} {
		if w := get(t.Context(), h, target); w.Code != 500 || w.Body.String() != "store is closed" {
			t.Errorf("%s of a closed store = %d %q, want 500 store is closed", target, w.Code, w.Body)
		}
	}
}

func TestRefusedRequests_NamespaceHeader(t *testing.T) {
	r := httptest.NewRequest("GET", "http://localhost/v1/status/leader", nil)
	r.Header.Set("X-Consul-Namespace", "team")
	w := httptest.NewRecorder()
	newHandler(t, newFakeCluster()).ServeHTTP(w, r)
	if want := "header X-Consul-Namespace is not supported: leave it out"; w.Code != 400 || w.Body.String() != want {
		t.Errorf("request with a namespace = %d %s, want 400 %s", w.Code, w.Body, want)
	}
}

func TestNew_RefusesConfig(t *testing.T) {
	_, err := New(Config{DC: "DC 1", Names: []string{""}})
	if err == nil {
		t.Fatal("New() = nil, want an error")
	}
	for _, want := range []string{"datacenter:", "no cluster", "no logger", "one of the allowed host names is empty"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want an error with %q", err, want)
		}
	}
}

func TestCheckHost(t *testing.T) {
	h, err := New(Config{DC: "dc1", Policy: policyOf("dc1"), Cluster: newFakeCluster(), Names: []string{"srv1.server.dc1.wanfed"},
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"":                            200,
		"127.0.0.1":                   200,
		"127.0.0.1:8500":              200,
		"[::1]:8500":                  200,
		"[::1]":                       200,
		"10.1.0.11:80":                200,
		"localhost:8500":              200,
		"LocalHost.":                  200,
		"srv1.server.dc1.wanfed":      200,
		"SRV1.server.dc1.wanfed:8500": 200,
		"rebind.example":              403,
		"rebind.example:8500":         403,
		"localhost.rebind.example":    403,
		"127.0.0.1.rebind.example":    403,
		"[rebind.example]":            403,
	} {
		r := httptest.NewRequest("GET", "/v1/status/leader", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("request with host %q = %d, want %d", host, w.Code, want)
		}
		text := fmt.Sprintf(
			"host %q is not a name of this server; use an IP address or localhost, srv1.server.dc1.wanfed", host)
		if want == 403 && w.Body.String() != text {
			t.Errorf("request with host %q = %s, want %s", host, w.Body, text)
		}
	}
}

// HEAD has headers and no body, metrics are served, and the WriteTimeout of the
// http.Server, which would end a blocking query, has no effect.
func TestHandler_OverSocket(t *testing.T) {
	cluster := newFakeCluster()
	h, err := New(Config{
		DC: "dc1", Policy: policyOf("dc1"), Cluster: cluster, Logger: slog.New(slog.DiscardHandler),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "wanfed_up 1\n") }),
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Config.WriteTimeout = time.Nanosecond
	srv.Start()
	t.Cleanup(srv.Close)
	read := func(method, target string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	if resp, body := read("GET", "/metrics"); resp.StatusCode != 200 || body != "wanfed_up 1\n" {
		t.Errorf("GET /metrics = %d %q, want 200 and the metrics", resp.StatusCode, body)
	}
	resp, body := read("HEAD", "/v1/internal/federation-states")
	if resp.StatusCode != 200 || body != "" || resp.ContentLength <= 0 || resp.Header.Get(api.HeaderIndex) != "22" {
		t.Errorf("HEAD = %d %q, length %d, index %s, want 200, no body, a length and index 22",
			resp.StatusCode, body, resp.ContentLength, resp.Header.Get(api.HeaderIndex))
	}
	if _, body := read("GET", "/v1/internal/federation-states?index=22&wait=20ms"); !strings.Contains(body, `"dc2"`) {
		t.Errorf("blocking query = %q, want the state of dc2", body)
	}
}

func TestLogRequests(t *testing.T) {
	var out bytes.Buffer
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		h, err := New(Config{DC: "dc1", Policy: policyOf("dc1"), Cluster: newFakeCluster(),
			Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))})
		if err != nil {
			t.Fatal(err)
		}
		get(t.Context(), h, "/v1/internal/federation-state/dc9?stale")
		get(t.Context(), h, "/v1/status/leader")
	}
	got := out.String()
	for _, want := range []string{
		`level=DEBUG msg="HTTP request served" method=GET path=/v1/internal/federation-state/dc9 query=stale`,
		"status=404", "status=200",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("log has %q %d times, want once:\n%s", want, strings.Count(got, want), got)
		}
	}
}

// policyOf returns the built-in policies of a server of dc.
func policyOf(dc string) *policy.Engine { return policy.New(policy.Config{DC: dc}) }
