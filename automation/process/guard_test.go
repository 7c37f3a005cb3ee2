// SPDX-License-Identifier: MPL-2.0

//go:build linux

package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/internal/testutil"
)

// counts writes "saved" at each SIGINT, and does not end.
const counts = `trap "echo saved" INT; echo ready; while :; do sleep 0.05; done`

// TestGuard kills or stops the daemon of a program. The program ends when its
// time is over, with all its processes.
func TestGuard(t *testing.T) {
	const permit = time.Second
	for _, test := range []struct {
		name, script string
		stop         bool // the daemon is stopped and later continued, not killed
	}{
		{"daemon killed", counts, false},
		{"daemon stopped", counts, true},
		{"another session", `trap "" INT; setsid sleep 60 & echo ready; sleep 60`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := program(t, test.script)
			p.Grace = 2 * time.Second
			start := time.Now()
			daemon := runDaemon(t, p, permit)
			signal := unix.SIGKILL
			if test.stop {
				signal = unix.SIGSTOP
			}
			if err := daemon.Process.Signal(signal); err != nil {
				t.Fatalf("Signal(%v) = %v, want nil", signal, err)
			}
			testutil.Eventually(t, 20*time.Second, func() bool { return count(p.ID) == 0 }, "the program has ended")
			if took := time.Since(start); took < permit {
				t.Errorf("the program ended after %v, want at least %v", took, permit)
			}
			_ = daemon.Process.Signal(unix.SIGCONT)
			_ = daemon.Wait()
			if got := strings.Count(output(t, p), "saved"); got != strings.Count(test.script, "saved") {
				t.Errorf("output = %q, want one SIGINT", output(t, p))
			}
		})
	}
}

// Another daemon extends the time of a program, as after a restart.
func TestGuard_Extended(t *testing.T) {
	t.Parallel()
	p := program(t, `trap "" INT; echo ready; while [ ! -e go ]; do sleep 0.02; done; echo done`)
	kill9(t, p, time.Second)
	var g Guard
	defer g.Close()
	if err := g.Permit(p.Dir, time.Now().Add(time.Minute)); err != nil {
		t.Fatalf("Permit() = %v, want nil", err)
	}
	left, limited := timeLeft(p.Dir)
	if !limited || left < 50*time.Second || left > time.Minute {
		t.Errorf("timeLeft() = %v, %v, want a minute", left, limited)
	}
	// The first limit passes on the clock of the guard, which is a process. Nothing
	// may happen then, so there is no event to wait for.
	time.Sleep(time.Second + guardDelay + 2*guardInterval)
	if err := os.WriteFile(p.Dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool { return strings.Contains(output(t, p), "done") }, "the program ends by itself")
	if err := g.Permit(p.Dir, time.Time{}); err != nil {
		t.Errorf("Permit(zero) = %v, want nil", err)
	}
	if _, limited := timeLeft(p.Dir); limited {
		t.Error("limit after the end of the run, want none")
	}
}

// A guard that was killed is replaced, and the new one knows the runs.
func TestGuard_Replaced(t *testing.T) {
	dir := t.TempDir()
	var g Guard
	defer g.Close()
	if err := g.Permit(dir, time.Now().Add(time.Minute)); err != nil {
		t.Fatalf("Permit() = %v, want nil", err)
	}
	first := g.pid
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatalf("Kill() = %v, want nil", err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool {
		if err := g.Permit(dir, time.Now().Add(time.Minute)); err != nil {
			t.Fatalf("Permit() = %v, want nil", err)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.pid != first && g.dirs[dir]
	}, "another process")
}

func TestRun_TimeIsOver(t *testing.T) {
	p := program(t, "exit 0")
	if err := writeUntil(p.Dir, time.Now()); err != nil {
		t.Fatalf("writeUntil() = %v, want nil", err)
	}
	if status, err := p.Run(t.Context()); status != -1 || !errors.Is(err, driver.ErrInterrupted) {
		t.Errorf("Run() = %v, %v, want -1, ErrInterrupted", status, err)
	}
}

// The daemon is stopped between its first check and the start of the program, and
// continues after the time of the run. Here it waits for its input.
func TestRun_TimeEndsBeforeStart(t *testing.T) {
	t.Parallel()
	p := program(t, "cat; echo started")
	p.Stdin = filepath.Join(p.Dir, "in")
	if err := unix.Mkfifo(p.Stdin, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeUntil(p.Dir, time.Now().Add(500*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = os.WriteFile(p.Stdin, nil, 0) })
	if status, err := p.Run(t.Context()); status != -1 || !errors.Is(err, driver.ErrInterrupted) || output(t, p) != "" {
		t.Errorf("Run() = %v, %v with output %q, want -1, ErrInterrupted and none", status, err, output(t, p))
	}
}

// A program whose daemon was killed after SIGINT receives no second SIGINT,
// which would make Terraform end without its state.
func TestWait_InterruptedOnce(t *testing.T) {
	t.Parallel()
	p := program(t, counts)
	p.Timeout, p.Grace = 500*time.Millisecond, time.Second
	daemon := runDaemon(t, p, time.Minute)
	testutil.Eventually(t, 10*time.Second, func() bool { return strings.Contains(output(t, p), "saved") }, "SIGINT")
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	r, err := Find(p.Dir)
	if err != nil || r == nil {
		t.Fatalf("Find() = %v, %v, want a record", r, err)
	}
	if err := r.Wait(t.Context()); !errors.Is(err, driver.ErrTimedOut) {
		t.Errorf("Wait() = %v, want ErrTimedOut", err)
	}
	if got := strings.Count(output(t, p), "saved"); got != 1 {
		t.Errorf("number of SIGINT = %d, want 1", got)
	}
}
