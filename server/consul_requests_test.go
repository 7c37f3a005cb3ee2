// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/internal/testutil"
)

// testConsulOperator reads the Raft group, coordinates and the machine.
func testConsulOperator(t *testing.T, lab *consulLab, dc string) {
	options := &consul.QueryOptions{Datacenter: dc}
	group, err := lab.reader.Operator().RaftGetConfiguration(options)
	if err != nil || len(group.Servers) != 1 || group.Servers[0].Node != "srv1" || !group.Servers[0].Leader || !group.Servers[0].Voter {
		t.Errorf("RaftGetConfiguration() = %+v, %v, want the leader srv1", group, err)
	}
	health, err := lab.reader.Operator().AutopilotServerHealth(options)
	if err != nil || !health.Healthy || health.FailureTolerance != 0 || len(health.Servers) != 1 ||
		health.Servers[0].SerfStatus != "alive" || health.Servers[0].Version == "" {
		t.Errorf("AutopilotServerHealth() = %+v, %v, want srv1 as healthy", health, err)
	}
	nodes, _, err := lab.reader.Coordinate().Nodes(options)
	if err != nil || len(nodes) != 1 || nodes[0].Node != "srv1" || nodes[0].Coord == nil || len(nodes[0].Coord.Vec) == 0 {
		t.Errorf("Coordinate().Nodes() = %+v, %v, want srv1", nodes, err)
	}
	if node, _, err := lab.reader.Coordinate().Node("srv1", options); err != nil || len(node) != 1 {
		t.Errorf("Coordinate().Node(srv1) = %+v, %v, want it", node, err)
	}
	if dc != "dc1" {
		return
	}
	// The other datacenter has a coordinate after the first probe of the WAN pool.
	testutil.Await(t, 30*time.Second, "the coordinates of both datacenters", func(context.Context) error {
		all, err := lab.reader.Coordinate().Datacenters()
		if err != nil || len(all) != 2 || all[1].Datacenter != "dc2" || all[1].AreaID != "wan" || all[1].Coordinates[0].Node != "srv1" {
			return fmt.Errorf("Datacenters() = %+v, %w, want dc1 and dc2", all, err)
		}
		return nil
	})
	host, err := lab.writer.Agent().Host()
	if err != nil || host["Memory"] == nil || host["Host"] == nil {
		t.Errorf("Host() = %v, %v, want the memory and the host", host, err)
	}
	if _, err := lab.reader.Agent().Host(); httpStatus(err) != http.StatusForbidden {
		t.Errorf("Host() without a certificate = %v, want status %d", err, http.StatusForbidden)
	}
	if v, err := lab.reader.Agent().Version(); err != nil || v["HumanVersion"] == "" {
		t.Errorf("Version() = %v, %v, want the version", v, err)
	}
	for target, want := range map[string]int{
		"/v1/agent/metrics?format=prometheus": http.StatusOK, "/v1/agent/metrics": http.StatusBadRequest,
	} {
		code, body := lab.request(t, http.MethodGet, target, "")
		if code != want || want == http.StatusOK && !strings.Contains(body, "\nwanfed_build_info{") {
			t.Errorf("GET %s = %d %.200s, want %d", target, code, body, want)
		}
	}
}

// request sends a request with the certificate of the operator.
func (lab *consulLab) request(t *testing.T, method, target, body string) (code int, response string) {
	t.Helper()
	url := strings.Replace(lab.url, "http://", "https://", 1) + target
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := lab.operator.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// testRecordedRequests sends the requests of programs that are not part of this
// test: METHOD TARGET, then the expected status or the body.
func testRecordedRequests(t *testing.T, lab *consulLab, dc string) {
	if dc != "dc1" {
		return
	}
	for i := range 3 {
		_, err := lab.writer.Catalog().Register(&consul.CatalogRegistration{
			Node: fmt.Sprint("web", i), Address: "10.0.0.1",
			Service: &consul.AgentService{Service: "web", Tags: []string{"traefik.enable=true"}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_, _ = lab.writer.Catalog().Deregister(&consul.CatalogDeregistration{Node: fmt.Sprint("web", i)}, nil)
		}()
	}
	files, err := filepath.Glob("testdata/requests/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded requests: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var previous string // nodes of the last response
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") {
				continue
			}
			method, rest, _ := strings.Cut(line, " ")
			target, body, _ := strings.Cut(rest, " ")
			want := http.StatusOK
			if n, err := strconv.Atoi(body); err == nil {
				want, body = n, ""
			}
			code, response := lab.request(t, method, target, body)
			if code != want {
				t.Errorf("%s: %s = %d %.300s, want %d", file, line, code, response, want)
			}
			nodes := nodesOf(response)
			if strings.HasPrefix(target, "/v1/health/service/") && (nodes != previous || nodes == "") {
				t.Errorf("%s: %s has the nodes %q, want those of /v1/catalog/service: %q", file, line, nodes, previous)
			}
			previous = nodes
		}
	}
}

// nodesOf returns the names of the nodes in a list of services.
func nodesOf(response string) (names string) {
	var list []struct{ Node any }
	if json.Unmarshal([]byte(response), &list) != nil {
		return ""
	}
	for _, e := range list {
		if m, ok := e.Node.(map[string]any); ok {
			e.Node = m["Node"]
		}
		names += fmt.Sprint(e.Node, " ")
	}
	return names
}
