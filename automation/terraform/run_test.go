// SPDX-License-Identifier: MPL-2.0

//go:build linux

package terraform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/input"
	"github.com/wanfed/wanfed/automation/task"
)

// kv makes a task with keys as input.
func kv(w *driver.Work) *driver.Work {
	w.Task.Conditions = []*pb.TaskQuery{{Kind: task.KindKV, Path: "a", Recurse: true}}
	return w
}

func keys(text string) input.Set { return input.Set{"consul_kv": json.RawMessage(text)} }

func TestRun_ApplyAndDestroy(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := kv(work(t, eachKey))
	b.serve(t, w)
	for _, step := range []struct {
		mode   driver.Mode
		inputs input.Set
		want   driver.Changes
		left   int
		init   bool
	}{
		{driver.Apply, keys(`{"a":"1","b":"2"}`), driver.Changes{Add: 2}, 2, true},
		{driver.Apply, keys(`{"a":"1","b":"2"}`), driver.Changes{}, 2, false},
		{driver.Apply, keys(`{"a":"3","c":"2"}`), driver.Changes{Add: 1, Change: 1, Destroy: 1}, 2, false},
		{driver.Destroy, nil, driver.Changes{Destroy: 2}, 0, false},
	} {
		res := apply(t, d, w, driver.Request{ID: "r", Mode: step.mode, Inputs: step.inputs})
		if res.Changes != step.want {
			t.Errorf("%s: changes = %+v, want %+v", step.mode, res.Changes, step.want)
		}
		if n := read(t, b.state).instances(); n != step.left {
			t.Errorf("%s: %d instances in the state, want %d", step.mode, n, step.left)
		}
		if init := logged(w, "Terraform has been successfully initialized"); init != step.init {
			t.Errorf("%s: init ran: %v, want %v", step.mode, init, step.init)
		}
		if b.lock != "" {
			t.Errorf("%s: the state is locked by %s", step.mode, b.lock)
		}
	}
}

// Values arrive as they are, also those of CTS.
func TestRun_Values(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := kv(work(t, `
variable "services" {}
variable "consul_kv" { type = map(string) }
variable "user" {}
resource "terraform_data" "x" { input = { services = var.services, consul_kv = var.consul_kv, user = var.user } }
`))
	b.serve(t, w)
	value, err := json.Marshal(map[string]string{
		`quote " ' ${path.root} %{ if true }`: "newline \n tab \t ${x} %{ y } \\ \u00e9 \u2028 <>&",
		"large":                               strings.Repeat("x", 512<<10),
	})
	if err != nil {
		t.Fatalf("Marshal() = %v, want nil", err)
	}
	w.Task.Variables = map[string]string{"user": `{ a = ["$${x}", 1.5, true, null] }`}
	inputs := input.Set{"consul_kv": value}
	for _, c := range renderCases(t) {
		if v := c.Inputs["services"]; len(v) > len(inputs["services"]) {
			inputs["services"] = v
		}
	}
	apply(t, d, w, driver.Request{ID: "r", Inputs: inputs})
	var got, want any
	if err := json.Unmarshal(read(t, b.state).Resources[0].Instances[0].Attributes.Input.Value, &got); err != nil {
		t.Fatalf("Unmarshal() = %v, want nil", err)
	}
	text := `{"services":` + string(inputs["services"]) + `,"consul_kv":` + string(value) + `,"user":{"a":["${x}",1.5,true,null]}}`
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatalf("Unmarshal() = %v, want nil", err)
	}
	compare(t, "values", got, want)
}

