// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
)

// register registers instance i of service web on node "Node <i>.example", with a check of each.
func register(t *testing.T, lab *consulLab, dc string, i int, tags []string, status string) {
	t.Helper()
	node, id := fmt.Sprintf("Node %d.example", i), fmt.Sprintf("Web/%d", i)
	_, err := lab.writer.Catalog().Register(&consul.CatalogRegistration{
		Node: node, Address: fmt.Sprintf("192.0.2.%d", i), Datacenter: dc, // the body names the datacenter
		TaggedAddresses: map[string]string{"wan": "198.51.100.1"}, NodeMeta: map[string]string{"rack": fmt.Sprint(i % 2)},
		Service: &consul.AgentService{
			ID: id, Service: "web", Tags: tags, Port: 8000 + i, Address: "10.0.0.1", Meta: map[string]string{"version": "1"},
			TaggedAddresses: map[string]consul.ServiceAddress{"lan": {Address: "10.0.0.1", Port: 80}},
			Weights:         consul.AgentWeights{Passing: 10, Warning: 2}, EnableTagOverride: true,
		},
		Check: &consul.AgentCheck{CheckID: "node", Name: "node is up", Status: consul.HealthPassing},
		Checks: consul.HealthChecks{{
			Node: node, CheckID: "web", Name: "web answers", Status: status, Output: "as reported", Notes: "a note", ServiceID: id,
			Definition: consul.HealthCheckDefinition{HTTP: "http://10.0.0.1/health", IntervalDuration: 10 * time.Second},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

func consulCatalog(t *testing.T, lab *consulLab, dc string) {
	c, ro := lab.reader.Catalog(), &consul.QueryOptions{Datacenter: dc}
	register(t, lab, dc, 1, []string{"v1", "Main"}, consul.HealthPassing)
	register(t, lab, dc, 2, []string{"v1"}, consul.HealthWarning)

	names := func(o *consul.QueryOptions) (out []string) {
		t.Helper()
		nodes, meta, err := c.Nodes(o)
		if err != nil || meta.LastIndex == 0 {
			t.Fatal(meta, err)
		}
		for _, n := range nodes {
			out = append(out, n.Node)
		}
		return out
	}
	if got := names(ro); !slices.Equal(got, []string{"Node 1.example", "Node 2.example", "gw1"}) {
		t.Errorf("nodes: %q", got)
	}
	if got := names(&consul.QueryOptions{Datacenter: dc, NodeMeta: map[string]string{"rack": "1"}}); !slices.Equal(got, []string{"Node 1.example"}) {
		t.Errorf("nodes of rack 1: %q", got)
	}
	services, _, err := c.Services(ro)
	if want := map[string][]string{"web": {"Main", "v1"}, "mesh-gateway": {}}; err != nil || !maps.EqualFunc(services, want, slices.Equal) {
		t.Errorf("services: %v, %v", services, err)
	}
	web, _, err := c.Service("web", "", ro)
	if err != nil || len(web) != 2 {
		t.Fatalf("web: %v, %v", web, err)
	}
	w := web[0]
	if w.Node != "Node 1.example" || w.Address != "192.0.2.1" || w.Datacenter != dc || w.ServiceID != "Web/1" || w.ServiceName != "web" ||
		w.ServicePort != 8001 || w.ServiceAddress != "10.0.0.1" || w.ServiceMeta["version"] != "1" || w.NodeMeta["rack"] != "1" ||
		w.ServiceWeights != (consul.Weights{Passing: 10, Warning: 2}) || !w.ServiceEnableTagOverride || w.TaggedAddresses["wan"] != "198.51.100.1" ||
		w.ServiceTaggedAddresses["lan"].Port != 80 || w.CreateIndex == 0 || w.ModifyIndex < w.CreateIndex {
		t.Errorf("web: %+v", w)
	}
	if got, _, err := c.ServiceMultipleTags("web", []string{"v1", "main"}, ro); err != nil || len(got) != 1 || got[0].ServiceID != "Web/1" {
		t.Errorf("web with two tags: %v, %v", got, err)
	}
	node, _, err := c.Node("Node 2.example", ro)
	if err != nil || node == nil || node.Node.Address != "192.0.2.2" || node.Services["Web/2"].Port != 8002 {
		t.Errorf("node: %+v, %v", node, err)
	}
	if node, _, err := c.Node("unknown", ro); err != nil || node != nil {
		t.Errorf("unknown node: %+v, %v", node, err)
	}
	list, _, err := c.NodeServiceList("Node 2.example", ro)
	if err != nil || list.Node.Node != "Node 2.example" || len(list.Services) != 1 || list.Services[0].Service != "web" {
		t.Errorf("services of a node: %+v, %v", list, err)
	}
	if gw, _, err := c.Service("mesh-gateway", "", ro); err != nil || len(gw) != 1 || gw[0].ServiceMeta["consul-wan-federation"] != "1" ||
		gw[0].ServiceTaggedAddresses["wan"].Port == 0 {
		t.Errorf("gateways: %+v, %v", gw, err)
	}
	if dcs, err := c.Datacenters(); err != nil || !slices.Contains(dcs, dc) {
		t.Errorf("datacenters: %q, %v", dcs, err)
	}
	consulHealth(t, lab, dc)
	consulRegisterAgain(t, lab, dc)
}

func consulHealth(t *testing.T, lab *consulLab, dc string) {
	h, ro := lab.reader.Health(), &consul.QueryOptions{Datacenter: dc}
	all, _, err := h.Service("web", "", false, ro)
	if err != nil || len(all) != 2 || len(all[1].Checks) != 2 || all[1].Checks.AggregatedStatus() != consul.HealthWarning {
		t.Fatalf("health of web: %+v, %v", all, err)
	}
	got := all[0].Checks[1]
	if got.CheckID != "web" || got.Output != "as reported" || got.Notes != "a note" || got.ServiceName != "web" || !slices.Equal(got.ServiceTags, []string{"v1", "Main"}) ||
		got.Definition.HTTP != "http://10.0.0.1/health" || got.Definition.IntervalDuration != 10*time.Second || got.Node != "Node 1.example" {
		t.Errorf("check: %+v", got)
	}
	if all[0].Node.Address != "192.0.2.1" || all[0].Node.Datacenter != dc || all[0].Service.Weights.Passing != 10 {
		t.Errorf("entry: %+v %+v", all[0].Node, all[0].Service)
	}
	if got, _, err := h.Service("web", "v1", true, ro); err != nil || len(got) != 1 || got[0].Service.ID != "Web/1" {
		t.Errorf("what passes: %v, %v", got, err)
	}
	if got, _, err := h.Service("mesh-gateway", "", true, ro); err != nil || len(got) != 1 || got[0].Service.Kind != consul.ServiceKindMeshGateway || got[0].Checks[0].Status != consul.HealthPassing {
		t.Errorf("gateways: %v, %v", got, err)
	}
	for name, test := range map[string]struct {
		get  func() (consul.HealthChecks, *consul.QueryMeta, error)
		want int
	}{
		"node":             {func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.Node("Node 2.example", ro) }, 2},
		"no node":          {func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.Node("unknown", ro) }, 0},
		"checks of web":    {func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.Checks("web", ro) }, 2},
		"warnings":         {func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.State(consul.HealthWarning, ro) }, 1},
		"any state":        {func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.State(consul.HealthAny, ro) }, 5},
		"nothing critical": {func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.State(consul.HealthCritical, ro) }, 0},
	} {
		if got, _, err := test.get(); err != nil || len(got) != test.want {
			t.Errorf("%s: %d checks, want %d; %v", name, len(got), test.want, err)
		}
	}
	var none consul.HealthChecks
	if _, err := lab.reader.Raw().Query("/v1/health/state/fine", &none, ro); refusedWith(err) != http.StatusBadRequest {
		t.Errorf("a state that is none: %v", err)
	}
	filter := &consul.QueryOptions{Datacenter: dc, Filter: `"Main" in Service.Tags and Node.Meta.rack == "1"`}
	if got, _, err := h.Service("web", "", false, filter); err != nil || len(got) != 1 || got[0].Service.ID != "Web/1" {
		t.Errorf("what a filter expression lets through: %v, %v", got, err)
	}
	filter.Filter = "Service.Sort == 1"
	if _, _, err := h.Service("web", "", false, filter); refusedWith(err) != http.StatusBadRequest {
		t.Errorf("a filter expression with a name that is not there: %v", err)
	}
}

