// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/internal/testutil"
)

// TestSync_OneError starts daemons that cannot work, and fills the disk of one
// that runs. Each reports one clear error.
func TestSync_OneError(t *testing.T) {
	r := newSyncRig(t, "true")
	r.register("web", "n1", "10.0.0.1", "passing")
	// wantError runs a daemon with --once. It ends with status 1, and one line of
	// its output has the parts of want.
	wantError := func(t *testing.T, file string, want ...string) {
		t.Helper()
		status, _, stderr := r.cli("sync", "--config-file", file, "--once")
		lines := 0
		for line := range strings.Lines(stderr) {
			has := true
			for _, part := range want {
				has = has && strings.Contains(line, part)
			}
			if has && !strings.Contains(line, "level=") {
				lines++
			}
		}
		if status != 1 || lines != 1 {
			t.Errorf("wanfed sync = %d, want 1 and one line with %q: %s", status, want, stderr)
		}
	}
	t.Run("unknown keys", func(t *testing.T) {
		wantError(t, r.configure("unknown", "colour = 1"), "unknown.hcl:", "unknown keys: colour")
	})
	t.Run("read-only directory", func(t *testing.T) {
		dir := r.workingDir("readonly")
		smallDisk(t, dir, 1)
		remount(t, dir, unix.MS_RDONLY, "")
		wantError(t, r.configure("readonly"), dir, "read-only file system")
	})
	t.Run("full directory", func(t *testing.T) {
		dir := r.workingDir("full")
		smallDisk(t, dir, 1)
		fill(t, dir)
		wantError(t, r.configure("full"), "no space left on device")
	})
	t.Run("directory in use", func(t *testing.T) {
		file := r.configure("used")
		d := r.run("used")
		wantError(t, file, r.workingDir("used"), "in use by another process", "working_dir")
		d.stop(t)
	})
	t.Run("wrong key", func(t *testing.T) {
		file := r.configure("key", r.taskText("web", "web"))
		if status, _, stderr := r.cli("sync", "--config-file", file, "--once"); status != 0 {
			t.Fatalf("wanfed sync --once = %d, want 0: %s", status, stderr)
		}
		r.register("web", "n2", "10.0.0.2", "passing")
		other := filepath.Join(r.dir, "other.keys")
		if _, err := state.GenerateKey(other); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r.write(file, strings.ReplaceAll(string(b), r.keyFile, other))
		wantError(t, file, "task web", "the key file does not have this key", "add its line from the key file")
		if files := r.files(); len(files) != 1 {
			t.Errorf("files after a run without the key = %v, want those of the first run", files)
		}
	})
	t.Run("disk full in a run", func(t *testing.T) {
		dir := r.workingDir("disk")
		smallDisk(t, dir, 1)
		r.configure("disk", `task {
  name   = "disk"
  driver = "exec"
  condition "services" {
    names = ["disk"]
  }
  exec {
    command = ["true"]
  }
}`)
		d := r.run("disk")
		r.idle("disk")
		file := fill(t, dir)
		r.register("disk", "n3", "10.0.0.3", "passing")
		r.awaitState("disk", "failed", func(st *pb.TaskState) bool { return st.Failures > 0 })
		runs := r.history("disk")
		if got := runs[len(runs)-1].Error; !strings.Contains(got, "no space left on device") || strings.Contains(got, "\n") {
			t.Errorf("error of the run = %q, want one line about the disk", got)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		r.awaitState("disk", "applied", func(st *pb.TaskState) bool { return st.Failures == 0 && st.Running == nil })
		d.stop(t)
	})
}

// fill writes a file until the disk of dir is full.
func fill(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "fill")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("Write() = %v, want no space", err)
		}
	}
	return path
}

// TestSync_Churn changes instances, tasks and files while a daemon runs: for 10
// s, or 10 minutes with WANFED_CHAOS=1. Goroutines, descriptors and memory do not
// grow.
func TestSync_Churn(t *testing.T) {
	r := newSyncRig(t, "true")
	text := func(name string) string {
		return fmt.Sprintf(`task {
  name   = %q
  driver = "exec"
  condition "services" {
    regexp = "web.*"
  }
  exec {
    command = ["true"]
  }
}`, name)
	}
	r.configure("sync1", text("one"), text("two"))
	d := r.run("sync1")
	rounds, size := 20, 5
	if chaos() {
		rounds = 1200
	}
	var first, last daemonUsage
	for i := range rounds {
		for j := range size {
			r.register(fmt.Sprintf("web%d", j), fmt.Sprintf("n%d", j), fmt.Sprintf("10.0.%d.%d", i%250, j), "passing")
		}
		switch i % 3 {
		case 0:
			r.configure("sync1", text("one"), text("two"), text(fmt.Sprintf("t%d", i)))
			if err := d.Signal(unix.SIGHUP); err != nil {
				t.Fatal(err)
			}
			r.awaitState(fmt.Sprintf("t%d", i), "applied", func(st *pb.TaskState) bool { return st.AppliedAt != nil })
		case 1:
			r.configure("sync1", text("one"), text("two"))
			r.mustCLI("task", "delete", fmt.Sprintf("t%d", i-1), "--keep")
		case 2:
			r.mustCLI("task", "disable", "two")
			r.deregister("n1")
			r.mustCLI("task", "enable", "two")
		}
		if i%3 != 2 { // measured with two tasks and all nodes gone or back
			continue
		}
		r.idle("one")
		if i == rounds/4/3*3+2 {
			first = d.usage(t)
		}
	}
	testutil.Await(t, waitLimit, "an idle daemon", func(context.Context) error {
		last = d.usage(t)
		if last.goroutines > first.goroutines+20 || last.descriptors > first.descriptors+10 {
			return fmt.Errorf("%+v at the end, %+v after a quarter", last, first)
		}
		return nil
	})
	t.Logf("after a quarter %+v, at the end %+v", first, last)
	if last.heap > 2*first.heap+16<<20 {
		t.Errorf("heap = %g bytes, and %g after a quarter of the time, want no growth", last.heap, first.heap)
	}
	d.stop(t)
}

// daemonUsage is what a daemon uses.
type daemonUsage struct{ goroutines, descriptors, heap float64 }

// usage returns the metrics of the daemon.
func (d *syncDaemon) usage(t testing.TB) (u daemonUsage) {
	t.Helper()
	_, text := d.request(t, "GET", "/metrics", "")
	for line := range strings.Lines(text) {
		var name string
		var value float64
		if n, _ := fmt.Sscanf(line, "%s %g", &name, &value); n < 2 {
			continue
		}
		switch name {
		case "go_goroutines":
			u.goroutines = value
		case "process_open_fds":
			u.descriptors = value
		case "go_memstats_heap_inuse_bytes":
			u.heap = value
		}
	}
	if u.goroutines == 0 || u.descriptors == 0 || u.heap == 0 {
		t.Fatalf("metrics = %+v, want those of the process: %s", u, text)
	}
	return u
}
