// SPDX-License-Identifier: MPL-2.0

//go:build linux

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/internal/testutil"
)

// program returns a program that runs a shell script, with a directory and an
// output file of its own.
func program(t *testing.T, script string) Program {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatalf("LookPath(sh) = %v, want nil", err)
	}
	dir := t.TempDir()
	out, err := os.OpenFile(filepath.Join(dir, "out"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatalf("OpenFile() = %v, want nil", err)
	}
	t.Cleanup(func() { out.Close() })
	id := fmt.Sprintf("test-%d-%d", os.Getpid(), time.Now().UnixNano())
	p := Program{ID: id, Step: "apply", Args: []string{sh, "-c", script}, Dir: dir, Env: Environ(nil),
		Stdout: out, Stderr: out, Timeout: time.Minute, Grace: time.Minute}
	t.Cleanup(func() {
		if n := count(id); n > 0 {
			t.Errorf("%d processes of the run are left, want 0", n)
			kill(id)
		}
	})
	return p
}

// count returns the number of live processes of a run.
func count(id string) (n int) {
	processes(id, func(*os.Process) { n++ })
	return n
}

func output(t *testing.T, p Program) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.Dir, "out"))
	if err != nil {
		t.Fatalf("ReadFile(out) = %v, want nil", err)
	}
	return string(b)
}

func TestRun_Status(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -9 $$": 128 + 9} {
		if status, err := program(t, script).Run(t.Context()); status != want || err != nil {
			t.Errorf("Run(%q) = %v, %v, want %v, nil", script, status, err, want)
		}
	}
}

func TestRun_StartFails(t *testing.T) {
	p := program(t, "")
	p.Args = []string{"/does/not/exist"}
	if status, err := p.Run(t.Context()); status != -1 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run() = %v, %v, want -1 and not exist", status, err)
	}
	p = program(t, "")
	p.Dir = filepath.Join(p.Dir, "missing")
	if status, err := p.Run(t.Context()); status != -1 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run() without a directory = %v, %v, want -1 and not exist", status, err)
	}
}

func TestRun_InputAndEnvironment(t *testing.T) {
	t.Setenv("WANFED_TEST_SECRET", "inherited")
	p := program(t, `cat; echo "$A$WANFED_TEST_SECRET"; [ "$WANFED_RUN_ID" = "$ID" ]; pwd`)
	p.Env = Environ(nil, map[string]string{"A": "1"}, map[string]string{"A": "2", "ID": p.ID})
	p.Stdin = filepath.Join(p.Dir, "in")
	if err := os.WriteFile(p.Stdin, []byte("input\n"), 0o600); err != nil {
		t.Fatalf("WriteFile() = %v, want nil", err)
	}
	if status, err := p.Run(t.Context()); status != 0 || err != nil {
		t.Fatalf("Run() = %v, %v, want 0, nil", status, err)
	}
	if got, want := output(t, p), "input\n2\n"+p.Dir+"\n"; got != want {
		t.Errorf("output = %q, want %q", got, want)
	}
}

// TestRun_Ends runs programs that do not end by themselves.
func TestRun_Ends(t *testing.T) {
	testutil.Cluster(t)
	const ignore = `trap "" INT; `
	for _, test := range []struct {
		name, script string
		least        time.Duration // before the end
	}{
		{"ends by SIGINT", "sleep 60", 0},
		{"ignores SIGINT", ignore + "sleep 60", 300 * time.Millisecond},
		{"stopped", `trap "echo saved; exit 1" INT; kill -STOP $$; sleep 60`, 0},
		{"stopped and ignores SIGINT", ignore + `(kill -STOP $$); kill -STOP $$; sleep 60`, 300 * time.Millisecond},
		{"grandchild", ignore + "(sleep 60 & sleep 60) & sleep 60", 300 * time.Millisecond},
		{"grandchild in another session", ignore + "setsid sleep 60 & sleep 60", 300 * time.Millisecond},
		{"forks", ignore + `while :; do setsid sleep 0.3 & sleep 0.01; done`, 300 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := program(t, test.script)
			p.Timeout, p.Grace = 200*time.Millisecond, 300*time.Millisecond
			start := time.Now()
			_, err := p.Run(t.Context())
			took := time.Since(start)
			if !errors.Is(err, driver.ErrTimedOut) {
				t.Errorf("Run() = %v, want ErrTimedOut", err)
			}
			if took < p.Timeout+test.least || took > p.Timeout+p.Grace+killTime {
				t.Errorf("Run() took %v, want %v to %v", took, p.Timeout+test.least, p.Timeout+p.Grace+killTime)
			}
			if n := count(p.ID); n != 0 {
				t.Errorf("%d processes are left, want 0", n)
			}
			if handles := strings.Contains(test.script, "saved"); strings.Contains(output(t, p), "saved") != handles {
				t.Errorf("output = %q, want that of the trap: %v", output(t, p), handles)
			}
		})
	}
}

