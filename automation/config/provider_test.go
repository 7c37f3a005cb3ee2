// SPDX-License-Identifier: MPL-2.0

package config

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
)

// lookups has the environment and the keys of the samples.
var lookups = Lookups{
	Env: func(name string) string { return map[string]string{"GOLD_TOKEN": "secret-token"}[name] },
	Key: func(_ context.Context, path string) (string, error) {
		if path != "app/color" {
			return "", fmt.Errorf("key %s does not exist", path)
		}
		return "blue", nil
	},
}

func TestEvaluate_Samples(t *testing.T) {
	files := samples(t, "render")
	for name, want := range map[string][]driver.Provider{
		"provider-blocks": {{Name: "local"}, {Name: "time", Alias: "b", Env: map[string]string{"SOME_TOKEN": "secret-token"}}},
		"provider-arguments": {{Name: "fake", Alias: "x", Body: []driver.Item{
			{Name: "address", Value: []byte(`"fw.example.com"`)}, {Name: "port", Value: []byte(`8443`)},
			{Name: "list", Value: []byte(`["a","b"]`)}, {Name: "token", Value: []byte(`"blue"`)},
			{Name: "obj", Body: []driver.Item{{Name: "id", Value: []byte(`"1"`)}, {Name: "name", Value: []byte(`"n"`)}}},
		}}},
	} {
		cfg, err := Load([]string{files[name]}, noEnv)
		if err != nil {
			t.Fatalf("Load(%s) = %v, want nil", name, err)
		}
		got, err := cfg.Evaluate(t.Context(), cfg.Tasks[0].Task, lookups)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Evaluate() of %s = %v, differs (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestEvaluate_Bodies(t *testing.T) {
	write(t, map[string]string{
		"h.hcl": `terraform_provider "a" {
			map = { k = "{{ key \"app/color\" }}", n = 0x10, f = 1.50, on = true }
			block {}
			block { "quoted key" = [["x"], [1]] }
			labeled "l" { v = <<EOF
two
lines
EOF
			}
			literal = "a ${b} { } <>"
		}`,
		"j.json": `{"terraform_provider": {"a": {"alias": "j", "null": null, "block": {"b": {"on": [true]}}, "blocks": [{"n": 1}, {}],
			"list": [], "big": 123456789012345678901234567890}}}`,
	})
	cfg, err := Load([]string{"h.hcl", "j.json"}, noEnv)
	if err != nil {
		t.Fatalf("Load() = %v, want nil", err)
	}
	got, err := cfg.Evaluate(t.Context(), &pb.Task{Terraform: &pb.TerraformDriver{Providers: []string{"a.j", "a", "none"}}}, lookups)
	want := []driver.Provider{
		{Name: "a", Alias: "j", Body: []driver.Item{
			{Name: "block", Body: []driver.Item{{Name: "b", Body: []driver.Item{{Name: "on", Value: []byte(`[true]`)}}}}},
			{Name: "blocks", Body: []driver.Item{{Name: "n", Value: []byte(`1`)}}}, {Name: "blocks"},
			{Name: "list", Value: []byte(`[]`)}, {Name: "big", Value: []byte(`123456789012345678901234567890`)},
		}},
		{Name: "a", Body: []driver.Item{
			{Name: "map", Value: []byte(`{"f":1.5,"k":"blue","n":16,"on":true}`)},
			{Name: "block"}, {Name: "block", Body: []driver.Item{{Name: "quoted key", Value: []byte(`[["x"],[1]]`)}}},
			{Name: "labeled", Body: []driver.Item{{Name: "l", Body: []driver.Item{{Name: "v", Value: []byte(`"two\nlines\n"`)}}}}},
			{Name: "literal", Value: []byte(`"a ${b} { } \u003c\u003e"`)},
		}},
		{Name: "none"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Evaluate() = %v, differs (-want +got):\n%s", err, diff)
	}
}

// Values are read at each evaluation.
func TestEvaluate_AtEachRun(t *testing.T) {
	cfg := load(t, `terraform_provider "a" { v = "{{ env \"N\" }}-{{- key \"k\" }}{{ \"{{\" }}" }`)
	n := 0
	count := Lookups{Env: func(string) string { n++; return fmt.Sprint(n) },
		Key: func(context.Context, string) (string, error) { return "v", nil }}
	for _, want := range []string{`"1-v{{"`, `"2-v{{"`} {
		p, err := cfg.Providers[0].Evaluate(t.Context(), count)
		if err != nil || string(p.Body[0].Value) != want {
			t.Errorf("Evaluate() = %s, %v, want %s", p.Body[0].Value, err, want)
		}
	}
}

func TestEvaluate_MissingKey(t *testing.T) {
	failure := errors.New("no such key")
	missing := Lookups{Env: noEnv, Key: func(context.Context, string) (string, error) { return "", failure }}
	for text, want := range map[string]string{
		`terraform_provider "a" { b { v = "{{ key \"k\" }}" } }`:        `c.hcl:1: terraform_provider "a": b: v: `,
		`terraform_provider "a" { task_env { V = "{{ key \"k\" }}" } }`: `c.hcl:1: terraform_provider "a": task_env: V: `,
	} {
		cfg := load(t, text)
		_, err := cfg.Providers[0].Evaluate(t.Context(), missing)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), failure.Error()) {
			t.Errorf("Evaluate(%s) = %v, want an error that begins with %q and has the failure", text, err, want)
		}
	}
}

// A process evaluates the providers of several tasks at the same time.
func TestEvaluate_Concurrent(t *testing.T) {
	cfg := load(t, `terraform_provider "a" { b { v = "{{ env \"N\" }}" } task_env { V = "x" } }`)
	done := make(chan error, 8)
	for range cap(done) {
		go func() { _, err := cfg.Providers[0].Evaluate(t.Context(), lookups); done <- err }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Errorf("Evaluate() = %v, want nil", err)
		}
	}
}
