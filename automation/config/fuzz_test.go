// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/wanfed/wanfed/automation/task"
)

// fuzz loads a file of that name with arbitrary content. The tasks of a file
// without errors are valid, and all errors in a file have its name.
func fuzz(f *testing.F, name string) {
	for _, dir := range []string{"render", "refuse"} {
		paths, err := filepath.Glob(filepath.Join("testdata", dir, "*"+filepath.Ext(name)))
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			src, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		l := newLoader(noEnv)
		l.read(name, src)
		if len(l.errs) == 0 {
			l.finish()
		}
		if len(l.errs) > 0 {
			for _, err := range l.errs {
				if e, ok := errors.AsType[*Error](err); ok && e.File != name {
					t.Errorf("%q: error %v names the file %q", src, e, e.File)
				}
			}
			return
		}
		for _, tt := range l.cfg.Tasks {
			if err := task.Check(tt.Task); err != nil {
				t.Errorf("%q: Check(%v) = %v, want nil", src, tt, err)
			}
			if _, err := l.cfg.Evaluate(t.Context(), tt.Task, lookups); err != nil {
				t.Logf("Evaluate() = %v", err)
			}
		}
	})
}

func FuzzHCL(f *testing.F) {
	f.Add([]byte("terraform_provider \"a\" { b { v = <<-EOF\n  x\n  EOF\n} }"))
	fuzz(f, "c.hcl")
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"task": [{"name": "t", "module": "m", "condition": [{"nodes": {}}, {"member": null}]}]}`))
	fuzz(f, "c.json")
}
