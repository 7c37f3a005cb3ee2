// SPDX-License-Identifier: MPL-2.0

package test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// TestSync_FollowsCatalog runs a task while instances register, move, fail and
// disappear, and uses each command of "wanfed task" and the HTTP API.
func TestSync_FollowsCatalog(t *testing.T) {
	t.Parallel()
	r := newSyncRig(t, "true")
	r.register("web", "n1", "10.0.0.1", "passing")
	r.configure("sync1", r.taskText("web", "web"))
	d := r.run("sync1")
	r.awaitFiles(map[string]string{"n1": "10.0.0.1:80 passing"})
	r.register("web", "n2", "10.0.0.2", "passing")
	r.awaitFiles(map[string]string{"n1": "10.0.0.1:80 passing", "n2": "10.0.0.2:80 passing"})
	r.register("web", "n2", "10.0.0.3", "passing")
	r.awaitFiles(map[string]string{"n1": "10.0.0.1:80 passing", "n2": "10.0.0.3:80 passing"})
	r.register("web", "n1", "10.0.0.1", "critical")
	r.awaitFiles(map[string]string{"n2": "10.0.0.3:80 passing"})
	r.register("web", "n1", "10.0.0.1", "passing")
	r.awaitFiles(map[string]string{"n1": "10.0.0.1:80 passing", "n2": "10.0.0.3:80 passing"})
	r.deregister("n2")
	r.awaitFiles(map[string]string{"n1": "10.0.0.1:80 passing"})
	r.idle("web")

	before := len(r.history("web"))
	d.stop(t)
	d = r.run("sync1")
	time.Sleep(2 * time.Second)
	if runs := r.history("web"); len(runs) != before || before != 6 {
		t.Errorf("runs before and after a restart = %d, %d, want 6 and 6: %v", before, len(runs), runs)
	}
	r.useAPI(d)
	r.useCommands()
}

// idle waits until no run is in progress and the last one has succeeded.
func (r *syncRig) idle(name string) *pb.TaskState {
	r.t.Helper()
	return r.awaitState(name, "applied", func(st *pb.TaskState) bool {
		return st.Running == nil && st.AppliedAt != nil && st.Failures == 0 && st.Lock == nil
	})
}

