// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
)

// testConsulAgent registers a service with a TTL check through the agent
// endpoints. The agent is the called server, so another datacenter is rejected.
func testConsulAgent(t *testing.T, lab *consulLab, dc string) {
	if dc != "dc1" {
		_, err := lab.writer.Raw().Write("/v1/agent/service/register", nil, nil, &consul.WriteOptions{Datacenter: dc})
		if httpStatus(err) != http.StatusBadRequest {
			t.Errorf("registration in another datacenter = %v, want status %d", err, http.StatusBadRequest)
		}
		return
	}
	t.Run("TTL check", func(t *testing.T) { testAgentTTL(t, lab) })
	t.Run("reads", func(t *testing.T) { testAgentReads(t, lab) })
	t.Run("expired check", func(t *testing.T) { testAgentExpiredCheck(t, lab) })
	t.Run("rejected calls", func(t *testing.T) { testAgentRejectedCalls(t, lab) })
	t.Run("check of the server", func(t *testing.T) { testAgentProbe(t, lab) })
	t.Run("maintenance", func(t *testing.T) { testAgentMaintenance(t, lab) })
	t.Run("deregistration", func(t *testing.T) {
		if err := lab.writer.Agent().ServiceDeregister("api"); err != nil {
			t.Errorf("ServiceDeregister(api) = %v, want nil", err)
		}
		if services, err := lab.reader.Agent().Services(); err != nil || len(services) != 0 {
			t.Errorf("Services() = %+v, %v, want none", services, err)
		}
		if _, err := lab.writer.Catalog().Deregister(&consul.CatalogDeregistration{Node: "srv1"}, nil); err != nil {
			t.Errorf("Deregister(srv1) = %v, want nil", err)
		}
	})
}

func testAgentTTL(t *testing.T, lab *consulLab) {
	agent := lab.writer.Agent()
	service := &consul.AgentServiceRegistration{
		Name: "api", Port: 9000, Tags: []string{"a"}, Meta: map[string]string{"k": "v"},
		Check: &consul.AgentServiceCheck{TTL: "1h", DeregisterCriticalServiceAfter: "2h", Notes: "a note"},
	}
	for _, step := range []struct {
		name           string
		call           func() error
		status, output string
	}{
		{"ServiceRegister", func() error { return agent.ServiceRegister(service) }, consul.HealthCritical, ""},
		{"PassTTL", func() error { return agent.PassTTL("service:api", "up") }, consul.HealthPassing, "up"},
		{"WarnTTL", func() error { return agent.WarnTTL("service:api", "slow") }, consul.HealthWarning, "slow"},
		{"FailTTL", func() error { return agent.FailTTL("service:api", "down") }, consul.HealthCritical, "down"},
		{"UpdateTTL", func() error {
			return agent.UpdateTTL("service:api", "up again", consul.HealthPassing)
		}, consul.HealthPassing, "up again"},
		{"second ServiceRegister", func() error { return agent.ServiceRegister(service) }, consul.HealthPassing,
			"up again"},
	} {
		if err := step.call(); err != nil {
			t.Fatalf("%s() = %v, want nil", step.name, err)
		}
		entries, _, err := lab.reader.Health().Service("api", "", false, nil)
		if err != nil || len(entries) != 1 || len(entries[0].Checks) != 2 || entries[0].Node.Node != "srv1" {
			t.Fatalf("Service(api) after %s = %+v, %v, want one entry on srv1 with its check and that of the node",
				step.name, entries, err)
		}
		if c := entries[0].Checks[1]; c.CheckID != "service:api" || c.Status != step.status ||
			c.Output != step.output ||
			c.Type != "ttl" || c.ServiceID != "api" {
			t.Errorf("check after %s = %+v, want service:api with status %s and output %q", step.name, c, step.status,
				step.output)
		}
	}
}

func testAgentReads(t *testing.T, lab *consulLab) {
	agent := lab.reader.Agent()
	if name, err := agent.NodeName(); err != nil || name != "srv1" {
		t.Errorf("NodeName() = %q, %v, want srv1", name, err)
	}
	services, err := agent.Services()
	if err != nil || len(services) != 1 || services["api"].Port != 9000 || services["api"].Datacenter != "dc1" ||
		services["api"].Meta["k"] != "v" {
		t.Errorf("Services() = %+v, %v, want api in dc1 with port 9000", services, err)
	}
	if s, _, err := agent.Service("api", nil); err != nil || s.Service != "api" ||
		!slices.Equal(s.Tags, []string{"a"}) {
		t.Errorf("Service(api) = %+v, %v, want api with the tag a", s, err)
	}
	checks, err := agent.Checks()
	if err != nil || len(checks) != 1 || checks["service:api"].Status != consul.HealthPassing ||
		checks["service:api"].Notes != "a note" {
		t.Errorf("Checks() = %+v, %v, want the passing check service:api", checks, err)
	}
}

