// SPDX-License-Identifier: MPL-2.0

package test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestNewResourceType executes docs/new-resource-type.md in a copy of the
// repository. It writes and changes files as the page shows them, and runs the
// commands with one environment. The output of each command must match the
// page.
func TestNewResourceType(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	for _, tool := range []string{"protoc", "make", "curl", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the %s command", tool)
		}
	}
	if _, err := os.Stat("/usr/include/google/protobuf/any.proto"); err != nil {
		t.Skip("needs the Debian package libprotobuf-dev")
	}
	// The builds get the processor time that other tests leave.
	r := &reader{T: t, dir: t.TempDir(), env: os.Environ(), machine: []string{"nice"}}
	copyRepository(t, r.dir)
	r.read("../docs/new-resource-type.md")
	if r.commands < 15 || r.demo == nil {
		t.Errorf("page has %d commands, want at least 15 and one that starts the demo", r.commands)
	}
}

// copyRepository copies the files of the repository, without build products and
// testdata.
func copyRepository(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel("..", path); {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(dir, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, rel), b, 0o600)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
