// SPDX-License-Identifier: MPL-2.0

//go:build linux

package exec

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/input"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
)

// work returns a task whose command is a shell script.
func work(t *testing.T, script string) *driver.Work {
	t.Helper()
	return &driver.Work{Name: "t", Dir: filepath.Join(t.TempDir(), "t"),
		Task: &pb.Task{Driver: task.DriverExec, Exec: &pb.ExecDriver{Command: []string{"sh", "-c", script}}}}
}

func TestRun_Inputs(t *testing.T) {
	value, err := json.Marshal("quotes \" ' newline \n dollar ${x} $(y) " + strings.Repeat("x", 512<<10))
	if err != nil {
		t.Fatalf("Marshal() = %v, want nil", err)
	}
	in := input.Set{"consul_kv": value, "services": json.RawMessage(`{}`)}
	w := work(t, `cat >stdin; cmp stdin "$WANFED_INPUTS"; printf %s "$1" >argument`)
	const argument = `$(touch x) "quoted" \n`
	w.Task.Exec.Command = append(w.Task.Exec.Command, "sh", argument)
	if _, err := (Driver{}).Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply, Inputs: in}); err != nil {
		t.Fatalf("Run() = %v, want nil", err)
	}
	b, err := os.ReadFile(filepath.Join(w.Dir, "stdin"))
	if err != nil {
		t.Fatalf("ReadFile(stdin) = %v, want nil", err)
	}
	var got input.Set
	if err := json.Unmarshal(b, &got); err != nil || got.Digest() != in.Digest() {
		t.Errorf("inputs = %.200s, %v, want %.200s", b, err, value)
	}
	if b, err := os.ReadFile(filepath.Join(w.Dir, "argument")); err != nil || string(b) != argument {
		t.Errorf("argument = %q, %v, want %q", b, err, argument)
	}
}

func TestRun_Environment(t *testing.T) {
	t.Setenv("WANFED_TOKEN_FILE", "of the daemon")
	w := work(t, `echo "$A $B [$WANFED_TOKEN_FILE] $WANFED_RUN_ID"`)
	w.Env, w.Task.Exec.Env = map[string]string{"A": "1", "B": "2"}, map[string]string{"B": "3"}
	res, err := Driver{}.Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply})
	if want := "1 3 [] r1\n"; res.Log != want || err != nil {
		t.Errorf("Run() = %q, %v, want %q, nil", res.Log, err, want)
	}
}

func TestRun_Failures(t *testing.T) {
	w := work(t, "echo problem; exit 7")
	res, err := Driver{}.Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply})
	if want := `exec.command: exit status 7: problem`; err == nil || err.Error() != want || res.Log != "problem\n" {
		t.Errorf("Run() = %q, %v, want %s", res.Log, err, want)
	}
	for _, mode := range []driver.Mode{driver.Plan, driver.Destroy} {
		if _, err := (Driver{}).Run(t.Context(), w, driver.Request{ID: "r2", Mode: mode}); err == nil ||
			!strings.HasSuffix(err.Error(), "is not set") {
			t.Errorf("Run(%s) without a command = %v, want not set", mode, err)
		}
	}
	w.Task.Exec.Command = []string{"/does/not/exist"}
	if _, err := (Driver{}).Run(t.Context(), w, driver.Request{ID: "r3", Mode: driver.Apply}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run() without the program = %v, want not exist", err)
	}
	if err := (Driver{}).Check(t.Context(), w); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Check() without the program = %v, want not exist", err)
	}
	w = work(t, "true")
	if err := os.WriteFile(w.Dir, nil, 0o600); err != nil {
		t.Fatalf("WriteFile() = %v, want nil", err)
	}
	if _, err := (Driver{}).Run(t.Context(), w, driver.Request{ID: "r4", Mode: driver.Apply}); err == nil ||
		!strings.HasPrefix(err.Error(), `create the directory of the task: `) {
		t.Errorf("Run() with a file as directory = %v, want an error of the directory", err)
	}
}

// A service manager sends SIGTERM to all processes of the daemon. The program
// decides about its end.
func TestRun_Terminated(t *testing.T) {
	w := work(t, "trap : TERM; kill -TERM 0; sleep 0.1; exit 3")
	if _, err := (Driver{}).Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply}); err == nil ||
		!strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Run() = %v, want exit status 3", err)
	}
}

func TestCheck_Environment(t *testing.T) {
	w := work(t, "true")
	if err := (Driver{}).Check(t.Context(), w); err != nil {
		t.Errorf("Check() = %v, want nil", err)
	}
	w.Task.Exec.Env = map[string]string{"A-B": "1"}
	if err := (Driver{}).Check(t.Context(), w); err == nil || !strings.Contains(err.Error(), "A-B") {
		t.Errorf("Check() = %v, want an error of A-B", err)
	}
}