// testAgentExpiredCheck registers a second check of the service api without
// updates, and waits until it is critical.
func testAgentExpiredCheck(t *testing.T, lab *consulLab) {
	agent, health := lab.writer.Agent(), lab.reader.Health()
	err := agent.CheckRegister(&consul.AgentCheckRegistration{
		ID: "short", Name: "short", ServiceID: "api",
		AgentServiceCheck: consul.AgentServiceCheck{TTL: "100ms", Status: consul.HealthPassing},
	})
	if err != nil {
		t.Fatal(err)
	}
	for index := uint64(0); ; {
		checks, meta, err := health.Checks("api", &consul.QueryOptions{WaitIndex: index, WaitTime: 10 * time.Second})
		if err != nil || len(checks) != 2 {
			t.Fatalf("Checks(api) = %+v, %v, want 2 checks", checks, err)
		}
		if c := checks[1]; c.CheckID == "short" && c.Status == consul.HealthCritical && c.Output == "TTL expired" {
			break
		}
		index = meta.LastIndex
	}
	if entries, _, err := health.Service("api", "", true, nil); err != nil || len(entries) != 0 {
		t.Errorf("Service(api, passing only) = %+v, %v, want none", entries, err)
	}
	if err := agent.CheckDeregister("short"); err != nil {
		t.Errorf("CheckDeregister(short) = %v, want nil", err)
	}
}

func testAgentRejectedCalls(t *testing.T, lab *consulLab) {
	agent := lab.writer.Agent()
	check := func(c consul.AgentServiceCheck) error {
		return agent.ServiceRegister(&consul.AgentServiceRegistration{Name: "web", Check: &c})
	}
	for _, tt := range []struct {
		call string
		err  error
		want int
	}{
		{"PassTTL() of an unknown check", agent.PassTTL("api", ""), http.StatusNotFound},
		{"CheckDeregister() of an unknown check", agent.CheckDeregister("short"), http.StatusNotFound},
		{"ServiceDeregister() of an unknown service", agent.ServiceDeregister("nothing"), http.StatusNotFound},
		{"ServiceRegister() with a script", check(consul.AgentServiceCheck{Args: []string{"true"}, Interval: "10s"}),
			http.StatusBadRequest},
		{"ServiceRegister() without an interval", check(consul.AgentServiceCheck{HTTP: "http://x/"}), http.StatusBadRequest},
		{"ServiceRegister() with a POST", check(consul.AgentServiceCheck{
			HTTP: "http://x/", Interval: "10s", Method: "POST",
		}), http.StatusBadRequest},
		{"ServiceRegister() with a TTL and HTTP", check(consul.AgentServiceCheck{
			HTTP: "http://x/", Interval: "10s", TTL: "10s",
		}), http.StatusBadRequest},
		{"ServiceRegister() with a check of a metadata service", check(consul.AgentServiceCheck{
			HTTP: "http://169.254.169.254/latest/", Interval: "10s",
		}), http.StatusBadRequest},
		{"ServiceRegister() with a check and without a certificate", lab.reader.Agent().ServiceRegister(
			&consul.AgentServiceRegistration{Name: "web", Check: &consul.AgentServiceCheck{TCP: "10.0.0.1:80", Interval: "10s"}},
		), http.StatusForbidden},
		{"EnableServiceMaintenance() of an unknown service", agent.EnableServiceMaintenance("none", ""), http.StatusNotFound},
		{"EnableNodeMaintenance() without a certificate", lab.reader.Agent().EnableNodeMaintenance(""), http.StatusForbidden},
		{"PassTTL() without a certificate", lab.reader.Agent().PassTTL("service:api", ""), http.StatusForbidden},
	} {
		if httpStatus(tt.err) != tt.want {
			t.Errorf("%s = %v, want status %d", tt.call, tt.err, tt.want)
		}
	}
}

