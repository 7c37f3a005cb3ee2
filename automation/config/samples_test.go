// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/wanfed/wanfed/api/pb"
)

// noEnv is an empty environment.
func noEnv(string) string { return "" }

// samples returns the names and paths of the files in a directory of testdata,
// which becomes the current directory.
func samples(t *testing.T, dir string) map[string]string {
	t.Helper()
	t.Chdir("testdata")
	paths, err := filepath.Glob(dir + "/*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("Glob(%s) = %v, %v, want files", dir, paths, err)
	}
	files := make(map[string]string)
	for _, path := range paths {
		files[strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))] = path
	}
	return files
}

// refused has what Load and CheckModules report for files that CTS refuses.
var refused = map[string]struct {
	line                 int
	block, field, reason string // reason is a part of the text
}{
	"bad-cron":                        {13, `task "t": condition "schedule"`, "cron", "missing field"},
	"bad-duration":                    {17, "buffer_period", "min", "must be a duration"},
	"bad-filter":                      {14, `task "t": condition "services"`, "filter", "no match found"},
	"bad-name":                        {10, `task "1 t"`, "name", "must start with a letter"},
	"bad-regexp":                      {13, `task "t": condition "services"`, "regexp", "missing argument"},
	"broken-hcl":                      {17, "", "", "RBRACE"},
	"catalog-services-without-regexp": {12, `task "t": condition "catalog-services"`, "regexp", "must be set"},
	"check-address-without-scheme":    {6, "consul: service_registration: default_check", "address", "http"},
	"duplicate-name":                  {16, `task "t"`, "name", "duplicate-name.hcl:9"},
	"empty-name-in-names":             {13, `task "t": condition "services"`, "names", "empty name"},
	"kv-without-path":                 {12, `task "t": condition "consul-kv"`, "path", "required"},
	"license":                         {16, "", "license", "not supported"},
	"module-does-not-exist":           {11, `task "t"`, "module", "no such file"},
	"module-without-catalog_services-variable": {11, `task "t"`, "module",
		`missing the "catalog_services" variable, add to module or set "use_as_module_input"`},
	"module-without-consul_kv-variable": {11, `task "t"`, "module", `missing the "consul_kv" variable`},
	"module-without-services-variable": {11, `task "t"`, "module",
		`module for task "t" is missing the "services" variable`},
	"module_input-catalog-services":        {12, `task "t": module_input "catalog-services"`, "", "only for conditions"},
	"module_input-same-as-condition":       {12, `task "t": module_input "services"`, "", "defines already"},
	"module_input-twice":                   {15, `task "t": module_input "consul-kv"`, "", "defines already"},
	"names-and-regexp":                     {12, `task "t": condition "services"`, "", "not both"},
	"negative-buffer":                      {17, "buffer_period", "min", "negative"},
	"neither-names-nor-regexp":             {12, `task "t": condition "services"`, "", "either"},
	"no-module":                            {9, `task "t"`, "module", "required"},
	"no-name":                              {9, "task", "name", "required"},
	"provider-block-name":                  {16, "", "provider", "terraform_provider"},
	"provider-twice":                       {17, `terraform_provider "x"`, "", "provider-twice.hcl:16"},
	"schedule-without-cron":                {12, `task "t": condition "schedule"`, "cron", "required"},
	"service-block-without-name":           {16, "service", "name", "required"},
	"services-list-and-condition-services": {11, `task "t": services`, "", "defines already"},
	"task_env-not-strings":                 {18, `terraform_provider "x": task_env`, "A", "string"},
	"template-outside-provider":            {11, `task "t"`, "module", "only terraform_provider"},
	"terraform-cloud-driver":               {5, `driver "terraform-cloud"`, "", `use driver "terraform"`},
	"terraform-version-not-exact":          {7, `driver "terraform"`, "version", "exact"},
	"terraform-version-unsupported":        {7, `driver "terraform"`, "version", "at least 0.13.0"},
	"tls-without-key":                      {16, "tls", "cert", "needs cert and key"},
	"two-drivers":                          {9, `driver "terraform"`, "", "only one"},
	"two-instances-of-a-provider":          {11, `task "t"`, "providers", "one provider instance"},
	"unknown-backend":                      {7, `driver "terraform": backend "http"`, "", "unsupported backend"},
	"unknown-condition-key":                {13, `task "t": condition "services"`, "", "unknown keys: nmaes"},
	// wanfed has the condition "nodes", but it has no names.
	"unknown-condition-type":     {13, `task "t": condition "nodes"`, "names", "nodes has no names"},
	"unknown-task-key":           {11, `task "t"`, "", "unknown keys: modul"},
	"unknown-top-level-key":      {16, "", "", "unknown keys: foo"},
	"variable-file-missing":      {11, `task "t"`, "variable_files", "no.tfvars does not exist"},
	"vault-without-vault-block":  {17, `terraform_provider "x"`, "a", "secret is not supported"},
	"verify_incoming-without-ca": {19, "tls", "verify_incoming", "ca_cert or ca_path"},
}

