// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
)

func TestTypes(t *testing.T) {
	g := newRig(t)
	var all []api.ResourceType
	if err := json.Unmarshal([]byte(g.do(200, "GET", "/api/types", "")), &all); err != nil {
		t.Fatal(err)
	}
	want := api.ResourceType{
		Type:  api.ResourceTypeName{Group: "federation", GroupVersion: "v1", Kind: "FederationState"},
		Scope: "cluster", Federated: true, Message: "wanfed.v1.FederationState", Path: "/api/federation/v1/FederationState",
	}
	if len(all) != 4 || all[1] != want {
		t.Errorf("types = %+v", all)
	}
}

// TestOpenAPI checks that every reference has a target, every operation a unique id,
// and every path declares its parameters. The schemas agree with protojson.
func TestOpenAPI(t *testing.T) {
	g := newRig(t)
	var doc struct {
		OpenAPI    string
		Info       struct{ Title, Version string }
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	text := g.do(200, "GET", "/api/openapi.json?pretty", "")
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || doc.Info.Title == "" || doc.Info.Version == "" {
		t.Errorf("OpenAPI document = %.200s", text)
	}
	for _, ref := range refs(doc) {
		if _, ok := doc.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]; !ok {
			t.Errorf("%s has no target", ref)
		}
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		if strings.Contains(path, "{name}") != (item["parameters"] != nil) {
			t.Errorf("parameters of %s = %v", path, item["parameters"])
		}
		for method, op := range item {
			if method == "parameters" {
				continue
			}
			op := op.(map[string]any)
			id, _ := op["operationId"].(string)
			if id == "" || ids[id] || op["responses"] == nil {
				t.Errorf("operation %s %s = %v", method, path, op)
			}
			ids[id] = true
		}
	}
	if len(ids) != 2+4*4 {
		t.Errorf("document has %d operations, want 2 and 4 for each type", len(ids))
	}
	for _, op := range []operation{opList, opRead, opWrite, opDelete} {
		for _, name := range op.params {
			if parameterHelp[name].help == "" {
				t.Errorf("parameter %s has no description", name)
			}
		}
	}
	properties := doc.Components.Schemas["wanfed.v1.FederationState"]["properties"].(map[string]any)
	if got := slices.Sorted(maps.Keys(properties)); !slices.Contains(got, "mesh_gateways") || !slices.Contains(got, "updated_at") {
		t.Errorf("properties = %v", got)
	}
	if got := properties["updated_at"]; got.(map[string]any)["format"] != "date-time" {
		t.Errorf("schema of updated_at = %v", got)
	}
	if got := properties["primary_modify_index"]; got.(map[string]any)["type"] != "string" {
		t.Errorf("schema of primary_modify_index = %v", got)
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
	if _, err := New(Config{}); err == nil {
		t.Error("New() of an empty Config = nil, want an error")
	}
}
