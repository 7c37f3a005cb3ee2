// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
)

// call runs the command in this process. code is the exit status of main.
func call(t testing.TB, args ...string) (stdout string, code int, err error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(io.Discard)
	checkDefaultCommands(root)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	if _, ok := errors.AsType[usageError](err); ok {
		code = exitUsage
	} else if err != nil {
		code = exitFailure
	}
	return out.String(), code, err
}

// startFakeAPI starts an HTTP server, and sets WANFED_HTTP_ADDR to its address.
// The keys of responses are URIs. A value that is a string is the text of an
// error response. Every other value is the JSON of the body. The tests of
// server/httpapi and test check the responses of real servers.
func startFakeAPI(t *testing.T, responses map[string]any) {
	t.Helper()
	for _, name := range []string{"HTTP_ADDR", "SERVER", "DIR", "CONTEXT", "CA_FILE", "CERT_FILE", "KEY_FILE", "DOMAIN"} {
		t.Setenv("WANFED_"+name, "")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // no contexts
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := responses[r.URL.RequestURI()]
		if !ok {
			w.Header().Set(api.HeaderIndex, "1")
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if text, ok := body.(string); ok {
			http.Error(w, text, http.StatusInternalServerError)
			return
		}
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Errorf("Encode(%v) = %v, want nil", body, err)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("WANFED_HTTP_ADDR", srv.URL)
}

// gatewayOf returns a gateway with a passing check and a check in state health.
func gatewayOf(id, health, lan, wan string) api.MeshGateway {
	return api.MeshGateway{
		Node: api.Node{Node: id},
		Service: api.Service{ID: id, TaggedAddresses: map[string]api.ServiceAddress{
			"lan": {Address: lan, Port: 8443}, "wan": {Address: wan, Port: 443},
		}},
		Checks: []api.Check{{Status: api.CheckPassing}, {Status: health}},
	}
}

// sampleResponses are the responses of a server of dc2.
func sampleResponses() map[string]any {
	dc2 := api.FederationState{
		Datacenter: "dc2", UpdatedAt: time.Date(2026, 11, 21, 1, 5, 0, 38604653, time.UTC), PrimaryModifyIndex: 20,
		ModifyIndex: 9,
		MeshGateways: []api.MeshGateway{
			gatewayOf("gw2a", api.CheckPassing, "10.2.0.101", "172.30.0.21"),
			gatewayOf("gw2b", api.CheckCritical, "10.2.0.102", "2001:db8::9"),
		},
	}
	dc1 := api.FederationState{Datacenter: "dc1", ModifyIndex: 16, MeshGateways: []api.MeshGateway{
		{Node: api.Node{Node: "n1"}, Service: api.Service{ID: "gw1a", Address: "10.1.0.9", Port: 8443},
			Checks: []api.Check{{Status: api.CheckWarning}}},
	}}
	members := []api.Member{
		{Name: "srv1.dc1", Addr: "10.1.0.11", Port: 8300, Status: api.MemberAlive, ProtocolCur: 2,
			Tags: map[string]string{"dc": "dc1", "role": "consul", "build": "0.1.0:abc"}},
		{Name: "srv1.dc2", Addr: "2001:db8::11", Port: 8300, Status: api.MemberFailed, ProtocolCur: 2,
			Tags: map[string]string{"dc": "dc2", "role": "consul", "build": "0.1.0:\x1b[31mred"}},
	}
	return map[string]any{
		"/api/policy/v1/Policy": json.RawMessage(`{"resources": [
			{"id": {"name": "anonymous"}, "data": {}},
			{"id": {"name": "joe"}, "data": {"rules": [{"type": "kv/v1/Entry", "prefix": "app/", "access": "write"},
				{"type": "catalog/*", "access": "read"}]}}]}`),
		"/v1/agent/members":        members[:1],
		"/v1/agent/members?wan=1":  members,
		"/v1/agent/members?dc=dc2": members[1:],
		"/v1/agent/members?dc=dc9": "No path to datacenter",
		"/v1/internal/federation-states": []api.FederationState{
			dc1, dc2, {Datacenter: "dc3", ModifyIndex: 17},
		},
		"/v1/internal/federation-state/dc2": api.FederationStateResponse{State: &dc2, Index: 22},
		"/v1/internal/federation-state/dc3": api.FederationStateResponse{
			State: &api.FederationState{Datacenter: "dc3"}, Index: 22,
		},
		"/v1/internal/federation-states/mesh-gateways": map[string][]api.MeshGateway{
			"dc2": dc2.MeshGateways, "dc1": dc1.MeshGateways,
		},
		api.ControllersPath: []api.Controller{
			{Name: "owned-resources", Managed: "internal/v1/Tombstone", Placement: "leader", Running: true, Queued: 3,
				Rate: 1.26, Errors: 2, LastError: "disk is full", LastErrorAt: time.Date(2026, 11, 21, 1, 5, 0, 0, time.UTC)},
			{Name: "other", Managed: "a/v1/B", Placement: "every server", Watches: []string{"a/v1/C", "a/v1/D"}},
		},
		"/v1/catalog/datacenters": []string{"dc1", "dc2", "dc3"},
		"/v1/agent/federation-status": api.Status{
			Datacenter: "dc2", Node: "srv1", Leader: "10.2.0.11:8300", PrimaryDatacenter: "dc1", Version: "0.1.0",
			MeshGatewayMode: "local", Headline: "dc3 is unreachable, and 1 more are not ok: no gateway of dc3 is known",
			Datacenters: []api.DatacenterStatus{
				{Name: "dc2", Own: true, ServersAlive: 3, ServersKnown: 3, GatewaysHealthy: 2, GatewaysKnown: 2,
					RecordAge: api.SecondsPtr(93 * time.Second)},
				{Name: "dc1", Primary: true, ServersAlive: 3, ServersKnown: 3, GatewaysHealthy: 1, GatewaysKnown: 2,
					RecordAge: api.SecondsPtr(26 * time.Hour), ReplicationLag: api.SecondsPtr(234 * time.Millisecond),
					Paths: []api.PathStatus{
						{Address: "10.2.0.101:8443", Via: "own gateway", Used: true, Health: "ok", RTT: new(0.04123),
							Sources: []string{"heartbeat"}},
						{Address: "gw.dc1.example:8443", Via: "configured address", Health: "untested",
							Sources: []string{"configuration", "federation state"}, KnowledgeAge: new(90.0)},
					}},
				{Name: "dc3", ServersKnown: 1, LastError: "dial gateway 10.3.0.1:8443: connection refused\n",
					LastErrorAt: time.Date(2026, 11, 21, 1, 5, 0, 0, time.UTC), Cause: "no gateway of dc3 is known",
					State: api.HealthUnreachable, Advice: "start a gateway of dc3"},
			},
			Components: []api.ComponentStatus{
				{Name: "raft", State: "ok", Detail: "leader srv1, 3 voters"},
				{Name: "replication", State: "not connected"},
			},
			Replicated: []api.ReplicatedType{
				{Type: "config/v1/Document", Known: true, Records: 12, PrimaryIndex: 40, Changes: 14,
					ReceivedBytes: 2300, Lag: api.SecondsPtr(234 * time.Millisecond)},
				{Type: "config/Later", UnknownRecords: 3},
			},
		},
		"/v1/agent/federation-status?dc=dc3": api.Status{
			Datacenter: "dc3", Node: "srv1", PrimaryDatacenter: "dc1", Version: "0.1.0",
		},
	}
}