// useAPI sends requests to the HTTP API of a daemon.
func (r *syncRig) useAPI(d *syncDaemon) {
	r.t.Helper()
	for _, c := range []struct {
		method, path, body string
		status             int
		part               string
	}{
		{"GET", "/v1/health", "", 200, "{"},
		{"GET", "/v1/tasks/web", "", 200, `"name":"web"`},
		{"GET", "/v1/tasks/none", "", 404, "does not exist"},
		{"GET", "/v1/status/tasks/web", "", 200, `"status":"successful"`},
		{"PATCH", "/v1/tasks/web?run=inspect", `{"enabled": true}`, 200, `"changes_present":false`},
		{"PATCH", "/v1/tasks/web", `{"enabled": 1}`, 400, "enabled"},
		{"GET", "/metrics", "", 200, "wanfed_sync"},
	} {
		status, answer := d.request(r.t, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(answer, c.part) {
			r.t.Errorf("%s %s = %d %.2000s, want %d with %s", c.method, c.path, status, answer, c.status, c.part)
		}
		if strings.HasPrefix(c.path, "/v1/") && !json.Valid([]byte(answer)) {
			r.t.Errorf("%s %s = %s, want JSON", c.method, c.path, answer)
		}
	}
}

// useCommands uses the commands of "wanfed task". The file of the only instance
// is missing at first.
func (r *syncRig) useCommands() {
	t := r.t
	t.Helper()
	var list []api.Resource
	if r.cliJSON(&list, "task", "list"); len(list) != 1 || list[0].ID.Name != "web" {
		t.Errorf("task list = %v, want the task web", list)
	}
	var read api.Resource
	if r.cliJSON(&read, "task", "read", "web"); !strings.Contains(string(read.Data), `"module":`) {
		t.Errorf("task read = %s, want the module", read.Data)
	}
	if status, _, stderr := r.cli("task", "read", "none"); status != 1 || !strings.Contains(stderr, "does not exist") {
		t.Errorf("task read of a missing task = %d %s, want 1", status, stderr)
	}
	var run pb.TaskRun
	if r.cliJSON(&run, "task", "run", "web", "--plan"); run.Result != task.Succeeded || run.Mode != "plan" {
		t.Errorf("task run --plan = %v, want a plan that succeeded", &run)
	}
	if text := r.mustCLI("task", "run", "web"); !strings.Contains(text, "succeeded") {
		t.Errorf("task run = %s, want a success", text)
	}
	var history []api.Resource
	if r.cliJSON(&history, "task", "history", "web"); len(history) != 8 {
		t.Errorf("task history = %d runs, want 8", len(history))
	}
	if text := r.mustCLI("task", "log", "web"); !strings.Contains(text, "Apply complete") {
		t.Errorf("task log = %s, want the output of Terraform", text)
	}

	r.mustCLI("task", "disable", "web")
	if status, _, stderr := r.cli("task", "run", "web"); status != 1 || !strings.Contains(stderr, "disabled") {
		t.Errorf("task run of a disabled task = %d %s, want 1", status, stderr)
	}
	r.register("web", "n3", "10.0.0.9", "passing")
	time.Sleep(time.Second)
	if got := r.files(); len(got) != 1 {
		t.Errorf("files with a disabled task = %v, want one", got)
	}
	r.mustCLI("task", "enable", "web")
	r.awaitFiles(map[string]string{"n1": "10.0.0.1:80 passing", "n3": "10.0.0.9:80 passing"})
	r.idle("web")
	if status, _, stderr := r.cli("task", "approve", "web"); status != 1 || !strings.Contains(stderr, "holds back no run") {
		t.Errorf("task approve = %d %s, want 1", status, stderr)
	}
	if status, _, _ := r.cli("task", "delete", "web"); status != 2 {
		t.Errorf("task delete without a decision = %d, want 2", status)
	}
	r.mustCLI("task", "delete", "web", "--destroy")
	if got := r.files(); len(got) != 0 {
		t.Errorf("files of the deleted task = %v, want none", got)
	}
	if r.cliJSON(&list, "task", "list"); len(list) != 0 {
		t.Errorf("task list = %v, want none", list)
	}
}

// TestSync_OnceAndInspect runs the modes of the daemon that end by themselves.
func TestSync_OnceAndInspect(t *testing.T) {
	t.Parallel()
	r := newSyncRig(t, "true")
	r.register("web", "n1", "10.0.0.1", "passing")
	file := r.configure("sync1", r.taskText("web", "web"))
	status, stdout, stderr := r.cli("sync", "--config-file", file, "--inspect")
	if status != 0 || !strings.Contains(stdout, "task web: 1 to add, 0 to change, 0 to destroy") {
		t.Errorf("sync --inspect = %d %s%s, want 1 to add", status, stdout, stderr)
	}
	var list []api.Resource
	if r.cliJSON(&list, "task", "list"); len(list) != 0 || len(r.files()) != 0 {
		t.Errorf("tasks and files after --inspect = %v, %v, want none", list, r.files())
	}
	for range 2 { // the second one has nothing to do
		if status, _, stderr := r.cli("sync", "--config-file", file, "--once"); status != 0 {
			t.Errorf("sync --once = %d, want 0: %s", status, stderr)
		}
		if runs := r.history("web"); len(r.files()) != 1 || len(runs) != 1 {
			t.Errorf("files and runs after --once = %v, %v, want one", r.files(), runs)
		}
	}
	if status, stdout, stderr := r.cli("sync", "--config-file", file, "--inspect"); status != 0 ||
		!strings.Contains(stdout, "task web: 0 to add, 0 to change, 0 to destroy") {
		t.Errorf("sync --inspect after --once = %d %s%s, want no change", status, stdout, stderr)
	}
	r.register("web", "n2", "10.0.0.2", "passing")
	r.writeModule("exit 3")
	if status, _, stderr := r.cli("sync", "--config-file", file, "--once"); status != 1 || !strings.Contains(stderr, "exit status 3") {
		t.Errorf("sync --once with a task that fails = %d, want 1: %s", status, stderr)
	}
}