func TestRun_PlanAndGuard(t *testing.T) {
	refused := errors.New("refused")
	for _, test := range []struct {
		name    string
		plan    string
		mode    driver.Mode
		guard   bool // refuse
		changes driver.Changes
		ok, ran bool
	}{
		{"no changes", "exit 0", driver.Plan, false, driver.Changes{}, true, false},
		{"changes", "exit 2", driver.Plan, false, driver.Changes{Change: 1}, true, false},
		{"plan fails", "exit 1", driver.Plan, false, driver.Changes{}, false, false},
		{"guard refuses", "exit 2", driver.Apply, true, driver.Changes{Change: 1}, false, false},
		{"guard refuses without plan", "", driver.Apply, true, driver.Changes{}, false, false},
		{"no guard", "exit 1", driver.Apply, false, driver.Changes{}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := work(t, "touch ran")
			if test.plan != "" {
				w.Task.Exec.Plan = []string{"sh", "-c", "echo text; " + test.plan}
			}
			r := driver.Request{ID: "r1", Mode: test.mode}
			if test.guard {
				r.Guard = func(c driver.Changes) error {
					if c != test.changes {
						t.Errorf("guard received %+v, want %+v", c, test.changes)
					}
					return refused
				}
			}
			res, err := Driver{}.Run(t.Context(), w, r)
			if (err == nil) != test.ok || test.guard != errors.Is(err, refused) || res.Changes != test.changes {
				t.Errorf("Run() = %+v, %v, want changes %+v, success %v", res, err, test.changes, test.ok)
			}
			if test.mode == driver.Plan && res.Plan != "text\n" {
				t.Errorf("plan = %q, want text", res.Plan)
			}
			if _, err := os.Stat(filepath.Join(w.Dir, "ran")); (err == nil) != test.ran {
				t.Errorf("the command ran: %v, want %v", err == nil, test.ran)
			}
		})
	}
}

func TestRun_LogIsTail(t *testing.T) {
	w := work(t, `i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done; printf '\377\n'`)
	res, err := Driver{}.Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply})
	if err != nil || len(res.Log) > task.MaxLog || len(res.Log) < task.MaxLog-20 {
		t.Fatalf("Run() = %d bytes of log, %v, want about %d", len(res.Log), err, task.MaxLog)
	}
	if !strings.HasPrefix(res.Log, "line ") || !strings.HasSuffix(res.Log, "line 19999\n?\n") {
		t.Errorf("log = %.20q...%.20q, want complete lines until the last", res.Log, res.Log[len(res.Log)-20:])
	}
}

func TestRun_TimedOut(t *testing.T) {
	w := work(t, `trap "sleep 0.3; echo saved; exit 0" INT; echo text; sleep 60`)
	w.Task.Timeout, w.Task.Grace = durationpb.New(200*time.Millisecond), durationpb.New(5*time.Second)
	res, err := Driver{}.Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply})
	if !errors.Is(err, driver.ErrTimedOut) || res.Log != "text\nsaved\n" {
		t.Errorf("Run() = %q, %v, want the complete log and ErrTimedOut", res.Log, err)
	}
}

// TestDaemon is a daemon that TestRecover kills.
func TestDaemon(t *testing.T) {
	dir := os.Getenv("WANFED_TEST_DIR")
	if dir == "" {
		t.Skip("TestRecover runs it")
	}
	w := work(t, os.Getenv("WANFED_TEST_SCRIPT"))
	w.Dir = dir
	_, _ = Driver{}.Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Apply})
}

func TestRecover(t *testing.T) {
	for script, check := range map[string]func(err error) bool{
		"exit 0":     func(err error) bool { return err == nil },
		"exit 3":     func(err error) bool { return err != nil && strings.Contains(err.Error(), "exit status 3") },
		"kill -9 $$": func(err error) bool { return err != nil && strings.Contains(err.Error(), "exit status 137") },
		// The shell that stores the status.
		"kill -9 $PPID": func(err error) bool { return errors.Is(err, driver.ErrLost) },
	} {
		t.Run(script, func(t *testing.T) {
			w := work(t, "")
			daemon := exec.Command(os.Args[0], "-test.run=^TestDaemon$")
			daemon.Env = append(os.Environ(), "WANFED_TEST_DIR="+w.Dir,
				"WANFED_TEST_SCRIPT=echo ready; while [ ! -e go ]; do sleep 0.02; done; "+script)
			if err := daemon.Start(); err != nil {
				t.Fatalf("Start() = %v, want nil", err)
			}
			testutil.Eventually(t, 20*time.Second, func() bool {
				b, _ := os.ReadFile(filepath.Join(w.Dir, "run.log"))
				return string(b) == "ready\n"
			}, "the command runs")
			_ = daemon.Process.Kill()
			_ = daemon.Wait()
			time.AfterFunc(100*time.Millisecond, func() { _ = os.WriteFile(filepath.Join(w.Dir, "go"), nil, 0o600) })
			for range 2 { // the result can be read again
				got, err := Driver{}.Recover(t.Context(), w)
				if err != nil || got == nil || got.ID != "r1" || !check(got.Err) || got.Result.Log == "" || got.Ended.IsZero() {
					t.Fatalf("Recover() = %+v, %v, want the result of %q", got, err, script)
				}
			}
		})
	}
}

// A plan changes nothing, so its run is not complete.
func TestRecover_Plan(t *testing.T) {
	w := work(t, "true")
	w.Task.Exec.Plan = []string{"true"}
	if _, err := (Driver{}).Run(t.Context(), w, driver.Request{ID: "r1", Mode: driver.Plan}); err != nil {
		t.Fatalf("Run() = %v, want nil", err)
	}
	if got, err := (Driver{}).Recover(t.Context(), w); err != nil || got == nil || !errors.Is(got.Err, driver.ErrLost) {
		t.Errorf("Recover() = %+v, %v, want ErrLost", got, err)
	}
}

func TestRecover_Interrupt(t *testing.T) {
	w := work(t, "")
	if got, err := (Driver{}).Recover(t.Context(), w); got != nil || err != nil {
		t.Errorf("Recover() = %+v, %v, want nil, nil", got, err)
	}
	w = work(t, "sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := (Driver{}).Run(ctx, w, driver.Request{ID: "r1", Mode: driver.Apply}); !errors.Is(err, driver.ErrInterrupted) {
		t.Errorf("Run() = %v, want ErrInterrupted", err)
	}
}
