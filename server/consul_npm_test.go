// SPDX-License-Identifier: MPL-2.0

package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// npmRefused are the calls of the npm package "consul" that wanfed refuses, with
// a part of the reason. All other calls of the package work.
var npmRefused = map[string]string{
	// The client shows the bodies of few errors.
	"agent.reload": "not found", "agent.join": "not found", "agent.forceLeave": "not found",
	"catalog.connect.nodes": "service mesh", "event.fire": "user events", "event.list": "user events",
	"query.list": "prepared", "query.create": "prepared", "query.get": "prepared", "query.update": "prepared",
	"query.destroy": "prepared", "query.execute": "prepared", "query.explain": "prepared",
	"acl.bootstrap": "not found", "acl.replication": "not found", "acl.legacy.create": "not found",
	"acl.legacy.update": "not found", "acl.legacy.destroy": "not found", "acl.legacy.info": "not found",
	"acl.legacy.clone": "not found", "acl.legacy.list": "not found",
	"a call with a token": "forbidden",
}

// TestConsulNPM calls all methods of the npm package "consul", version 2.0.1.
func TestConsulNPM(t *testing.T) {
	lab := newConsulLab(t)
	host, port, _ := strings.Cut(strings.TrimPrefix(lab.url, "http://"), ":")
	dir := npmPackages(t)
	cmd := exec.CommandContext(t.Context(), "node", "calls.js", host, port, lab.files.CA, lab.files.Cert, lab.files.Key)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("node calls.js = %v, want nil", err)
	}
	works, refused := 0, 0
	for line := range strings.Lines(string(out)) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch want := npmRefused[name]; {
		case want == "" && result == "works":
			works++
		case want != "" && strings.Contains(result, want):
			refused++
		default:
			t.Errorf("%s: %s, want %q", name, result, want)
		}
	}
	t.Logf("%d calls work, %d are refused", works, refused)
	if works < 38 || refused != len(npmRefused) {
		t.Errorf("%d calls work and %d are refused, want at least 38 and %d:\n%s", works, refused, len(npmRefused), out)
	}
}

// npmPackages returns a directory with the program and the packages of
// testdata/consul-npm. It skips the test if it cannot install them.
func npmPackages(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: install Debian's packages nodejs and npm", err)
		}
	}
	dir := filepath.Join(t.TempDir(), "npm")
	if err := os.CopyFS(dir, os.DirFS("testdata/consul-npm")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("npm ci = %v, the packages cannot be installed: %s", err, out)
	}
	return dir
}
