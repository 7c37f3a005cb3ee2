// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

// TestSync_Killed kills the daemon at random moments of an apply of ten
// resources. Terraform survives it. The next daemon completes the task: each
// resource is created once, all are in the state, and no lock is left. The next
// run starts at most 2 s after the start of the daemon and the end of Terraform.
// WANFED_CHAOS=1 kills 50 times in place of 3, and WANFED_SEED sets the seed.
func TestSync_Killed(t *testing.T) {
	t.Parallel()
	seed, count := uint64(1), 3
	if os.Getenv("WANFED_CHAOS") != "" {
		count = 50
	}
	if s := os.Getenv("WANFED_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	r := newSyncRig(t, "sleep 0.3")
	for i := range count {
		name := fmt.Sprintf("round%d", i)
		r.registerTen(name)
		r.configure("sync1", r.taskText(name, name, "parallelism = 2"))
		d := r.run("sync1")
		delay := time.Duration(rnd.Int64N(int64(2 * time.Second)))
		time.Sleep(delay)
		d.Kill()
		before := r.createdLines(name)
		if i%2 == 1 { // the next daemon is killed too
			d = r.run("sync1")
			time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
			d.Kill()
		}
		started := time.Now()
		d = r.run("sync1")
		r.idle(name)
		t.Logf("killed after %v with %d of 10 resources; completed %v after the start", delay, len(before), time.Since(started))
		r.wantTen(name)
		for i, run := range r.history(name) {
			if limit := started; i > 0 {
				if end := r.history(name)[i-1].GetEndedAt().AsTime(); end.After(limit) {
					limit = end
				}
				if wait := run.StartedAt.AsTime().Sub(limit); wait > 2*time.Second {
					t.Errorf("run %d of %s starts %v after the start and the end of the run before, want at most 2 s", i, name, wait)
				}
			}
		}
		d.stop(t)
	}
}

// TestSync_OnceAfterKill runs the daemon with --once after a daemon was killed in
// mid-apply.
func TestSync_OnceAfterKill(t *testing.T) {
	t.Parallel()
	r := newSyncRig(t, "sleep 0.3")
	r.registerTen("web")
	file := r.configure("sync1", r.taskText("web", "web", "parallelism = 2"))
	d := r.run("sync1")
	r.awaitCreated("web", 3)
	d.Kill()
	if status, _, stderr := r.cli("sync", "--config-file", file, "--once"); status != 0 {
		t.Errorf("sync --once = %d, want 0: %s", status, stderr)
	}
	r.wantTen("web")
}

// awaitCreated waits until n resources of a task are created, or are about to be.
func (r *syncRig) awaitCreated(service string, n int) {
	r.t.Helper()
	testutil.Await(r.t, waitLimit, "an apply of "+service, func(context.Context) error {
		if got := len(r.createdLines(service)); got < n {
			return fmt.Errorf("%d resources are created", got)
		}
		return nil
	})
}

// registerTen registers ten instances of a service.
func (r *syncRig) registerTen(service string) {
	r.t.Helper()
	for i := range 10 {
		r.register(service, fmt.Sprintf("%s-n%d", service, i), fmt.Sprintf("10.0.0.%d", i), "passing")
	}
}

// createdLines returns the names of the files of a service that the module has
// created, each as often as it was created.
func (r *syncRig) createdLines(service string) (lines []string) {
	b, _ := os.ReadFile(r.created) // missing before the first resource
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "/"+service+".") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// wantTen checks that a task has created each of ten resources once, and that
// its state has all of them and no lock.
func (r *syncRig) wantTen(name string) {
	r.t.Helper()
	lines := r.createdLines(name)
	slices.Sort(lines)
	if n := len(slices.Compact(slices.Clone(lines))); n != 10 || len(lines) != 10 {
		r.t.Errorf("%s has created %d of 10 resources, in %d attempts, want one attempt each: %v", name, n, len(lines),
			historyOf(r.history(name)))
	}
	var st struct {
		Resources []struct{ Instances []json.RawMessage }
	}
	if err := json.Unmarshal([]byte(r.mustCLI("task", "state", "pull", name, "--state-key-file", r.keyFile)), &st); err != nil {
		r.t.Fatal(err)
	}
	if len(st.Resources) != 1 || len(st.Resources[0].Instances) != 10 {
		r.t.Errorf("state of %s = %+v, want 10 instances of one resource", name, st)
	}
	if st := r.idle(name); st.Lock != nil {
		r.t.Errorf("lock of %s = %v, want none", name, st.Lock)
	}
}

// historyOf returns the runs as text.
func historyOf(runs []*pb.TaskRun) (out []string) {
	for _, run := range runs {
		out = append(out, fmt.Sprintf("%s %s: %s %s", run.Trigger, run.Mode, run.Result, run.Error))
	}
	return out
}
