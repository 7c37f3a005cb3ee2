// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
)

// TestSync_StoppedInMidApply stops the daemon with SIGTERM during an apply of 30
// seconds. The daemon interrupts Terraform after 10 s and saves the state. The
// next start creates the rest.
func TestSync_StoppedInMidApply(t *testing.T) {
	t.Parallel()
	r := newSyncRig(t, "sleep 3")
	r.registerTen("web")
	r.configure("sync1", r.taskText("web", "web", "parallelism = 1"))
	d := r.run("sync1")
	r.awaitCreated("web", 1)
	start := time.Now()
	d.stop(t)
	if took := time.Since(start); took < 9*time.Second || took > 15*time.Second {
		t.Errorf("end of the daemon %v after SIGTERM, want 10 s to 15 s", took)
	}
	made := len(r.createdLines("web"))
	runs := r.history("web")
	if len(runs) != 1 || runs[0].Result != task.Interrupted || made == 10 {
		t.Fatalf("runs = %v with %d resources, want one that was interrupted", historyOf(runs), made)
	}
	if st := r.awaitState("web", "no run", func(st *pb.TaskState) bool { return st.Running == nil }); len(st.Versions) == 0 || st.Lock != nil {
		t.Errorf("state after SIGTERM = %v, want a version and no lock", st)
	}
	r.writeModule("true")
	d = r.run("sync1")
	r.idle("web")
	// The signal ends the command of the present resource, and Terraform creates
	// that resource again. The command may end before Terraform handles the signal:
	// then Terraform starts the next resource, ends it too, and creates it again.
	lines := r.createdLines("web")
	slices.Sort(lines)
	if n := len(slices.Compact(slices.Clone(lines))); n != 10 || len(lines) > 12 || len(r.files()) != 10 {
		t.Errorf("%d resources in %d attempts, with %d files, want 10 in at most 12", n, len(lines), len(r.files()))
	}
	d.stop(t)
}

// TestSync_ServersKilledInMidApply kills the leader of three servers in mid-apply,
// and then all servers, for 60 s with WANFED_CHAOS=1. Terraform ends before the
// servers are back. The state is stored afterwards, and nothing is created twice.
// The daemon interrupts the run when its lease ends before that.
func TestSync_ServersKilledInMidApply(t *testing.T) {
	t.Parallel()
	r := newSyncRigOf(t, "sleep 0.5", 3)
	r.registerTen("first")
	r.registerTen("second")
	first := r.taskText("first", "first", "parallelism = 2")
	r.configure("sync1", first)
	d := r.run("sync1")
	r.awaitCreated("first", 3)
	leader := r.leader()
	r.servers[leader].Kill()
	once := func(name string) {
		t.Helper()
		r.idle(name)
		r.wantTen(name)
		runs := r.history(name)
		if chaos() && len(runs) == 2 && runs[0].Result == task.Interrupted { // at the end of the lease
			runs = runs[1:]
		}
		if len(runs) != 1 || runs[0].Result != task.Succeeded {
			t.Errorf("runs of %s = %v, want one that succeeded", name, historyOf(runs))
		}
	}
	r.idle("first")
	r.start(leader) // it may be the server that commands use
	once("first")

	r.configure("sync1", first, r.taskText("second", "second", "parallelism = 2"))
	if err := d.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r.awaitCreated("second", 3)
	for _, s := range r.servers {
		s.Kill()
	}
	time.Sleep(longer(time.Minute, 10*time.Second)) // the servers are away
	for i := range r.servers {
		r.start(i)
	}
	once("second")
	once("first")
	r.register("second", "late", "10.0.1.1", "passing")
	testutil.Await(t, waitLimit, "a change after the return of the servers", func(context.Context) error {
		if n := len(r.files()); n != 21 {
			return fmt.Errorf("%d files", n)
		}
		return nil
	})
	d.stop(t)
}

// leader returns the index of the server that is the leader.
func (r *syncRig) leader() (index int) {
	r.t.Helper()
	testutil.Await(r.t, waitLimit, "a leader", func(context.Context) error {
		addr, err := r.catalog.Status().Leader()
		if index = slices.Index(r.addrs(), addr); err == nil && index < 0 {
			err = fmt.Errorf("leader = %q, want one of %q", addr, r.addrs())
		}
		return err
	})
	return index
}