// accepted has the warnings for files that CTS accepts too, or that have
// features of wanfed. An empty text: no warning.
var accepted = map[string]string{
	"no-condition":           `no-condition.hcl:9: task "t": condition: the task has no condition`,
	"schedule-without-input": `schedule-without-input.hcl:9: task "t": module_input: the task has a schedule`,
	"min-above-max":          `min-above-max.hcl:17: buffer_period: min: 10s is above max`,
	"high_availability":      `high_availability.hcl:7: driver "terraform": backend "local": the other daemons`,
	"two-conditions":         "",
	"unknown-datacenter":     "", // only a server knows the datacenters
}

func TestLoad_Refused(t *testing.T) {
	files := samples(t, "refuse")
	for name, path := range files {
		cfg, err := Load([]string{path}, noEnv)
		if err == nil {
			err = cfg.CheckModules()
		}
		if warning, ok := accepted[name]; ok {
			if err != nil {
				t.Errorf("Load(%s) = %v, want nil", path, err)
			} else if all := strings.Join(cfg.Warnings, "\n"); !strings.Contains(all, warning) || warning == "" && all != "" {
				t.Errorf("warnings of %s = %q, want %q", path, all, warning)
			}
			continue
		}
		want, ok := refused[name]
		e, isError := errors.AsType[*Error](err)
		switch {
		case !ok:
			t.Errorf("no test row has %s", path)
		case !isError || err != e: // one error
			t.Errorf("Load(%s) = %v, want one Error", path, err)
		case e.File != path || e.Line != want.line || e.Block != want.block || e.Field != want.field ||
			!strings.Contains(e.Reason, want.reason) || strings.Contains(e.Error(), "\n"):
			t.Errorf("Load(%s) = %v, want %+v in one line", path, e, want)
		}
	}
	if got, want := len(files), len(refused)+len(accepted); got != want {
		t.Errorf("%d files, want %d, the number of rows", got, want)
	}
}

// rendered has the tasks of the files that CTS accepts.
var rendered = map[string]string{
	"backend-consul-default": `{"conditions":[{"kind":"services","names":["api"]}]}`,
	"backend-s3":             `{"conditions":[{"kind":"services","names":["api"]}]}`,
	"catalog-services":       `{"conditions":[{"kind":"catalog-services","regexp":"^(web|api)$"}]}`,
	"catalog-services-not-input": `{"conditions":[{"kind":"catalog-services","regexp":"^(web|api)$",
		"node_meta":{"rack":"r1"},"trigger_only":true}],"inputs":[{"kind":"services","names":["api"]}]}`,
	"deprecated-forms": `{"conditions":[{"kind":"services","names":["db"],"datacenter":"dc2","user_meta":{"key":"value"}},
		{"kind":"services","names":["api"]}]}
		{"conditions":[{"kind":"catalog-services","regexp":"^web$"}],
		"inputs":[{"kind":"consul-kv","path":"app/color"},{"kind":"services","names":["api"]}]}`,
	"disabled":    `{"enabled":false,"conditions":[{"kind":"services","names":["api"]}]}`,
	"json-config": `{"conditions":[{"kind":"services","names":["api"]}],"inputs":[{"kind":"consul-kv","path":"app/color"}]}`,
	"kv-missing":  `{"conditions":[{"kind":"consul-kv","path":"no/such"}]}`,
	"kv-one":      `{"conditions":[{"kind":"consul-kv","path":"app/color"}]}`,
	"kv-recurse": `{"conditions":[{"kind":"consul-kv","path":"app","recurse":true}],
		"inputs":[{"kind":"services","names":["api"]}]}`,
	"kv-recurse-not-input": `{"conditions":[{"kind":"consul-kv","path":"app","recurse":true,"trigger_only":true}]}`,
	"module-version": `{"terraform":{"module":"example/thing/aws","version":"1.0.0"},
		"conditions":[{"kind":"services","names":["api"]}]}`,
	"provider-arguments": `{"terraform":{"module":"./mod","providers":["fake.x"]},
		"conditions":[{"kind":"services","names":["api"]}]}`,
	"provider-blocks": `{"terraform":{"module":"./mod","providers":["local","time.b"]},
		"conditions":[{"kind":"services","names":["api"]}]}`,
	"schedule": `{"conditions":[{"kind":"schedule","cron":"*/10 * * * Mon"}],
		"inputs":[{"kind":"services","regexp":"^api$"},{"kind":"consul-kv","path":"app/color"}]}`,
	"services-names": `{"description":"two services by name",
		"conditions":[{"kind":"services","names":["web","api"]}]}`,
	"services-names-not-input": `{"conditions":[{"kind":"services","names":["web"],"trigger_only":true}]}`,
	"services-none-yet":        `{"conditions":[{"kind":"services","names":["none-yet"]}]}`,
	"services-other-dc":        `{"conditions":[{"kind":"services","names":["db"],"datacenter":"dc2"}]}`,
	"services-regexp-filter-meta": `{"conditions":[{"kind":"services","regexp":"^web$","datacenter":"dc1",
		"filter":"\"v1\" in Service.Tags","user_meta":{"team":"net"}}]}`,
	"variable-files": `{"conditions":[{"kind":"services","names":["api"]}],"variables":{"enabled":"true",
		"limits":"{\n  cpu = 1.5\n  names = {\n    a = \"b\"\n  }\n}","tags":"[\"x\", \"y\"]"}}`,
	"working-dir": `{"terraform":{"module":"./mod","working_dir":"elsewhere/t1"},
		"conditions":[{"kind":"services","names":["api"]}]}
		{"conditions":[{"kind":"services","names":["api"]}]}`,
}