func TestRun_Interrupted(t *testing.T) {
	p := program(t, `trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		testutil.Eventually(t, 10*time.Second, func() bool { return strings.Contains(output(t, p), "ready") }, "the program runs")
	}()
	if status, err := p.Run(ctx); status != 0 || !errors.Is(err, driver.ErrInterrupted) {
		t.Errorf("Run() = %v, %v, want 0, ErrInterrupted", status, err)
	}
	if !strings.Contains(output(t, p), "saved") {
		t.Errorf("output = %q, want the trap's", output(t, p))
	}
	if status, err := p.Run(ctx); status != -1 || !errors.Is(err, driver.ErrInterrupted) {
		t.Errorf("Run() after the end of the context = %v, %v, want -1, ErrInterrupted", status, err)
	}
}

// A program that ends leaves no process of its group.
func TestRun_KillsGroupAtEnd(t *testing.T) {
	p := program(t, "sleep 60 & sleep 60 & exit 0")
	if status, err := p.Run(t.Context()); status != 0 || err != nil {
		t.Errorf("Run() = %v, %v, want 0, nil", status, err)
	}
	testutil.Eventually(t, killTime, func() bool { return count(p.ID) == 0 }, "the group has ended")
}

func TestFind_None(t *testing.T) {
	if r, err := Find(t.TempDir()); r != nil || err != nil {
		t.Errorf("Find() = %v, %v, want nil, nil", r, err)
	}
}

// TestDaemon is a daemon that the tests kill. It runs the Program of the
// environment.
func TestDaemon(t *testing.T) {
	text := os.Getenv("WANFED_TEST_PROGRAM")
	if text == "" {
		t.Skip("TestWait_AfterKill runs it")
	}
	var p Program
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatalf("Unmarshal() = %v, want nil", err)
	}
	out, err := os.OpenFile(filepath.Join(p.Dir, "out"), os.O_APPEND|os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("OpenFile() = %v, want nil", err)
	}
	p.Stdout, p.Stderr = out, out
	if d, err := time.ParseDuration(os.Getenv("WANFED_TEST_PERMIT")); err == nil {
		var g Guard
		defer g.Close()
		if err := g.Permit(p.Dir, time.Now().Add(d)); err != nil {
			t.Fatalf("Permit() = %v, want nil", err)
		}
		defer g.Permit(p.Dir, time.Time{})
	}
	_, _ = p.Run(t.Context())
}

// kill9 runs p in a daemon, and kills the daemon when the output of p has the
// line "ready". p may run for the time permit.
func kill9(t *testing.T, p Program, permit time.Duration) {
	t.Helper()
	daemon := runDaemon(t, p, permit)
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
}

// runDaemon runs p in a daemon, and waits until the output of p has the line
// "ready".
func runDaemon(t *testing.T, p Program, permit time.Duration) *exec.Cmd {
	t.Helper()
	p.Stdout, p.Stderr = nil, nil
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatalf("Marshal() = %v, want nil", err)
	}
	daemon := exec.Command(os.Args[0], "-test.run=^TestDaemon$")
	daemon.Env = append(os.Environ(), "WANFED_TEST_PROGRAM="+string(text), "WANFED_TEST_PERMIT="+permit.String())
	if err := daemon.Start(); err != nil {
		t.Fatalf("Start() = %v, want nil", err)
	}
	testutil.Eventually(t, 20*time.Second, func() bool { return strings.Contains(output(t, p), "ready") }, "the program runs")
	return daemon
}

func TestWait_AfterKill(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("record without process %v", lost), func(t *testing.T) {
			p := program(t, `echo ready; while [ ! -e go ]; do sleep 0.02; done; setsid sleep 60 & echo done`)
			kill9(t, p, time.Minute)
			r, err := Find(p.Dir)
			if err != nil || r == nil || r.ID != p.ID || r.Step != "apply" {
				t.Fatalf("Find() = %+v, %v, want the record of %s", r, err, p.ID)
			}
			if info, err := os.Stat(filepath.Join(p.Dir, recordName)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode of the record = %v, %v, want 0600", info.Mode(), err)
			}
			if lost {
				r.PID, r.Ticks = 0, 0
			}
			waited := make(chan error, 1)
			go func() { waited <- r.Wait(t.Context()) }()
			select {
			case err := <-waited:
				t.Fatalf("Wait() = %v while the program runs", err)
			case <-time.After(100 * time.Millisecond):
			}
			if err := os.WriteFile(filepath.Join(p.Dir, "go"), nil, 0o600); err != nil {
				t.Fatalf("WriteFile() = %v, want nil", err)
			}
			if err := <-waited; err != nil {
				t.Errorf("Wait() = %v, want nil", err)
			}
			if !strings.Contains(output(t, p), "done") {
				t.Errorf("output = %q, want done", output(t, p))
			}
			if n := count(p.ID); n != 0 {
				t.Errorf("%d processes are left, want 0", n)
			}
			if err := r.Wait(t.Context()); err != nil {
				t.Errorf("Wait() after the end = %v, want nil", err)
			}
		})
	}
}

// The timeout of a program counts from its start, not from the start of Wait.
func TestWait_Timeout(t *testing.T) {
	p := program(t, `trap "" INT; echo ready; sleep 60`)
	p.Timeout, p.Grace = 500*time.Millisecond, 100*time.Millisecond
	kill9(t, p, time.Minute)
	r, err := Find(p.Dir)
	if err != nil || r == nil {
		t.Fatalf("Find() = %v, %v, want a record", r, err)
	}
	if err := r.Wait(t.Context()); !errors.Is(err, driver.ErrTimedOut) {
		t.Errorf("Wait() = %v, want ErrTimedOut", err)
	}
	if took := time.Since(r.Started); took > p.Timeout+p.Grace+killTime {
		t.Errorf("the program ended after %v, want %v", took, p.Timeout+p.Grace)
	}
}

// Another process with the id of a record is not affected.
func TestWait_OtherProcess(t *testing.T) {
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatalf("Start() = %v, want nil", err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	boot, err := bootID()
	if err != nil {
		t.Fatalf("bootID() = %v, want nil", err)
	}
	ticks, err := startTicks(other.Process.Pid)
	if err != nil {
		t.Fatalf("startTicks() = %v, want nil", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range []Record{
		{ID: "x", PID: other.Process.Pid, Ticks: ticks - 1, Boot: boot},
		{ID: "x", PID: other.Process.Pid, Ticks: ticks, Boot: "another boot"},
	} {
		if err := r.Wait(ctx); err != nil {
			t.Errorf("Wait(%+v) = %v, want nil", r, err)
		}
	}
	if err := other.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the other process has ended: %v", err)
	}
}

func TestEnviron_AllowList(t *testing.T) {
	for _, name := range []string{"LC_TEST", "TF_X", "SECRET_X", "PATHX"} {
		t.Setenv(name, "v")
	}
	env := Environ(func(name string) bool { return name == "TF_X" })
	for name, want := range map[string]bool{"LC_TEST": true, "TF_X": true, "SECRET_X": false, "PATHX": false} {
		if got := slices.Contains(env, name+"=v"); got != want {
			t.Errorf("Environ() has %s: %v, want %v", name, got, want)
		}
	}
}
