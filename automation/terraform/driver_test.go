// SPDX-License-Identifier: MPL-2.0

//go:build linux

package terraform

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-version"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
)

// fake writes a program that prints the text of a version.
func fake(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := write(t, dir, name, "#!/bin/sh\nprintf '%s\\n' '"+text+"'\n")
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatalf("Chmod() = %v, want nil", err)
	}
	return path
}

func TestVersion(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	tofu := fake(t, dir, "tofu", "OpenTofu v1.9.0\non linux_amd64")
	for _, test := range []struct{ name, path, want string }{
		{"directory", dir, "OpenTofu 1.9.0"},
		{"file", tofu, "OpenTofu 1.9.0"},
		{"pre-release", fake(t, dir, "beta", "Terraform v1.15.0-beta1"), "Terraform 1.15.0-beta1"},
		{"old", fake(t, dir, "old", "Terraform v0.12.31\n"), "!has version 0.12.31: install version 0.13.0 or newer"},
		{"oldest", fake(t, dir, "oldest", "\nTerraform v0.13.0-rc1"), "Terraform 0.13.0-rc1"},
		{"other program", fake(t, dir, "other", "hello"), `!unexpected output "hello"`},
		{"empty directory", empty, "!no terraform or tofu in " + empty},
		{"missing", filepath.Join(empty, "x"), "!no such file"},
	} {
		got, err := New(Config{Path: test.path}).Version(t.Context())
		if want, fails := strings.CutPrefix(test.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Version() = %q, %v, want %s", test.name, got, err, want)
			}
		} else if got != want || err != nil {
			t.Errorf("%s: Version() = %q, %v, want %s", test.name, got, err, want)
		}
	}
	d := New(Config{Path: dir})
	for _, want := range []string{"OpenTofu 1.9.0", "OpenTofu 1.10.0"} { // an update is noticed
		if got, err := d.Version(t.Context()); got != want || err != nil {
			t.Errorf("Version() = %q, %v, want %s", got, err, want)
		}
		fake(t, dir, "tofu", "OpenTofu v1.10.0\non linux_amd64")
	}
	t.Setenv("PATH", dir)
	if got, err := New(Config{}).Version(t.Context()); got != "OpenTofu 1.10.0" || err != nil {
		t.Errorf("Version() of the program in PATH = %q, %v, want OpenTofu 1.10.0", got, err)
	}
}

func TestCheck(t *testing.T) {
	d := New(Config{Path: fake(t, t.TempDir(), "terraform", "Terraform v1.11.4")})
	const both = `variable "services" {}` + "\n" + `variable "consul_kv" {}`
	for _, test := range []struct {
		name   string
		change func(w *driver.Work)
		want   string
	}{
		{"valid", func(*driver.Work) {}, ""},
		{"remote module", func(w *driver.Work) { w.Task.Terraform.Module = "example/thing/aws" }, ""},
		{"JSON", func(w *driver.Work) {
			write(t, w.Task.Terraform.Module, "more.tf.json", `{"variable": {"catalog_services": {}}}`)
			w.Task.Inputs = []*pb.TaskQuery{{Kind: task.KindCatalogServices}}
		}, ""},
		{"no directory", func(w *driver.Work) { w.Task.Terraform.Module = "./none" },
			`read the module: open ` + cwd(t) + `/none: no such file or directory`},
		{"no files", func(w *driver.Work) { w.Task.Terraform.Module = t.TempDir() }, "it is not a module"},
		{"invalid", func(w *driver.Work) { write(t, w.Task.Terraform.Module, "main.tf", "variable {") }, "main.tf:1,"},
		{"services", func(w *driver.Work) { write(t, w.Task.Terraform.Module, "main.tf", `variable "x" {}`) },
			`module for task "t" is missing the "services" variable`},
		{"catalog_services", func(w *driver.Work) { w.Task.Conditions[0].Kind = task.KindCatalogServices },
			`module for task "t" is missing the "catalog_services" variable, add to module or set "use_as_module_input" to false`},
		{"trigger only", func(w *driver.Work) {
			w.Task.Conditions[0].Kind, w.Task.Conditions[0].TriggerOnly = task.KindCatalogServices, true
		}, ""},
		{"variable", func(w *driver.Work) { w.Task.Variables = map[string]string{"y": "1"} }, `is missing the "y" variable`},
		{"provider", func(w *driver.Work) { w.Task.Terraform.Providers = []string{"local.b"} },
			`the provider "local.b" is not configured`},
		{"argument", func(w *driver.Work) {
			w.Providers = []driver.Provider{{Name: "p", Body: []driver.Item{{Name: "a b", Value: json.RawMessage("1")}}}}
		}, `provider "p": "a b" is not a name of an argument`},
		{"argument twice", func(w *driver.Work) {
			w.Providers = []driver.Provider{{Name: "p", Body: []driver.Item{{Name: "a", Value: json.RawMessage("1")}, {Name: "a"}}}}
		}, `provider "p": a is set twice`},
		{"name twice", func(w *driver.Work) {
			w.Providers = []driver.Provider{{Name: "services"}}
			w.Task.Variables = map[string]string{"services": "1"}
		}, `variable "services": a condition, an input or a provider has this name`},
	} {
		w := work(t, both)
		w.Backend.Type = backendHTTP
		w.Task.Conditions = []*pb.TaskQuery{{Kind: task.KindKV, Path: "a"}}
		test.change(w)
		err := d.Check(t.Context(), w)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: Check() = %v, want %q", test.name, err, test.want)
		}
	}
}