// decodeTasks returns the tasks of consecutive JSON objects, with what all tasks
// of the samples have.
func decodeTasks(t *testing.T, text string) (tasks []*pb.Task) {
	t.Helper()
	enabled := true
	for dec := json.NewDecoder(strings.NewReader(text)); dec.More(); {
		var object json.RawMessage
		if err := dec.Decode(&object); err != nil {
			t.Fatalf("Decode(%s) = %v, want nil", text, err)
		}
		out := &pb.Task{}
		if err := protojson.Unmarshal(object, out); err != nil {
			t.Fatalf("Unmarshal(%s) = %v, want nil", object, err)
		}
		if out.Terraform == nil {
			out.Terraform = &pb.TerraformDriver{Module: "./mod"}
		}
		if out.Enabled == nil {
			out.Enabled = &enabled
		}
		out.Driver, out.Group, out.Origin = "terraform", "default", "file"
		tasks = append(tasks, out)
	}
	return tasks
}

func TestLoad_Rendered(t *testing.T) {
	files := samples(t, "render")
	for name, path := range files {
		cfg, err := Load([]string{path}, noEnv)
		if err == nil {
			err = cfg.CheckModules()
		}
		if err != nil {
			t.Errorf("Load(%s) = %v, want nil", path, err)
			continue
		}
		if len(cfg.Warnings) > 0 != (name == "deprecated-forms") {
			t.Errorf("warnings of %s = %q", path, cfg.Warnings)
		}
		var got []*pb.Task
		for _, task := range cfg.Tasks {
			got = append(got, task.Task)
		}
		if diff := cmp.Diff(decodeTasks(t, rendered[name]), got, protocmp.Transform()); diff != "" {
			t.Errorf("tasks of %s differ (-want +got):\n%s", path, diff)
		}
	}
	if len(files) != len(rendered) {
		t.Errorf("%d files, want %d, the number of rows", len(files), len(rendered))
	}
}

func TestLoad_DeprecatedNames(t *testing.T) {
	cfg, err := Load([]string{samples(t, "render")["deprecated-forms"]}, noEnv)
	if err != nil {
		t.Fatalf("Load() = %v, want nil", err)
	}
	for _, want := range []string{":9: service: ", `:19: task "t": source: `, `:20: task "t": services: `,
		`:24: task "t2": source: `, `:25: task "t2": services: `, `:30: task "t2": source_input: `,
		`:28: task "t2": condition "catalog-services": source_includes_var: `} {
		if all := strings.Join(cfg.Warnings, "\n"); strings.Count(all, want+"is deprecated") != 1 {
			t.Errorf("warnings = %s, want one with %q", all, want)
		}
	}
	if len(cfg.Warnings) != 7 {
		t.Errorf("%d warnings, want 7", len(cfg.Warnings))
	}
}
