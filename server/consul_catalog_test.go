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

// testConsulCatalog registers two instances of the service web in datacenter
// dc, reads them, changes them and deletes them.
func testConsulCatalog(t *testing.T, lab *consulLab, dc string) {
	registerWeb(t, lab, dc, 1, []string{"v1", "Main"}, consul.HealthPassing)
	registerWeb(t, lab, dc, 2, []string{"v1"}, consul.HealthWarning)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, lab *consulLab, dc string)
	}{
		{"nodes", testConsulNodes},
		{"services", testConsulServices},
		{"health of services", testConsulServiceHealth},
		{"health checks", testConsulHealthChecks},
		{"filters", testConsulFilters},
		{"blocking query", testConsulHealthBlocking},
		{"rejected registrations", testConsulRejectedRegistrations},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, lab, dc) })
	}
	_, err := lab.writer.Catalog().Deregister(&consul.CatalogDeregistration{
		Node: "Node 1.example", Datacenter: dc,
	}, nil)
	if err != nil {
		t.Errorf("Deregister(Node 1.example) = %v, want nil", err)
	}
}

// registerWeb registers instance i of the service web on the node
// "Node <i>.example". The node and the service each have a check. The argument
// status is the status of the service's check.
func registerWeb(t *testing.T, lab *consulLab, dc string, i int, tags []string, status string) {
	t.Helper()
	node, id := fmt.Sprintf("Node %d.example", i), fmt.Sprintf("Web/%d", i)
	_, err := lab.writer.Catalog().Register(&consul.CatalogRegistration{
		Node: node, Address: fmt.Sprintf("192.0.2.%d", i), Datacenter: dc, // in the body, not in the URL
		TaggedAddresses: map[string]string{"wan": "198.51.100.1"},
		NodeMeta:        map[string]string{"rack": fmt.Sprint(i % 2)},
		Service: &consul.AgentService{
			ID: id, Service: "web", Tags: tags, Port: 8000 + i, Address: "10.0.0.1",
			Meta:            map[string]string{"version": "1"},
			TaggedAddresses: map[string]consul.ServiceAddress{"lan": {Address: "10.0.0.1", Port: 80}},
			Weights:         consul.AgentWeights{Passing: 10, Warning: 2}, EnableTagOverride: true,
		},
		Check: &consul.AgentCheck{CheckID: "node", Name: "node is up", Status: consul.HealthPassing},
		Checks: consul.HealthChecks{{
			Node: node, CheckID: "web", Name: "web responds", Status: status, Output: "as reported", Notes: "a note",
			ServiceID: id,
			Definition: consul.HealthCheckDefinition{
				HTTP: "http://10.0.0.1/health", IntervalDuration: 10 * time.Second,
			},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

func testConsulNodes(t *testing.T, lab *consulLab, dc string) {
	c, options := lab.reader.Catalog(), &consul.QueryOptions{Datacenter: dc}
	for _, tt := range []struct {
		meta map[string]string
		want []string
	}{
		{nil, []string{"Node 1.example", "Node 2.example", "gw1", "srv1"}},
		{map[string]string{"rack": "1"}, []string{"Node 1.example"}},
	} {
		nodes, meta, err := c.Nodes(&consul.QueryOptions{Datacenter: dc, NodeMeta: tt.meta})
		if err != nil || meta.LastIndex == 0 {
			t.Fatalf("Nodes(meta %v) = %v with %+v, want nil and a positive index", tt.meta, err, meta)
		}
		var names []string
		for _, n := range nodes {
			names = append(names, n.Node)
		}
		if !slices.Equal(names, tt.want) {
			t.Errorf("Nodes(meta %v) = %q, want %q", tt.meta, names, tt.want)
		}
	}
	node, _, err := c.Node("Node 2.example", options)
	if err != nil || node == nil || node.Node.Address != "192.0.2.2" || node.Services["Web/2"].Port != 8002 {
		t.Errorf("Node(Node 2.example) = %+v, %v, want address 192.0.2.2 and port 8002 of Web/2", node, err)
	}
	if node, _, err := c.Node("unknown", options); err != nil || node != nil {
		t.Errorf("Node(unknown) = %+v, %v, want nil, nil", node, err)
	}
	list, _, err := c.NodeServiceList("Node 2.example", options)
	if err != nil || list.Node.Node != "Node 2.example" || len(list.Services) != 1 ||
		list.Services[0].Service != "web" {
		t.Errorf("NodeServiceList(Node 2.example) = %+v, %v, want the service web", list, err)
	}
	if dcs, err := c.Datacenters(); err != nil || !slices.Contains(dcs, dc) {
		t.Errorf("Datacenters() = %q, %v, want a list with %s", dcs, err, dc)
	}
}

func testConsulServices(t *testing.T, lab *consulLab, dc string) {
	c, options := lab.reader.Catalog(), &consul.QueryOptions{Datacenter: dc}
	services, _, err := c.Services(options)
	want := map[string][]string{"web": {"Main", "v1"}, "mesh-gateway": {}, "wanfed": {}}
	if err != nil || !maps.EqualFunc(services, want, slices.Equal) {
		t.Errorf("Services() = %v, %v, want %v", services, err, want)
	}
	web, _, err := c.Service("web", "", options)
	if err != nil || len(web) != 2 {
		t.Fatalf("Service(web) = %v, %v, want 2 instances", web, err)
	}
	w := web[0]
	if w.Node != "Node 1.example" || w.Address != "192.0.2.1" || w.Datacenter != dc || w.ServiceID != "Web/1" ||
		w.ServiceName != "web" || w.ServicePort != 8001 || w.ServiceAddress != "10.0.0.1" ||
		w.ServiceMeta["version"] != "1" ||
		w.NodeMeta["rack"] != "1" || w.ServiceWeights != (consul.Weights{Passing: 10, Warning: 2}) ||
		!w.ServiceEnableTagOverride || w.TaggedAddresses["wan"] != "198.51.100.1" ||
		w.ServiceTaggedAddresses["lan"].Port != 80 || w.CreateIndex == 0 || w.ModifyIndex < w.CreateIndex {
		t.Errorf("Service(web)[0] = %+v, want the registration of Web/1", w)
	}
	tagged, _, err := c.ServiceMultipleTags("web", []string{"v1", "main"}, options)
	if err != nil || len(tagged) != 1 || tagged[0].ServiceID != "Web/1" {
		t.Errorf("ServiceMultipleTags(web, v1, main) = %v, %v, want Web/1", tagged, err)
	}
	gateways, _, err := c.Service("mesh-gateway", "", options)
	if err != nil || len(gateways) != 1 || gateways[0].ServiceMeta["consul-wan-federation"] != "1" ||
		gateways[0].ServiceTaggedAddresses["wan"].Port == 0 {
		t.Errorf("Service(mesh-gateway) = %+v, %v, want one gateway with a WAN port", gateways, err)
	}
	servers, _, err := c.Service("wanfed", "", options)
	if err != nil || len(servers) != 1 || servers[0].Node != "srv1" || servers[0].Address != "127.0.0.1" ||
		servers[0].ServicePort == 0 || servers[0].ServiceMeta["version"] == "" || servers[0].ID == "" {
		t.Errorf("Service(wanfed) = %+v, %v, want srv1 with its port, version and id", servers, err)
	}
}

func testConsulServiceHealth(t *testing.T, lab *consulLab, dc string) {
	h, options := lab.reader.Health(), &consul.QueryOptions{Datacenter: dc}
	web, _, err := h.Service("web", "", false, options)
	if err != nil || len(web) != 2 || len(web[1].Checks) != 2 ||
		web[1].Checks.AggregatedStatus() != consul.HealthWarning {
		t.Fatalf("Service(web) = %+v, %v, want 2 entries, the second with a warning", web, err)
	}
	check := web[0].Checks[1]
	if check.CheckID != "web" || check.Output != "as reported" || check.Notes != "a note" ||
		check.ServiceName != "web" ||
		!slices.Equal(check.ServiceTags, []string{"v1", "Main"}) || check.Node != "Node 1.example" ||
		check.Definition.HTTP != "http://10.0.0.1/health" || check.Definition.IntervalDuration != 10*time.Second {
		t.Errorf("Service(web)[0].Checks[1] = %+v, want the registered check", check)
	}
	if e := web[0]; e.Node.Address != "192.0.2.1" || e.Node.Datacenter != dc || e.Service.Weights.Passing != 10 {
		t.Errorf("Service(web)[0] = %+v, %+v, want address 192.0.2.1 in %s and weight 10", e.Node, e.Service, dc)
	}
	passing, _, err := h.Service("web", "v1", true, options)
	if err != nil || len(passing) != 1 || passing[0].Service.ID != "Web/1" {
		t.Errorf("Service(web, v1, passing only) = %v, %v, want Web/1", passing, err)
	}
	gateways, _, err := h.Service("mesh-gateway", "", true, options)
	if err != nil || len(gateways) != 1 || gateways[0].Service.Kind != consul.ServiceKindMeshGateway ||
		gateways[0].Checks[0].Status != consul.HealthPassing {
		t.Errorf("Service(mesh-gateway, passing only) = %v, %v, want one passing gateway", gateways, err)
	}
	servers, _, err := h.Service("wanfed", "", true, options)
	if err != nil || len(servers) != 1 || len(servers[0].Checks) != 1 || servers[0].Checks[0].CheckID != "serfHealth" {
		t.Errorf("Service(wanfed, passing only) = %v, %v, want one server with the check serfHealth", servers, err)
	}
}

func testConsulHealthChecks(t *testing.T, lab *consulLab, dc string) {
	h, options := lab.reader.Health(), &consul.QueryOptions{Datacenter: dc}
	for _, tt := range []struct {
		call  string
		query func() (consul.HealthChecks, *consul.QueryMeta, error)
		want  int
	}{
		{"Node(Node 2.example)", func() (consul.HealthChecks, *consul.QueryMeta, error) {
			return h.Node("Node 2.example", options)
		}, 2},
		{"Node(unknown)", func() (consul.HealthChecks, *consul.QueryMeta, error) {
			return h.Node("unknown", options)
		}, 0},
		{"Checks(web)", func() (consul.HealthChecks, *consul.QueryMeta, error) { return h.Checks("web", options) }, 2},
		{"State(warning)", func() (consul.HealthChecks, *consul.QueryMeta, error) {
			return h.State(consul.HealthWarning, options)
		}, 1},
		{"State(any)", func() (consul.HealthChecks, *consul.QueryMeta, error) {
			return h.State(consul.HealthAny, options)
		}, 6},
		{"State(critical)", func() (consul.HealthChecks, *consul.QueryMeta, error) {
			return h.State(consul.HealthCritical, options)
		}, 0},
	} {
		if checks, _, err := tt.query(); err != nil || len(checks) != tt.want {
			t.Errorf("%s = %d checks, %v, want %d checks", tt.call, len(checks), err, tt.want)
		}
	}
	var checks consul.HealthChecks
	if _, err := lab.reader.Raw().Query("/v1/health/state/fine", &checks,
		options); httpStatus(err) != http.StatusBadRequest {
		t.Errorf("State(fine) = %v, want status %d", err, http.StatusBadRequest)
	}
}

func testConsulFilters(t *testing.T, lab *consulLab, dc string) {
	h := lab.reader.Health()
	options := &consul.QueryOptions{Datacenter: dc, Filter: `"Main" in Service.Tags and Node.Meta.rack == "1"`}
	if entries, _, err := h.Service("web", "", false, options); err != nil || len(entries) != 1 ||
		entries[0].Service.ID != "Web/1" {
		t.Errorf("Service(web) with filter %s = %v, %v, want Web/1", options.Filter, entries, err)
	}
	options.Filter = "Service.Sort == 1"
	if _, _, err := h.Service("web", "", false, options); httpStatus(err) != http.StatusBadRequest {
		t.Errorf("Service(web) with an unknown field in the filter = %v, want status %d", err, http.StatusBadRequest)
	}
}

// httpStatus returns the HTTP status of an error of Consul's client, or 0 if
// the error has no status.
func httpStatus(err error) int {
	if e, ok := err.(consul.StatusError); ok {
		return e.Code
	}
	return 0
}

// testConsulHealthBlocking changes and deletes registrations. A blocking query
// must return each change.
func testConsulHealthBlocking(t *testing.T, lab *consulLab, dc string) {
	type result struct {
		entries []*consul.ServiceEntry
		index   uint64
		err     error
	}
	query := func(index uint64) result {
		entries, meta, err := lab.reader.Health().Service("web", "", true,
			&consul.QueryOptions{Datacenter: dc, WaitIndex: index, WaitTime: 20 * time.Second})
		if err != nil {
			return result{err: err}
		}
		return result{entries, meta.LastIndex, nil}
	}
	index := query(0).index
	for _, step := range healthChanges(lab.writer.Catalog(), dc) {
		results := make(chan result, 1)
		go func() { results <- query(index) }()
		if _, err := step.write(); err != nil {
			t.Errorf("write (%s) = %v, want nil", step.name, err)
		}
		got := <-results
		if got.err != nil || len(got.entries) != step.want || got.index <= index {
			t.Fatalf("Service(web) after %s = %d entries with index %d, %v, want %d entries with an index above %d",
				step.name, len(got.entries), got.index, got.err, step.want, index)
		}
		index = got.index
	}
	node, _, err := lab.reader.Catalog().Node("Node 2.example", &consul.QueryOptions{Datacenter: dc})
	if err != nil || node != nil {
		t.Errorf("Node(Node 2.example) after its deletion = %v, %v, want nil, nil", node, err)
	}
}

// healthChange changes the number of passing entries of web to want.
type healthChange struct {
	name  string
	write func() (*consul.WriteMeta, error)
	want  int
}

func healthChanges(w *consul.Catalog, dc string) []healthChange {
	register := func(r consul.CatalogRegistration) func() (*consul.WriteMeta, error) {
		r.Datacenter = dc
		return func() (*consul.WriteMeta, error) { return w.Register(&r, nil) }
	}
	deregister := func(d consul.CatalogDeregistration) func() (*consul.WriteMeta, error) {
		d.Datacenter = dc
		return func() (*consul.WriteMeta, error) { return w.Deregister(&d, nil) }
	}
	return []healthChange{
		{"a passing service check", register(consul.CatalogRegistration{
			Node: "Node 2.example", SkipNodeUpdate: true,
			Check: &consul.AgentCheck{CheckID: "web", Name: "web responds", Status: consul.HealthPassing,
				ServiceID: "Web/2"},
		}), 2},
		{"a critical node check", register(consul.CatalogRegistration{
			Node: "Node 1.example", Address: "192.0.2.1",
			Check: &consul.AgentCheck{CheckID: "node", Name: "node is up", Status: consul.HealthCritical},
		}), 1},
		{"deletion of a check", deregister(consul.CatalogDeregistration{Node: "Node 1.example", CheckID: "node"}), 2},
		{"deletion of a service", deregister(consul.CatalogDeregistration{Node: "Node 1.example", ServiceID: "Web/1"}),
			1},
		{"deletion of a node", func() (*consul.WriteMeta, error) { // with the datacenter in the URL
			return w.Deregister(&consul.CatalogDeregistration{Node: "Node 2.example"},
				&consul.WriteOptions{Datacenter: dc})
		}, 0},
	}
}

func testConsulRejectedRegistrations(t *testing.T, lab *consulLab, dc string) {
	for name, registration := range map[string]*consul.CatalogRegistration{
		"without node":    {Address: "192.0.2.1"},
		"without address": {Node: "n"},
		"of an unknown node, without node update": {Node: "unknown", SkipNodeUpdate: true},
		"of a check of an unknown service": {
			Node: "n", Address: "192.0.2.1", Check: &consul.AgentCheck{CheckID: "c", ServiceID: "none"},
		},
		"of a gateway": {
			Node: "n", Address: "192.0.2.1",
			Service: &consul.AgentService{Service: "g", Kind: consul.ServiceKindMeshGateway},
		},
	} {
		_, err := lab.writer.Catalog().Register(registration, &consul.WriteOptions{Datacenter: dc})
		if httpStatus(err) != http.StatusBadRequest {
			t.Errorf("Register() %s = %v, want status %d", name, err, http.StatusBadRequest)
		}
	}
	for _, name := range []string{"wanfed", "mesh-gateway"} {
		_, err := lab.writer.Catalog().Register(&consul.CatalogRegistration{
			Node: "n", Address: "192.0.2.1", Service: &consul.AgentService{Service: name},
		}, &consul.WriteOptions{Datacenter: dc})
		if httpStatus(err) != http.StatusForbidden {
			t.Errorf("Register() of a service %s = %v, want status %d", name, err, http.StatusForbidden)
		}
	}
	_, err := lab.reader.Catalog().Deregister(&consul.CatalogDeregistration{Node: "gw1", Datacenter: dc}, nil)
	if httpStatus(err) != http.StatusForbidden {
		t.Errorf("Deregister() without a certificate = %v, want status %d", err, http.StatusForbidden)
	}
}