// testAgentProbe registers a service with an HTTP check, which the server runs.
func testAgentProbe(t *testing.T, lab *consulLab) {
	var code atomic.Int32
	code.Store(http.StatusOK)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) }))
	defer target.Close()
	agent, health := lab.writer.Agent(), lab.reader.Health()
	// Fabio writes brackets around each address.
	url := strings.Replace(target.URL, "127.0.0.1", "[127.0.0.1]", 1)
	err := agent.ServiceRegister(&consul.AgentServiceRegistration{
		Name: "probed", Check: &consul.AgentServiceCheck{
			HTTP: url, Interval: "1s", Timeout: "2s", FailuresBeforeCritical: 2, DeregisterCriticalServiceAfter: "1h",
		},
	})
	if err != nil {
		t.Fatalf("ServiceRegister(probed) = %v, want nil", err)
	}
	index := uint64(0)
	for _, step := range []struct {
		code   int32
		status string
	}{
		{http.StatusOK, consul.HealthPassing}, {http.StatusTooManyRequests, consul.HealthWarning},
		{http.StatusBadGateway, consul.HealthCritical},
	} {
		code.Store(step.code)
		for deadline := time.Now().Add(30 * time.Second); ; {
			checks, meta, err := health.Checks("probed", &consul.QueryOptions{WaitIndex: index, WaitTime: 20 * time.Second})
			if err != nil || len(checks) != 1 || checks[0].Definition.HTTP != target.URL || checks[0].Type != "http" {
				t.Fatalf("Checks(probed) = %+v, %v, want one check with its URL", checks, err)
			}
			if index = meta.LastIndex; checks[0].Status == step.status {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("check of a server with code %d = %+v, want %s", step.code, checks[0], step.status)
			}
		}
	}
	if err := agent.PassTTL("service:probed", ""); httpStatus(err) != http.StatusNotFound {
		t.Errorf("PassTTL() of a check without a TTL = %v, want status %d", err, http.StatusNotFound)
	}
	if err := agent.ServiceDeregister("probed"); err != nil {
		t.Errorf("ServiceDeregister(probed) = %v, want nil", err)
	}
}

// testAgentMaintenance puts the service api and then its node into maintenance.
func testAgentMaintenance(t *testing.T, lab *consulLab) {
	agent := lab.writer.Agent()
	expect := func(when, want string) {
		t.Helper()
		code := want
		if want == consul.HealthMaint { // the client's name for 503
			code = consul.HealthCritical
		}
		status, info, err := lab.reader.Agent().AgentHealthServiceByID("api")
		if err != nil || status != code || info == nil || info.AggregatedStatus != want || info.Service.ID != "api" {
			t.Errorf("AgentHealthServiceByID(api) %s = %s, %+v, %v, want %s", when, status, info, err, want)
		}
		status, all, err := lab.reader.Agent().AgentHealthServiceByName("api")
		if err != nil || status != code || len(all) != 1 || all[0].AggregatedStatus != want {
			t.Errorf("AgentHealthServiceByName(api) %s = %s, %+v, %v, want %s", when, status, all, err, want)
		}
	}
	expect("before", consul.HealthPassing)
	for _, mode := range []struct {
		name            string
		enable, disable func() error
		check           string
	}{
		{"of the service", func() error { return agent.EnableServiceMaintenance("api", "a reason") },
			func() error { return agent.DisableServiceMaintenance("api") }, "_service_maintenance:api"},
		{"of the node", func() error { return agent.EnableNodeMaintenance("a reason") },
			agent.DisableNodeMaintenance, "_node_maintenance"},
	} {
		if err := mode.enable(); err != nil {
			t.Errorf("maintenance %s = %v, want nil", mode.name, err)
		}
		expect("in maintenance "+mode.name, consul.HealthMaint)
		checks, err := lab.reader.Agent().Checks()
		if err != nil || checks[mode.check] == nil || checks[mode.check].Notes != "a reason" {
			t.Errorf("Checks() in maintenance %s = %+v, %v, want %s with its reason", mode.name, checks, err, mode.check)
		}
		if entries, _, err := lab.reader.Health().Service("api", "", true, nil); err != nil || len(entries) != 0 {
			t.Errorf("Service(api, passing only) in maintenance %s = %v, %v, want none", mode.name, entries, err)
		}
		if err := mode.disable(); err != nil {
			t.Errorf("end of the maintenance %s = %v, want nil", mode.name, err)
		}
		expect("after the maintenance "+mode.name, consul.HealthPassing)
	}
	if status, _, err := lab.reader.Agent().AgentHealthServiceByID("none"); err != nil || status != consul.HealthCritical {
		t.Errorf("AgentHealthServiceByID(none) = %s, %v, want critical, as the client calls 404", status, err)
	}
}
