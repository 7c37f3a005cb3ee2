// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
)

// storeHandler is a handler over a store in memory. The caller of every request
// is an operator. Config.Report always fails with ErrNoCheck, because it needs
// a leader. The tests of package server test reports of checks.
type storeHandler struct {
	http.Handler
	backend resource.Backend
}

func newStoreHandler(t testing.TB) storeHandler {
	t.Helper()
	b := resourcetest.NewStore()
	t.Cleanup(func() { b.Close() })
	reg := resource.NewRegistry()
	if err := errors.Join(catalog.Register(reg), kv.Register(reg), session.Register(reg)); err != nil {
		t.Fatal(err)
	}
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: reg, DC: "dc1", Primary: func() bool { return true },
		Peer: resourcetest.PeerOf, Decide: policyOf("dc1").Decide,
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(Config{
		DC: "dc1", Policy: policyOf("dc1"), Cluster: newFakeCluster(), Logger: slog.New(slog.DiscardHandler),
		Resources: svc, Backend: b, Node: "srv1", Address: "192.0.2.1",
		Peer: func(r *http.Request) (tlsutil.Peer, error) {
			return tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}, nil
		},
		Report:           func(context.Context, catalog.CheckUpdate) error { return catalog.ErrNoCheck },
		GatewaySnapshots: func() []api.GatewaySnapshot { return nil }, Group: fakeGroup{},
		RenewSession: func(context.Context, string) (bool, error) { return false, resource.ErrNotLeader },
	})
	if err != nil {
		t.Fatal(err)
	}
	return storeHandler{h, b}
}

