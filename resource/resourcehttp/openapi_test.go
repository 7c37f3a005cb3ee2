// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/resource"
)

func TestTypes(t *testing.T) {
	f := newFixture(t)
	var all []api.ResourceType
	if err := json.Unmarshal([]byte(f.do(200, "GET", "/api/types", "")), &all); err != nil {
		t.Fatal(err)
	}
	want := api.ResourceType{
		Type:  api.ResourceTypeName{Group: "federation", GroupVersion: "v1", Kind: "FederationState"},
		Scope: "cluster", Federated: true, Message: "wanfed.v1.FederationState",
		Path: "/api/federation/v1/FederationState",
	}
	if len(all) != 4 || all[1] != want {
		t.Errorf("GET /api/types = %+v, want 4 types, the second %+v", all, want)
	}
}

// TestOpenAPI checks that every reference has a target, that every operation
// has a unique id, and that every path declares its parameters.
func TestOpenAPI(t *testing.T) {
	f := newFixture(t)
	var doc struct {
		OpenAPI    string
		Info       struct{ Title, Version string }
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	text := f.do(200, "GET", "/api/openapi.json?pretty", "")
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || doc.Info.Title == "" || doc.Info.Version == "" {
		t.Errorf("OpenAPI document = %.200s, want version 3.1.0 with title and version", text)
	}
	for _, ref := range refs(doc) {
		if _, ok := doc.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]; !ok {
			t.Errorf("%s has no target", ref)
		}
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		if strings.Contains(path, "{name}") != (item["parameters"] != nil) {
			t.Errorf("parameters of %s = %v, want the names in braces", path, item["parameters"])
		}
		for method, op := range item {
			if method == "parameters" {
				continue
			}
			op := op.(map[string]any)
			id, _ := op["operationId"].(string)
			if id == "" || ids[id] || op["responses"] == nil {
				t.Errorf("operation %s %s = %v, want a unique operationId and responses", method, path, op)
			}
			ids[id] = true
		}
	}
	if len(ids) != 2+4*4 {
		t.Errorf("document has %d operations, want 2 and 4 for each of 4 types", len(ids))
	}
	for _, op := range []operation{opList, opRead, opWrite, opDelete} {
		for _, name := range op.params {
			if parameterHelp[name].help == "" {
				t.Errorf("parameter %s has no description", name)
			}
		}
	}
	properties := doc.Components.Schemas["wanfed.v1.FederationState"]["properties"].(map[string]any)
	for name, want := range map[string]map[string]any{ // as package protojson encodes the fields
		"mesh_gateways":        {"type": "array"},
		"updated_at":           {"format": "date-time"},
		"primary_modify_index": {"type": "string"},
	} {
		schema, _ := properties[name].(map[string]any)
		for key, value := range want {
			if schema[key] != value {
				t.Errorf("schema of %s = %v, want %s %v", name, properties[name], key, value)
			}
		}
	}
}

// refs returns every $ref in v.
func refs(v any) (all []string) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	for part := range strings.SplitSeq(string(body), `"$ref":"`) {
		if ref, _, ok := strings.Cut(part, `"`); ok && strings.HasPrefix(ref, "#/") {
			all = append(all, ref)
		}
	}
	return all
}

func TestNew(t *testing.T) {
	for missing, cfg := range map[string]Config{
		"DC": {}, "Registry": {DC: "dc1"}, "Client": {DC: "dc1", Registry: resource.NewRegistry()},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "Config."+missing+" is required") {
			t.Errorf("New() without %s = %v, want an error that names it", missing, err)
		}
	}
}