// TestSync_GuardHoldsBack empties the catalog. The guard holds back the run until
// an operator approves it.
func TestSync_GuardHoldsBack(t *testing.T) {
	t.Parallel()
	r := newSyncRig(t, "true")
	r.registerTen("web")
	r.configure("sync1", r.taskText("web", "web", "guard {\n max_destroy = \"20%\"\n empty_input = true\n}"))
	d := r.run("sync1")
	r.idle("web")
	for i := range 10 {
		r.deregister(fmt.Sprintf("web-n%d", i))
	}
	r.awaitState("web", "refused", func(st *pb.TaskState) bool { return st.Refused != "" && st.Running == nil })
	time.Sleep(time.Second)
	if n := len(r.files()); n < 8 {
		t.Errorf("%d files after the catalog was emptied, want at least 8", n)
	}
	if text := r.mustCLI("task", "list"); !strings.Contains(text, "Refused") {
		t.Errorf("task list = %s, want the reason Refused", text)
	}
	r.mustCLI("task", "approve", "web")
	r.awaitFiles(map[string]string{})
	if st := r.idle("web"); st.Refused != "" || st.Approved != "" {
		t.Errorf("state after the approved run = %v, want no refusal", st)
	}
	d.stop(t)
}

// TestSync_TakenOver kills one of two daemons of a group. The other one takes
// over its tasks, and runs only what has changed.
func TestSync_TakenOver(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	r := newSyncRig(t, "true")
	r.register("web", "n1", "10.0.0.1", "passing")
	parts := []string{fmt.Sprintf(`
high_availability {
  cluster {
    name = "edge"
    storage "consul" {
      session_ttl = %q
    }
  }
}
`, lease)}
	const tasks = 6
	for i := range tasks {
		parts = append(parts, r.taskText(fmt.Sprintf("task%d", i), "web"))
	}
	ids := []string{"sync1", "sync2"}
	daemons := make(map[string]*syncDaemon)
	for _, id := range ids {
		r.configure(id, parts...)
		daemons[id] = r.run(id)
	}
	owned := func() map[string]int {
		count := make(map[string]int)
		for i := range tasks {
			count[r.idle(fmt.Sprintf("task%d", i)).Instance]++
		}
		return count
	}
	testutil.Await(t, waitLimit, "tasks at both daemons", func(context.Context) error {
		if n := owned(); n["sync1"] == 0 || n["sync2"] == 0 {
			return fmt.Errorf("tasks by daemon = %v", n)
		}
		return nil
	})
	before := 0
	for i := range tasks {
		before += len(r.history(fmt.Sprintf("task%d", i)))
	}
	killed := time.Now()
	daemons["sync1"].Kill()
	testutil.Await(t, waitLimit, "all tasks at the other daemon", func(context.Context) error {
		if n := owned(); n["sync2"] != tasks {
			return fmt.Errorf("tasks by daemon = %v", n)
		}
		return nil
	})
	if took := time.Since(killed); took > lease+2*time.Second {
		t.Errorf("tasks taken over %v after the kill, want at most %v", took, lease+2*time.Second)
	} else {
		t.Logf("tasks taken over %v after the kill", took)
	}
	after := 0
	for i := range tasks {
		after += len(r.history(fmt.Sprintf("task%d", i)))
	}
	if after != before {
		t.Errorf("runs before and after the kill = %d, %d, want no run", before, after)
	}
	testutil.Await(t, waitLimit, "a critical check of the killed daemon only", func(context.Context) error {
		entries, _, err := r.catalog.Health().Service("consul-terraform-sync", "", false, nil)
		status := map[string]string{}
		for _, e := range entries {
			status[e.Service.ID] = e.Checks.AggregatedStatus()
		}
		if want := map[string]string{"sync1": "critical", "sync2": "passing"}; err == nil && !maps.Equal(status, want) {
			err = fmt.Errorf("checks = %v, want %v", status, want)
		}
		return err
	})
	if took, limit := time.Since(killed), 20*time.Second; took > limit { // the check has a TTL of 15 s
		t.Errorf("check of the killed daemon critical %v after the kill, want at most %v", took, limit)
	}
	daemons["sync2"].stop(t)
}