func (r storeHandler) do(t testing.TB, method, target, body string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(method, "http://localhost/", strings.NewReader(body)).WithContext(t.Context())
	path, query, _ := strings.Cut(target, "?")
	req.URL.Path, req.URL.RawQuery = path, query
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

func TestKV_Responses(t *testing.T) {
	r := newStoreHandler(t)
	for _, test := range []struct {
		method, target, body string
		status               int
		want                 string // prefix of the body
	}{
		{"GET", "/v1/kv/a", "", 404, ""},
		{"GET", "/v1/kv/", "", 400, "Missing key name"},
		{"PUT", "/v1/kv/", "x", 400, "Missing key name"},
		{"DELETE", "/v1/kv/", "", 400, "Missing key name"},
		{"PUT", "/v1/kv/a/../<b>//", "v", 200, "true"},
		{"GET", "/v1/kv/a/../<b>//", "", 200,
			`[{"LockIndex":0,"Key":"a/../\u003cb\u003e//","Flags":0,"Value":"dg==","CreateIndex":`},
		{"PUT", "/v1/kv/a?flags=18446744073709551615", "", 200, "true"},
		{"GET", "/v1/kv/a", "", 200, `[{"LockIndex":0,"Key":"a","Flags":18446744073709551615,"Value":null,`},
		{"GET", "/v1/kv/a?pretty", "", 200, "[\n    {\n        \"LockIndex\": 0,"},
		{"PUT", "/v1/kv/a?flags=-1", "", 400, "bad flags"},
		{"PUT", "/v1/kv/a?cas=x", "", 400, "bad cas"},
		{"PUT", "/v1/kv/a?cas=0", "", 200, "false"},
		{"PUT", "/v1/kv/a?acquire=s", "", 500, `invalid session "s"`},
		{"PUT", "/v1/kv/a?release=s", "", 200, "false"},
		{"PUT", "/v1/kv/a?release", "", 400, "bad release"},
		{"PUT", "/v1/kv/a?acquire=s&release=s", "", 400, "conflicting flags: acquire, release"},
		{"PUT", "/v1/session/create", "[]", 400, "request decode failed"},
		{"PUT", "/v1/session/create", `{"TTL": "9s"}`, 400, "invalid Session TTL '9s', must be between"},
		{"PUT", "/v1/session/create", `{"TTL": "x"}`, 400, "bad TTL"},
		{"PUT", "/v1/session/create", `{"LockDelay": 61}`, 400, "invalid LockDelay 1m1s"},
		{"PUT", "/v1/session/create", `{"Namespace": "x"}`, 400, "Namespace and Partition"},
		{"PUT", "/v1/session/create", `{"Node": "x"}`, 400, `invalid node "x": Missing node registration`},
		{"PUT", "/v1/session/create", `{"ServiceChecks": [{"ID": "x"}]}`, 400, "invalid session: Missing check 'x' registration"},
		{"PUT", "/v1/session/destroy/s", "", 200, "true"},
		{"GET", "/v1/session/info/s", "", 200, "[]"},
		{"GET", "/v1/session/node/s", "", 200, "[]"},
		{"GET", "/v1/session/list", "", 200, "[]"},
		{"PUT", "/v1/kv/a?ns=x", "", 400, "parameter ns"},
		{"PUT", "/v1/kv/" + strings.Repeat("k", 513), "", 400, "invalid name"},
		{"PUT", "/v1/kv/a", strings.Repeat("v", kv.MaxValue+1), 413,
			"Request body(524289 bytes) too large, max size: 524288 bytes."},
		{"DELETE", "/v1/kv/a?recurse&cas=1", "", 400, "conflicting flags: recurse, cas"},
		{"GET", "/v1/kv/a?recurse&keys", "", 400, "conflicting flags: recurse, keys"},
		{"GET", "/v1/kv/a?stale&consistent", "", 400, "cannot specify ?stale with ?consistent"},
		{"GET", "/v1/kv/a?recurse=maybe", "", 400, "bad recurse"},
		{"GET", "/v1/kv/?keys", "", 200, `["a","a/../\u003cb\u003e//"]`},
		{"GET", "/v1/kv/none?keys", "", 404, ""},
		{"GET", "/v1/kv/none?recurse", "", 404, ""},
		{"POST", "/v1/kv/a", "", 405, "method POST not allowed"},
		{"DELETE", "/v1/kv/a?cas=1", "", 200, "false"},
		{"DELETE", "/v1/kv/?recurse", "", 200, "true"},
		{"GET", "/v1/kv/?recurse", "", 404, ""},
	} {
		w := r.do(t, test.method, test.target, test.body)
		if w.Code != test.status || !strings.HasPrefix(w.Body.String(), test.want) {
			t.Errorf("%s %.60s = %d %.200s, want %d %s", test.method, test.target, w.Code, w.Body,
				test.status, test.want)
		}
		if test.method == "GET" && test.status != 400 && w.Header().Get(api.HeaderIndex) == "" {
			t.Errorf("GET %s has no index, want one", test.target)
		}
	}
}

// A value may be HTML. A browser must not show the value as a page.
func TestKV_RawValueIsNotAPage(t *testing.T) {
	r := newStoreHandler(t)
	r.do(t, "PUT", "/v1/kv/page", "<script>")
	w := r.do(t, "GET", "/v1/kv/page?raw", "")
	for key, want := range map[string]string{
		"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "sandbox",
	} {
		if got := w.Header().Get(key); got != want || w.Body.String() != "<script>" {
			t.Errorf("header %s = %q with body %s, want %q", key, got, w.Body, want)
		}
	}
}

func TestCatalog_Refuses(t *testing.T) {
	r := newStoreHandler(t)
	for _, test := range []struct {
		method, target, body, want string
		status                     int
	}{
		{"PUT", "/v1/catalog/register", "", "request decode failed", 400},
		{"PUT", "/v1/catalog/register", `{"Node": "n", "Address": "a"} {}`, "data after the object", 400},
		{"PUT", "/v1/catalog/register", `{"Node": 1}`, "request decode failed", 400},
		{"PUT", "/v1/catalog/register", `{"Node": "n", "Address": "a", "Service": {"Service": "s", "Port": 70000}}`,
			"port of service", 400},
		{"PUT", "/v1/catalog/register",
			`{"Node": "n", "Address": "a", "Service": {"Service": "s", "Weights": {"Passing": -1}}}`, "weights", 400},
		{"PUT", "/v1/catalog/register",
			`{"Node": "n", "Address": "a", "Service": {"Service": "s", "Connect": {"Native": true}}}`,
			"no service mesh", 400},
		{"PUT", "/v1/catalog/register",
			`{"Node": "n", "Address": "a", "Service": {"Service": "s", "SocketPath": "/x"}}`, "SocketPath", 400},
		{"PUT", "/v1/catalog/register", `{"Node": "n", "Address": "a", "Check": {"Name": "c", "Node": "m"}}`,
			"of node", 400},
		{"PUT", "/v1/catalog/register", `{"Node": "n", "Address": "a", "Check": {"Name": "c", "Definition": 1}}`,
			"must be an object", 400},
		{"PUT", "/v1/catalog/register", `{"Node": "n", "Address": "a", "Check": {"Name": "c", "Type": "ttl"}}`,
			"of type ttl", 400},
		{"PUT", "/v1/catalog/deregister", `{}`, "must provide node", 400},
		{"PUT", "/v1/agent/service/register", `{"Name": "s", "Check": {"TTL": "0s"}}`, "TTL", 400},
		{"PUT", "/v1/agent/service/register",
			`{"Name": "s", "Check": {"TTL": "1s", "DeregisterCriticalServiceAfter": "x"}}`,
			"DeregisterCriticalServiceAfter", 400},
		{"PUT", "/v1/agent/service/register", `{"Check": {"TTL": "1s"}}`, "name of the service", 400},
		{"PUT", "/v1/agent/check/register", `{"TTL": "1s"}`, "name of the check", 400},
		{"PUT", "/v1/agent/check/register", `{"Name": "c", "TTL": "1s", "ServiceID": "none"}`, "no such service", 400},
		{"PUT", "/v1/agent/check/pass/c", "", "Unknown check ID", 404},
		{"PUT", "/v1/agent/service/deregister/s", "", "Unknown service ID", 404},
		{"GET", "/v1/agent/service/s", "", "unknown service ID", 404},
		{"GET", "/v1/catalog/service/", "", "missing service", 400},
		{"GET", "/v1/health/state/fine", "", "bad state", 400},
		{"GET", "/v1/health/service/s?filter=x", "", `bad filter "x"`, 400},
		{"GET", "/v1/health/service/s?passing=perhaps", "", "bad passing", 400},
		{"GET", "/v1/agent/services?dc=dc2", "", "is about the server that receives the request", 400},
	} {
		w := r.do(t, test.method, test.target, test.body)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s %s %s = %d %s, want %d %q", test.method, test.target, test.body, w.Code, w.Body,
				test.status, test.want)
		}
	}
	if w := r.do(t, "GET", "/v1/catalog/nodes", ""); w.Body.String() != "[]" {
		t.Errorf("nodes = %s after refused requests, want []", w.Body)
	}
}

