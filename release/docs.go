// SPDX-License-Identifier: MPL-2.0

package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/wanfed/wanfed/release/man"
)

// docs returns the path of a file that writeDocs has written.
func (r *release) docs(name string) string { return filepath.Join(r.work, "docs", name) }

// writeDocs writes manual pages and shell completion, by a program that is
// cmd/wanfed and one more file.
func (r *release) writeDocs() error {
	root, err := filepath.Abs(r.root)
	if err != nil {
		return err
	}
	caller, overlay, program := filepath.Join(r.work, "caller.go"), filepath.Join(r.work, "overlay.json"),
		filepath.Join(r.work, "wanfed-man")
	added, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "cmd", "wanfed", "release_man.go"): caller},
	})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(caller, man.Caller, 0o644), os.WriteFile(overlay, added, 0o644)); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-overlay", overlay, "-o", program,
		"github.com/wanfed/wanfed/cmd/wanfed")
	build.Dir = filepath.Join(root, "release")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=", "GOARCH=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	run := exec.Command(program)
	run.Env = append(os.Environ(), man.EnvDir+"="+r.docs(""), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.version().time.Unix()))
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	pages, err := os.ReadDir(r.docs(man.Pages))
	if err != nil {
		return err
	}
	for _, p := range pages {
		if err := compress(filepath.Join(r.docs(man.Pages), p.Name())); err != nil {
			return err
		}
	}
	return nil
}

// compress replaces a file by a file with the suffix .gz.
func compress(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := os.Create(path + ".gz")
	if err != nil {
		return err
	}
	w := gzip.NewWriter(f) // without a name and a time
	_, err = w.Write(data)
	return errors.Join(err, w.Close(), f.Close(), os.Remove(path))
}
