// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"slices"
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
			t.Fatalf("Service(api) after %s = %+v, %v, want one entry on srv1 with its check and that of the node", step.name, entries, err)
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
	httpCheck := &consul.AgentServiceRegistration{
		Name: "web", Check: &consul.AgentServiceCheck{HTTP: "http://x/", Interval: "10s"},
	}
	for _, tt := range []struct {
		call string
		err  error
		want int
	}{
		{"PassTTL() of an unknown check", agent.PassTTL("api", ""), http.StatusNotFound},
		{"CheckDeregister() of an unknown check", agent.CheckDeregister("short"), http.StatusNotFound},
		{"ServiceDeregister() of an unknown service", agent.ServiceDeregister("nothing"), http.StatusNotFound},
		{"ServiceRegister() with an HTTP check", agent.ServiceRegister(httpCheck), http.StatusBadRequest},
		{"PassTTL() without a certificate", lab.reader.Agent().PassTTL("service:api", ""), http.StatusForbidden},
	} {
		if httpStatus(tt.err) != tt.want {
			t.Errorf("%s = %v, want status %d", tt.call, tt.err, tt.want)
		}
	}
}