// A module gets a map of more elements than a part has, with the type that it
// declares, or with that of CTS.
func TestRun_Types(t *testing.T) {
	d := newDriver(t)
	services := make(map[string]any)
	for i := range 3 * partSize {
		meta, tags := map[string]string{}, []string{}
		if i%2 == 0 {
			meta["m"], tags = "1", []string{"a", "b"}
		}
		key := fmt.Sprintf("web%d.n.dc1", i)
		services[key] = map[string]any{
			"id": key, "name": "web", "kind": "", "address": "10.0.0.1", "port": i, "meta": meta, "tags": tags, "namespace": "",
			"status": "passing", "node": "n", "node_id": "", "node_address": "10.0.0.1", "node_datacenter": "dc1",
			"node_tagged_addresses": map[string]string{}, "node_meta": map[string]string{}, "cts_user_defined_meta": map[string]string{},
		}
	}
	text, err := json.Marshal(services)
	if err != nil {
		t.Fatalf("Marshal() = %v, want nil", err)
	}
	for _, test := range []struct{ name, declared, want string }{
		{"type of CTS", `type = ` + input.Type("services"), `["map","passing"]`},
		{"some attributes", `type = map(object({ port = number, tags = set(string) }))`, `["map",null]`},
		{"other types of attributes", `type = map(object({ port = string, status = string }))`, `["map","passing"]`},
		{"any", `type = any`, `["map","passing"]`},
		{"map of any", `type = map(any)`, `["map","passing"]`},
		{"optional attribute", `type = map(object({ port = number, status = optional(string), none = optional(string) }))`, `["map","passing"]`},
		{"no type", ``, `["map","passing"]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := new(backend)
			w := work(t, fmt.Sprintf(`
variable "services" {
  %s
}
locals {
  first  = var.services["web0.n.dc1"]
  chosen = length(var.services) > 0 ? var.services : {}
}
resource "terraform_data" "x" {
  input = [keys(var.services) == tolist(keys(var.services)) ? "map" : "object", try(local.first.status, null)]
}
resource "terraform_data" "each" {
  for_each = local.chosen
  input    = tonumber(each.value.port)
}
`, test.declared))
			b.serve(t, w)
			res := apply(t, d, w, driver.Request{ID: "r" + test.name, Inputs: input.Set{"services": text}})
			if want := (driver.Changes{Add: 3*partSize + 1}); res.Changes != want {
				t.Errorf("changes = %+v, want %+v", res.Changes, want)
			}
			for _, r := range read(t, b.state).Resources {
				if r.Name != "x" {
					continue
				}
				var got bytes.Buffer
				if err := json.Compact(&got, r.Instances[0].Attributes.Input.Value); err != nil || got.String() != test.want {
					t.Errorf("result = %s, %v, want %s", got.String(), err, test.want)
				}
			}
		})
	}
}

func TestParts(t *testing.T) {
	object := func(n int) []byte {
		all := make(map[string]int)
		for i := range n {
			all[strconv.Itoa(i)] = i
		}
		b, err := json.Marshal(all)
		if err != nil {
			t.Fatalf("Marshal() = %v, want nil", err)
		}
		return b
	}
	for n, want := range map[int]int{0: 1, 1: 1, partSize: 1, partSize + 1: 2, 10 * partSize: 10} {
		b, err := parts(object(n))
		var list []map[string]int
		if err == nil {
			err = json.Unmarshal(b, &list)
		}
		all := make(map[string]int)
		for _, part := range list {
			maps.Copy(all, part)
		}
		if err != nil || len(list) != want || len(all) != n {
			t.Errorf("parts() of %d elements = %d parts with %d, %v, want %d with all", n, len(list), len(all), err, want)
		}
	}
	if _, err := parts([]byte("[]")); err == nil {
		t.Error("parts() of a list = nil, want an error")
	}
}

func TestRun_PlanAndGuard(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := kv(work(t, eachKey))
	b.serve(t, w)
	res := apply(t, d, w, driver.Request{ID: "r1", Mode: driver.Plan, Inputs: keys(`{"a":"1"}`)})
	if (res.Changes != driver.Changes{Add: 1}) || !strings.Contains(res.Plan, "1 to add, 0 to change, 0 to destroy") || b.state != nil {
		t.Errorf("plan = %+v %q, state %.20s, want one addition and no state", res.Changes, res.Plan, b.state)
	}
	apply(t, d, w, driver.Request{ID: "r2", Inputs: keys(`{"a":"1","b":"2","c":"3"}`)})

	refused := errors.New("too many")
	want := driver.Changes{Add: 1, Change: 1, Destroy: 2, Total: 3}
	for _, verdict := range []error{refused, nil} {
		var got driver.Changes
		res, err := d.Run(t.Context(), w, driver.Request{ID: "r3", Mode: driver.Apply, Inputs: keys(`{"a":"x","d":"2"}`),
			Guard: func(c driver.Changes) error { got = c; return verdict }})
		left := map[bool]int{true: 3, false: 2}[verdict != nil]
		if !errors.Is(err, verdict) || got != want || res.Changes != want || read(t, b.state).instances() != left {
			t.Errorf("Run() with guard %v = %+v, %v, want changes %+v; the guard received %+v; %d instances",
				verdict, res.Changes, err, want, got, read(t, b.state).instances())
		}
	}
	if logged(w, "successfully initialized") {
		t.Error("init ran after the guard has refused a run")
	}
}

// Secrets of providers and of the backend are not on disk, neither in plain text
// nor in a plan.
func TestRun_NoSecretOnDisk(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := kv(work(t, eachKey))
	b.serve(t, w)
	w.Providers = []driver.Provider{{Name: "terraform", Alias: secret, Env: map[string]string{"SECRET": secret}}}
	w.Env = map[string]string{"TOKEN": secret}
	res := apply(t, d, w, driver.Request{ID: "r", Inputs: keys(`{"a":"1"}`), Guard: func(driver.Changes) error {
		searchSecret(t, w.Dir)
		return nil
	}})
	searchSecret(t, w.Dir)
	if strings.Contains(res.Plan+res.Log, secret) {
		t.Error("the result has the secret")
	}
}

// searchSecret fails the test if a file has the secret, or is a plan.
func searchSecret(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if files++; bytes.Contains(b, []byte(secret)) || bytes.HasPrefix(b, []byte("PK\x03\x04")) {
			t.Errorf("%s has the secret or is a plan", path)
		}
		info, err := e.Info()
		if err == nil && filepath.Dir(path) == dir && !strings.HasPrefix(e.Name(), ".terraform") && info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s = %v, want 0600", path, info.Mode())
		}
		return err
	})
	if err != nil || files < 5 {
		t.Errorf("searched %d files, %v, want at least 5", files, err)
	}
}

// init runs again after each change of what it depends on.
func TestRun_Init(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := work(t, `variable "services" {}`)
	b.serve(t, w)
	module := w.Task.Terraform.Module
	for _, step := range []struct {
		name   string
		change func()
		init   bool
	}{
		{"first run", func() {}, true},
		{"nothing", func() {}, false},
		{"values", func() { w.Providers = []driver.Provider{{Name: "terraform"}}; w.Task.Variables = nil }, true},
		{"secret", func() { w.Providers[0].Env = map[string]string{"A": "b"} }, false},
		{"backend's address", func() { new(backend).serve(t, w) }, false},
		{"module", func() { write(t, module, "x.tf", `resource "terraform_data" "x" {}`) }, true},
		{"hidden file", func() { write(t, module, ".x", "") }, false},
		{"installation removed", func() { os.RemoveAll(filepath.Join(w.Dir, ".terraform")) }, true},
	} {
		step.change()
		apply(t, d, w, driver.Request{ID: "r"})
		if init := logged(w, "successfully initialized"); init != step.init {
			t.Errorf("after a change of %s: init ran: %v, want %v", step.name, init, step.init)
		}
	}
	write(t, module, "x.tf", `resource "terraform_data" "x" { input = file("missing") }`)
	if _, err := d.Run(t.Context(), w, driver.Request{ID: "r", Mode: driver.Apply}); err == nil {
		t.Error("Run() of an invalid module = nil, want an error")
	}
	if _, err := os.Stat(filepath.Join(w.Dir, digestFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(digest) after a failure = %v, want not exist", err)
	}
}

// Files of CTS do not override values.
func TestRun_DirectoryOfCTS(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := kv(work(t, eachKey))
	b.serve(t, w)
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		t.Fatalf("MkdirAll() = %v, want nil", err)
	}
	for _, name := range outdated {
		write(t, w.Dir, name, "not valid HCL {")
	}
	apply(t, d, w, driver.Request{ID: "r", Inputs: keys(`{"a":"1"}`)})
}

// A backend of the configuration has a workspace with the name of the task.
func TestRun_LocalBackend(t *testing.T) {
	d := newDriver(t)
	w := kv(work(t, eachKey))
	w.Backend = driver.Backend{Type: "local"}
	for range 2 {
		apply(t, d, w, driver.Request{ID: "r", Inputs: keys(`{"a":"1"}`)})
	}
	path := filepath.Join(w.Dir, "terraform.tfstate.d", "t", "terraform.tfstate")
	text, err := os.ReadFile(path)
	if err != nil || read(t, text).instances() != 1 {
		t.Fatalf("state = %.100s, %v, want one instance", text, err)
	}
	// The workspace exists when the directory is initialized again.
	if err := os.RemoveAll(filepath.Join(w.Dir, ".terraform")); err != nil {
		t.Fatalf("RemoveAll() = %v, want nil", err)
	}
	// A state that could not be stored is stored by the next run.
	s := strings.Replace(string(text), `"serial": 1`, `"serial": 5`, 1)
	if s == string(text) {
		t.Fatalf("state has no serial 1: %.200s", text)
	}
	write(t, w.Dir, erroredState, s)
	apply(t, d, w, driver.Request{ID: "r", Inputs: keys(`{"a":"1"}`)})
	if text, err = os.ReadFile(path); err != nil || read(t, text).Serial != 5 {
		t.Errorf("serial = %d, %v, want 5", read(t, text).Serial, err)
	}
	if _, err := os.Stat(filepath.Join(w.Dir, erroredState)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(%s) = %v, want not exist", erroredState, err)
	}
}

func TestRun_Failures(t *testing.T) {
	d, b := newDriver(t), new(backend)
	for _, test := range []struct{ name, module, want string }{
		{"provisioner", `variable "services" {}
			resource "terraform_data" "x" {
				provisioner "local-exec" { command = "echo problem; exit 3" }
			}`, `terraform apply: exit status 1: local-exec provisioner error: Error running command ` +
			`'echo problem; exit 3': exit status 3. Output: problem (module.t.terraform_data.x)`},
		{"missing argument", `variable "services" {}
			variable "x" {}`, `terraform apply: exit status 1: Missing required argument: The argument "x" is required, ` +
			`but no definition was found.`},
		{"provider", `variable "services" {}
			resource "wanfed_none" "x" {}`, `terraform init: exit status 1: Failed to query available provider packages`},
		{"syntax", `variable "services" {`, `terraform init: exit status 1: Unclosed configuration block`},
		{"two", `variable "services" {}
			output "x" { value = file("missing") }
			output "y" { value = file("missing") }`, " (first of 2 errors)"},
		{"type", `variable "services" { type = string }`, `terraform apply: exit status 1: Invalid value for input variable: `},
	} {
		w := work(t, test.module)
		b.serve(t, w)
		res, err := d.Run(t.Context(), w, driver.Request{ID: "r", Mode: driver.Apply})
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 800 {
			t.Errorf("%s: Run() = %v, want one line with %s", test.name, err, test.want)
		}
		if res.Log == "" {
			t.Errorf("%s: no log", test.name)
		}
	}
}

func TestRun_Directory(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := kv(work(t, eachKey))
	b.serve(t, w)
	write(t, filepath.Dir(w.Dir), "t", "a file")
	_, err := d.Run(t.Context(), w, driver.Request{ID: "r", Mode: driver.Apply})
	if want := `create the directory of the task: mkdir ` + w.Dir + ": not a directory"; err == nil || err.Error() != want {
		t.Errorf("Run() with a file as directory = %v, want %s", err, want)
	}

	w.Dir = filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(w.Dir, 0o700); err != nil {
		t.Fatalf("Mkdir() = %v, want nil", err)
	}
	if err := unix.Mount("none", w.Dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer func() { _ = unix.Unmount(w.Dir, unix.MNT_DETACH) }()
	large := keys(`{"a":"` + strings.Repeat("x", 128<<10) + `"}`)
	_, err = d.Run(t.Context(), w, driver.Request{ID: "r", Mode: driver.Apply, Inputs: large})
	if err == nil || !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Run() with a full disk = %v, want one line with ENOSPC", err)
	}
	if err := unix.Mount("none", w.Dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatalf("Mount(read-only) = %v, want nil", err)
	}
	if _, err = d.Run(t.Context(), w, driver.Request{ID: "r", Mode: driver.Apply}); !errors.Is(err, unix.EROFS) {
		t.Errorf("Run() in a read-only directory = %v, want EROFS", err)
	}
}