// A server of another datacenter may neither read keys nor write. Requests that
// it makes for a caller have the rights of the caller in this datacenter.
func TestServe_CallersOfOtherDatacenters(t *testing.T) {
	r := newStoreHandler(t)
	server := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"}
	for _, test := range []struct {
		caller, method, path string
		want                 int32
	}{
		{"", "PUT", "/v1/kv/a", 403}, {"", "DELETE", "/v1/kv/a", 403}, {"", "GET", "/v1/kv/a", 403},
		{"", "GET", "/v1/catalog/nodes", 200},
		{"cli/dc2/joe", "PUT", "/v1/kv/a", 403}, {"cli/dc2/joe", "GET", "/v1/kv/a", 403},
		{"cli/dc2/joe", "PUT", "/v1/catalog/register", 403}, {"cli/dc2/joe", "PUT", "/v1/txn", 403},
		{"client/dc2/app", "GET", "/v1/kv/a", 403}, {"client/dc2/app", "GET", "/v1/session/list", 403},
		{"client/dc2/app", "GET", "/v1/catalog/nodes", 200}, {"client/dc2/app", "GET", "/v1/health/state/any", 200},
		{"client/dc2/app", "GET", "/v1/status/leader", 200},
		{"gateway/dc2/gw1", "GET", "/v1/catalog/nodes", 403}, {"gateway/dc2/gw1", "GET", "/v1/status/leader", 403},
		{"user/dc2/joe", "GET", "/v1/catalog/nodes", 403}, {"user/dc2/joe", "GET", "/v1/status/leader", 403},
	} {
		c, err := policy.Named(server, test.caller)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := Serve(policy.WithCaller(t.Context(), c), r, &pb.QueryRequest{Path: test.path, Method: test.method})
		if err != nil || resp.GetStatus() != test.want {
			t.Errorf("%s %s by %v = %d %s, %v, want %d", test.method, test.path, c, resp.GetStatus(), resp.GetBody(), err, test.want)
		}
	}
}