// refusedWith is the status of an answer which the client made an error; 0 if err is none.
func refusedWith(err error) int {
	if e, ok := err.(consul.StatusError); ok {
		return e.Code
	}
	return 0
}

// consulRegisterAgain changes and deletes what was registered, under the eyes of a blocking query.
func consulRegisterAgain(t *testing.T, lab *consulLab, dc string) {
	h, w := lab.reader.Health(), lab.writer.Catalog()
	type answer struct {
		entries []*consul.ServiceEntry
		index   uint64
		err     error
	}
	query := func(passing bool, index uint64) answer {
		entries, meta, err := h.Service("web", "", passing, &consul.QueryOptions{Datacenter: dc, WaitIndex: index, WaitTime: 20 * time.Second})
		if err != nil {
			return answer{err: err}
		}
		return answer{entries, meta.LastIndex, nil}
	}
	now := query(true, 0)
	for _, step := range []struct {
		what    string
		write   func() (*consul.WriteMeta, error)
		entries int
	}{
		{"a check recovers", func() (*consul.WriteMeta, error) {
			return w.Register(&consul.CatalogRegistration{
				Node: "Node 2.example", Datacenter: dc, SkipNodeUpdate: true,
				Check: &consul.AgentCheck{CheckID: "web", Name: "web answers", Status: consul.HealthPassing, ServiceID: "Web/2"},
			}, nil)
		}, 2},
		{"a check goes", func() (*consul.WriteMeta, error) {
			return w.Register(&consul.CatalogRegistration{
				Node: "Node 1.example", Address: "192.0.2.1", Datacenter: dc,
				Check: &consul.AgentCheck{CheckID: "node", Name: "node is up", Status: consul.HealthCritical},
			}, nil)
		}, 1},
		{"a check is deleted", func() (*consul.WriteMeta, error) {
			return w.Deregister(&consul.CatalogDeregistration{Node: "Node 1.example", CheckID: "node", Datacenter: dc}, nil)
		}, 2},
		{"a service is deleted", func() (*consul.WriteMeta, error) {
			return w.Deregister(&consul.CatalogDeregistration{Node: "Node 1.example", ServiceID: "Web/1", Datacenter: dc}, nil)
		}, 1},
		{"a node is deleted", func() (*consul.WriteMeta, error) {
			return w.Deregister(&consul.CatalogDeregistration{Node: "Node 2.example"}, &consul.WriteOptions{Datacenter: dc})
		}, 0},
	} {
		answers := make(chan answer, 1)
		index := now.index
		go func() { answers <- query(true, index) }()
		if _, err := step.write(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if now = <-answers; now.err != nil || len(now.entries) != step.entries || now.index <= index {
			t.Fatalf("%s: %d entries at %d after %d, %v; want %d", step.what, len(now.entries), now.index, index, now.err, step.entries)
		}
	}
	if left, _, err := lab.reader.Catalog().Node("Node 2.example", &consul.QueryOptions{Datacenter: dc}); err != nil || left != nil {
		t.Errorf("the deleted node: %v, %v", left, err)
	}
	for name, reg := range map[string]*consul.CatalogRegistration{
		"without node":              {Address: "192.0.2.1"},
		"without address":           {Node: "n"},
		"of a node that is missing": {Node: "unknown", SkipNodeUpdate: true},
		"check of no service":       {Node: "n", Address: "192.0.2.1", Check: &consul.AgentCheck{CheckID: "c", ServiceID: "none"}},
		"gateway":                   {Node: "n", Address: "192.0.2.1", Service: &consul.AgentService{Service: "g", Kind: consul.ServiceKindMeshGateway}},
	} {
		if _, err := w.Register(reg, &consul.WriteOptions{Datacenter: dc}); refusedWith(err) != http.StatusBadRequest {
			t.Errorf("registration %s: %v", name, err)
		}
	}
	if _, err := lab.reader.Catalog().Deregister(&consul.CatalogDeregistration{Node: "gw1", Datacenter: dc}, nil); refusedWith(err) != http.StatusForbidden {
		t.Errorf("a deregistration without a certificate: %v", err)
	}
	if _, err := w.Deregister(&consul.CatalogDeregistration{Node: "Node 1.example", Datacenter: dc}, nil); err != nil {
		t.Error(err)
	}
}
