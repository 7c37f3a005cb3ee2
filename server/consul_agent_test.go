// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"slices"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
)

// consulAgent registers a service with a TTL check at the local agent, as programs
// do.
func consulAgent(t *testing.T, lab *consulLab, dc string) {
	if dc != "dc1" { // the agent is the server that is called
		_, err := lab.writer.Raw().Write("/v1/agent/service/register", nil, nil, &consul.WriteOptions{Datacenter: dc})
		if refusedWith(err) != http.StatusBadRequest {
			t.Errorf("register at an agent of another datacenter: %v, want status 400", err)
		}
		return
	}
	w, r, h := lab.writer.Agent(), lab.reader.Agent(), lab.reader.Health()
	if name, err := r.NodeName(); err != nil || name != "srv1" {
		t.Errorf("NodeName() = %q, %v, want srv1", name, err)
	}
	service := &consul.AgentServiceRegistration{
		Name: "api", Port: 9000, Tags: []string{"a"}, Meta: map[string]string{"k": "v"},
		Check: &consul.AgentServiceCheck{TTL: "1h", DeregisterCriticalServiceAfter: "2h", Notes: "by hand"},
	}
	if err := w.ServiceRegister(service); err != nil {
		t.Fatal(err)
	}
	wantHealth := func(status, output string) {
		t.Helper()
		entries, _, err := h.Service("api", "", false, nil)
		if err != nil || len(entries) != 1 || len(entries[0].Checks) != 1 || entries[0].Node.Node != "srv1" {
			t.Fatalf("health of api = %+v, %v, want one entry with one check", entries, err)
		}
		if c := entries[0].Checks[0]; c.CheckID != "service:api" || c.Status != status || c.Output != output || c.Type != "ttl" || c.ServiceID != "api" {
			t.Errorf("check = %+v, want %s %q", c, status, output)
		}
	}
	wantHealth(consul.HealthCritical, "")
	for _, step := range []struct {
		report         func() error
		status, output string
	}{
		{func() error { return w.PassTTL("service:api", "up") }, consul.HealthPassing, "up"},
		{func() error { return w.WarnTTL("service:api", "slow") }, consul.HealthWarning, "slow"},
		{func() error { return w.FailTTL("service:api", "down") }, consul.HealthCritical, "down"},
		{func() error { return w.UpdateTTL("service:api", "up again", consul.HealthPassing) }, consul.HealthPassing, "up again"},
		{func() error { return w.ServiceRegister(service) }, consul.HealthPassing, "up again"}, // the program has restarted
	} {
		if err := step.report(); err != nil {
			t.Fatal(err)
		}
		wantHealth(step.status, step.output)
	}
	services, err := r.Services()
	if err != nil || len(services) != 1 || services["api"].Port != 9000 || services["api"].Datacenter != "dc1" || services["api"].Meta["k"] != "v" {
		t.Errorf("Services() = %+v, %v, want api", services, err)
	}
	if s, _, err := r.Service("api", nil); err != nil || s.Service != "api" || !slices.Equal(s.Tags, []string{"a"}) {
		t.Errorf("Service() = %+v, %v, want api", s, err)
	}
	checks, err := r.Checks()
	if err != nil || len(checks) != 1 || checks["service:api"].Status != consul.HealthPassing || checks["service:api"].Notes != "by hand" {
		t.Errorf("Checks() = %+v, %v, want one that passes", checks, err)
	}

	// A separate check that is never updated.
	if err := w.CheckRegister(&consul.AgentCheckRegistration{
		ID: "short", Name: "short", ServiceID: "api", AgentServiceCheck: consul.AgentServiceCheck{TTL: "100ms", Status: consul.HealthPassing},
	}); err != nil {
		t.Fatal(err)
	}
	for index := uint64(0); ; {
		got, meta, err := h.Checks("api", &consul.QueryOptions{WaitIndex: index, WaitTime: 10 * time.Second})
		if err != nil || len(got) != 2 {
			t.Fatalf("Checks() = %+v, %v, want two", got, err)
		}
		if got[1].CheckID == "short" && got[1].Status == consul.HealthCritical && got[1].Output == "TTL expired" {
			break
		}
		index = meta.LastIndex
	}
	if got, _, err := h.Service("api", "", true, nil); err != nil || len(got) != 0 {
		t.Errorf("passing entries = %+v, %v, want none", got, err)
	}
	if err := w.CheckDeregister("short"); err != nil {
		t.Error(err)
	}

	for name, err := range map[string]error{
		"update of an unknown check":           w.PassTTL("api", ""),
		"its deregistration":                   w.CheckDeregister("short"),
		"deregistration of an unknown service": w.ServiceDeregister("nothing"),
	} {
		if refusedWith(err) != http.StatusNotFound {
			t.Errorf("%s = %v, want status 404", name, err)
		}
	}
	if err := w.ServiceRegister(&consul.AgentServiceRegistration{Name: "web", Check: &consul.AgentServiceCheck{HTTP: "http://x/", Interval: "10s"}}); refusedWith(err) != http.StatusBadRequest {
		t.Errorf("registration of an HTTP check = %v, want status 400", err)
	}
	if err := r.PassTTL("service:api", ""); refusedWith(err) != http.StatusForbidden {
		t.Errorf("update without a certificate = %v, want status 403", err)
	}
	if err := w.ServiceDeregister("api"); err != nil {
		t.Error(err)
	}
	if services, err := r.Services(); err != nil || len(services) != 0 {
		t.Errorf("Services() = %+v, %v, want none", services, err)
	}
	if _, err := lab.writer.Catalog().Deregister(&consul.CatalogDeregistration{Node: "srv1"}, nil); err != nil {
		t.Error(err)
	}
}