// Runs with a plugin cache initialize one after the other.
func TestRun_PluginCache(t *testing.T) {
	t.Setenv("TF_PLUGIN_CACHE_DIR", t.TempDir())
	bin := write(t, t.TempDir(), "terraform", `#!/bin/sh
case $1 in
version) echo "Terraform v1.11.4" ;;
init) mkdir "$TF_PLUGIN_CACHE_DIR/x" && sleep 0.05 && rmdir "$TF_PLUGIN_CACHE_DIR/x" ;;
esac
`)
	if err := os.Chmod(bin, 0o700); err != nil {
		t.Fatalf("Chmod() = %v, want nil", err)
	}
	d := New(Config{Path: bin})
	errs := make(chan error)
	for i := range 4 {
		w := work(t, `variable "services" {}`)
		w.Backend.Type = backendHTTP
		go func() {
			_, err := d.Run(t.Context(), w, driver.Request{ID: strconv.Itoa(i), Mode: driver.Apply})
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	}
}

func cwd(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("Getwd() = %v, want nil", err)
	}
	return dir
}

func TestDigest(t *testing.T) {
	d, w := New(Config{}), work(t, "")
	module := w.Task.Terraform.Module
	digest := func(want bool, change string) {
		t.Helper()
		before, err := d.Digest(t.Context(), w)
		switch change {
		case "content":
			write(t, module, "main.tf", "x")
		case "file":
			write(t, module, "template.txt", "x")
		case "time":
			err = os.Chtimes(filepath.Join(module, "main.tf"), time.Time{}, time.Unix(1, 0))
		case "hidden directory":
			err = os.MkdirAll(filepath.Join(module, ".terraform", "x"), 0o700)
			write(t, filepath.Join(module, ".terraform"), "x.tf", "x")
		}
		after, err2 := d.Digest(t.Context(), w)
		if err != nil || err2 != nil || (before != after) != want || before == "" {
			t.Errorf("after a change of %s: Digest() = %q, %v, was %q, %v; want a change: %v", change, after, err2, before, err, want)
		}
	}
	digest(true, "content")
	digest(true, "file")
	digest(false, "time")
	digest(false, "hidden directory")
	w.Task.Terraform.Module = module + "/none"
	if _, err := d.Digest(t.Context(), w); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Digest() without the module = %v, want not exist", err)
	}
}

// Terraform before 0.14 has no sensitive variables.
func TestGenerate_Oldest(t *testing.T) {
	w := &driver.Work{Name: "t", Task: &pb.Task{}, Providers: []driver.Provider{{Name: "p"}}}
	for v, want := range map[string]bool{"0.13.7": false, "0.14.0": true} {
		root, err := generate(w, &binary{version: version.Must(version.NewVersion(v))})
		if got := strings.Contains(string(root.files[providersFile]), "sensitive"); got != want || err != nil {
			t.Errorf("%s: sensitive = %v, %v, want %v", v, got, err, want)
		}
	}
}

// A Terraform without JSON output.
func TestOutput_Text(t *testing.T) {
	for text, want := range map[string]output{
		"x\nApply complete! Resources: 1 added, 2 changed, 3 destroyed.\n": {
			complete: true, changes: driver.Changes{Add: 1, Change: 2, Destroy: 3}},
		"Destroy complete! Resources: 4 destroyed.": {complete: true, changes: driver.Changes{Destroy: 4}},
		"\nError: First problem\n\n  on main.tf line 1:\n   1: x\n\nDetails.\n\nError: Second\n": {
			errors: []string{"First problem on main.tf line 1: 1: x Details.", "Second"}},
		`{"@message":"Plan: 1 to add","type":"change_summary","changes":{"add":1,"operation":"plan"}}`: {},
		"{broken\n": {},
	} {
		var got output
		got.read(strings.NewReader(text))
		got.text, got.isText = nil, false
		if d := cmp.Diff(want, got, cmp.AllowUnexported(output{})); d != "" {
			t.Errorf("read(%q) (-want +got):\n%s", text, d)
		}
	}
}

// FuzzOutput reads output of programs that providers and modules start.
func FuzzOutput(f *testing.F) {
	f.Add([]byte(`{"@message":"Error: x","type":"diagnostic","diagnostic":{"severity":"error","summary":"x","detail":"y\n","address":"a"}}`))
	f.Add([]byte("Error: x\n\ny\n{\"@message\":\"z\"}\nApply complete! Resources: 1 added, 2 changed, 3 destroyed."))
	f.Add([]byte(strings.Repeat("x", maxLine+10) + "\nError: \xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o output
		o.read(strings.NewReader(string(b)))
		if err := o.err("terraform apply"); strings.Contains(err.Error(), "\n") || len(err.Error()) > 2*maxError+100 {
			t.Errorf("err() = %q, want one line", err)
		}
		if len(o.text) > 4*task.MaxLog {
			t.Errorf("text has %d bytes, want at most %d", len(o.text), 4*task.MaxLog)
		}
	})
}