// Any body gets status 200 or 400. Afterwards the catalog can still be read.
func FuzzRegister(f *testing.F) {
	r := newStoreHandler(f)
	for _, seed := range []string{
		`{"Node":"n","Address":"a","Service":{"Service":"s","Port":1,"Tags":["t"],` +
			`"TaggedAddresses":{"lan":{"Address":"10.0.0.1","Port":1}}},"Checks":[{"Name":"c","Status":"passing",` +
			`"ServiceID":"s","Definition":{"HTTP":"x"}}]}`,
		`{"Name":"s","Check":{"TTL":"15s","DeregisterCriticalServiceAfter":"1h"},"Checks":[{"TTL":"1s"}],` +
			`"Weights":{"Passing":1}}`,
		`{"Node":"n","SkipNodeUpdate":true,"Check":{"CheckID":"c"}}`, `{"ID":"c","TTL":"1s","Status":"warning"}`,
		`{"Node":"n","CheckID":"c"}`, `[]`, `nul`,
	} {
		f.Add([]byte(seed))
	}
	paths := []string{"/v1/catalog/register", "/v1/agent/service/register", "/v1/agent/check/register",
		"/v1/catalog/deregister"}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range paths {
			if w := r.do(t, "PUT", path, string(body)); w.Code != 200 && w.Code != 400 {
				t.Errorf("PUT %s %s = %d %s, want 200 or 400", path, body, w.Code, w.Body)
			}
		}
		for _, path := range []string{"/v1/health/state/any", "/v1/catalog/nodes", "/v1/agent/services"} {
			if w := r.do(t, "GET", path, ""); w.Code != 200 || !json.Valid(w.Body.Bytes()) {
				t.Errorf("GET %s = %d %s, want 200 and JSON", path, w.Code, w.Body)
			}
		}
	})
}

func TestKVEntry_HasConsulsJSON(t *testing.T) {
	for _, tt := range []struct {
		entry kv.Entry
		want  string
	}{
		{kv.Entry{Key: "a/b", Value: []byte("v"), Flags: 1, CreateIndex: 2, ModifyIndex: 3},
			`{"LockIndex":0,"Key":"a/b","Flags":1,"Value":"dg==","CreateIndex":2,"ModifyIndex":3}`},
		{kv.Entry{Key: "é<&>\"\\\x7f\u2028", Value: []byte{}},
			`{"LockIndex":0,"Key":"é\u003c\u0026\u003e\"\\` + "\x7f" +
				`\u2028","Flags":0,"Value":null,"CreateIndex":0,"ModifyIndex":0}`},
	} {
		got, err := json.Marshal(kvEntryOf(&tt.entry))
		if err != nil || string(got) != tt.want {
			t.Errorf("kvEntryOf(%v) as JSON = %s, %v, want %s", tt.entry, got, err, tt.want)
		}
	}
}

// TestMaintenance puts a service into maintenance, and reads its health.
func TestMaintenance(t *testing.T) {
	r := newStoreHandler(t)
	for _, tt := range []struct {
		method, target, body string
		status               int
		want                 string // part of the response
	}{
		{"PUT", "/v1/agent/service/maintenance/web?enable=true", "", 404, "Unknown service ID"},
		{"PUT", "/v1/agent/service/register", `{"Name": "web"}`, 200, ""},
		{"GET", "/v1/agent/health/service/id/web?format=text", "", 200, "passing"},
		{"PUT", "/v1/agent/service/maintenance/web", "", 400, "missing value for enable"},
		{"PUT", "/v1/agent/service/maintenance/web?enable=x", "", 400, "bad enable"},
		{"PUT", "/v1/agent/service/maintenance/web?enable=true&reason=why", "", 200, ""},
		{"GET", "/v1/agent/health/service/id/web?format=text", "", 503, "maintenance"},
		{"GET", "/v1/agent/health/service/name/web", "", 503, `"Notes":"why"`},
		{"PUT", "/v1/agent/service/maintenance/web?enable=false", "", 200, ""},
		{"GET", "/v1/agent/health/service/name/web", "", 200, `"AggregatedStatus":"passing"`},
		{"GET", "/v1/agent/health/service/name/none", "", 404, "none"},
		{"GET", "/v1/agent/health/service/id/none", "", 404, "none"},
		{"PUT", "/v1/agent/service/web", "", 405, "takes GET, HEAD"},
	} {
		if w := r.do(t, tt.method, tt.target, tt.body); w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s %s = %d %s, want %d with %q", tt.method, tt.target, w.Code, w.Body, tt.status, tt.want)
		}
	}
}
