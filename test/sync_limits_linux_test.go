// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
)

// TestSync_Timeout runs Terraform that exceeds its timeout in several ways. It
// ends at timeout + grace + 2 s at the latest, and none of its processes is left.
// Other tasks are not delayed, and "wanfed task disable" responds at once.
func TestSync_Timeout(t *testing.T) {
	const timeout, grace = 4 * time.Second, 2 * time.Second
	for name, pause := range map[string]string{
		"sleeps":              "trap '' INT; sleep 60; sleep 60",
		"stopped":             "kill -STOP $PPID; sleep 60",
		"stoppedAgain":        "while kill -STOP $PPID; do sleep 0.01; done",
		"leavesGrandchildren": "setsid sh -c 'trap : INT TERM; sleep 600; sleep 600' & sleep 60",
	} {
		t.Run(name, func(t *testing.T) {
			if name != "stopped" && name != "leavesGrandchildren" {
				onlyChaos(t) // the driver's tests have these cases too
			}
			r := newSyncRig(t, pause)
			r.register("slow", "n1", "10.0.0.1", "passing")
			r.register("quick", "n2", "10.0.0.2", "passing")
			r.configure("sync1", r.taskText("slow", "slow", `timeout = "4s"`, `grace = "2s"`),
				`task {
  name   = "quick"
  driver = "exec"
  exec {
    command = ["/bin/sh", "-c", "echo >> `+filepath.Join(r.dir, "quick")+`"]
  }
  condition "services" {
    names = ["quick"]
  }
}
`)
			d := r.run("sync1")
			r.awaitCreated("slow", 1)
			run := r.awaitState("slow", "running", func(st *pb.TaskState) bool { return st.Running != nil }).Running
			r.idle("quick")
			changed := time.Now()
			r.register("quick", "n2", "10.0.0.3", "passing")
			testutil.Await(t, waitLimit, "a run of the other task", func(context.Context) error {
				if b, _ := os.ReadFile(filepath.Join(r.dir, "quick")); len(b) < 2 {
					return fmt.Errorf("%d runs", len(b))
				}
				return nil
			})
			if d := time.Since(changed); d > time.Second {
				t.Errorf("run of the other task %v after a change, want at most 1 s", d)
			}
			disabled := time.Now()
			r.mustCLI("task", "disable", "slow")
			if d := time.Since(disabled); d > time.Second {
				t.Errorf("task disable took %v, want at most 1 s", d)
			}
			r.awaitState("slow", "the end of the run", func(st *pb.TaskState) bool { return st.Running == nil })
			runs := r.history("slow")
			if len(runs) != 1 || runs[0].Result != task.TimedOut {
				t.Fatalf("runs = %v, want one that timed out", historyOf(runs))
			}
			took := runs[0].EndedAt.AsTime().Sub(runs[0].StartedAt.AsTime())
			if took < timeout || took > timeout+grace+2*time.Second {
				t.Errorf("run of %v, want %v to %v", took, timeout, timeout+grace+2*time.Second)
			}
			t.Logf("the run ended after %v", took)
			if left := processesOf(run.Id); len(left) != 0 {
				t.Errorf("processes after the run = %v, want none", left)
			}
			if st := r.awaitState("slow", "no lock", func(st *pb.TaskState) bool { return st.Lock == nil }); st.Failures != 1 {
				t.Errorf("failures = %d, want 1", st.Failures)
			}
			d.stop(t)
		})
	}
}

// processesOf returns the names of the processes of a run, by process id.
func processesOf(run string) map[int]string {
	found := make(map[int]string)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // fails for a process that has ended
		if strings.Contains("\x00"+string(env), "\x00"+process.RunVariable+"="+run+"\x00") {
			name, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
			found[pid] = strings.TrimSpace(string(name))
		}
	}
	return found
}
