// SPDX-License-Identifier: MPL-2.0

//go:build linux

package terraform

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/internal/testutil"
)

// hanging is a module whose second resource runs a command.
func hanging(command string) string {
	return `
variable "services" {}
resource "terraform_data" "done" {}
resource "terraform_data" "hangs" {
  depends_on = [terraform_data.done]
  provisioner "local-exec" { command = "` + command + `" }
}
`
}

func TestRun_Ends(t *testing.T) {
	testutil.Cluster(t)
	for _, test := range []struct {
		name, command string
		killed        bool // Terraform cannot store the state
	}{
		{"sleeps", "echo started; sleep 60", false},
		{"ignores the interrupt", "trap '' INT; echo started; while :; do sleep 1; done", true},
		{"grandchildren", "echo started; setsid sh -c 'trap \\\"\\\" INT TERM; sleep 60 & sleep 60' & sleep 60", false},
		{"stopped", "echo started; kill -STOP $PPID; sleep 60", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, b := newDriver(t), new(backend)
			w := work(t, hanging(test.command))
			b.serve(t, w)
			w.Task.Timeout, w.Task.Grace = durationpb.New(2*time.Second), durationpb.New(3*time.Second)
			start := time.Now()
			res, err := d.Run(t.Context(), w, driver.Request{ID: "ends-" + filepath.Base(w.Task.Terraform.Module), Mode: driver.Apply})
			took := time.Since(start)
			if !errors.Is(err, driver.ErrTimedOut) || took < 2*time.Second || took > 7*time.Second {
				t.Errorf("Run() = %v after %v, want ErrTimedOut after 2 s to 7 s", err, took)
			}
			if !strings.Contains(res.Log, "started") {
				t.Errorf("the command did not start: %s", res.Log)
			}
			if processesIn(t, w.Dir) != 0 {
				t.Error("processes are left")
			}
			if !test.killed && (read(t, b.state).instances() != 1 || b.lock != "") {
				t.Errorf("state has %d complete instances, lock %q, want 1 and no lock", read(t, b.state).instances(), b.lock)
			}
		})
	}
}

// processesIn returns the number of processes whose working directory is dir.
func processesIn(t *testing.T, dir string) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil || len(links) == 0 {
		t.Fatalf("Glob() = %v, %v, want processes", links, err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == dir {
			n++
		}
	}
	return n
}

// The daemon is killed in the middle of an apply, and the backend remains.
func TestRecover_TerraformContinues(t *testing.T) {
	testutil.Cluster(t)
	d, b := newDriver(t), new(backend)
	flag := filepath.Join(t.TempDir(), "go")
	w := work(t, hanging("while [ ! -e "+flag+" ]; do sleep 0.05; done"))
	b.serve(t, w)
	kill := startDaemon(t, w)
	testutil.Eventually(t, 30*time.Second, func() bool { return logged(w, "local-exec): Executing") }, "the command runs")
	kill()
	time.AfterFunc(200*time.Millisecond, func() { _ = os.WriteFile(flag, nil, 0o600) })
	for range 2 {
		got, err := d.Recover(t.Context(), w)
		if err != nil || got == nil || got.Err != nil || got.State != nil || got.Ended.IsZero() ||
			got.Result.Changes != (driver.Changes{Add: 2}) || !strings.HasPrefix(got.ID, "daemon-") {
			t.Fatalf("Recover() = %+v, %v, want a success with 2 additions", got, err)
		}
	}
	if n := read(t, b.state).instances(); n != 2 || b.lock != "" {
		t.Errorf("state has %d instances, lock %q, want 2 and no lock", n, b.lock)
	}
	if res := apply(t, d, w, driver.Request{ID: "next"}); res.Changes != (driver.Changes{}) {
		t.Errorf("changes of the next run = %+v, want none", res.Changes)
	}
}

// The backend ends with the daemon: Terraform leaves its state in a file.
func TestRecover_State(t *testing.T) {
	testutil.Cluster(t)
	d := newDriver(t)
	flag := filepath.Join(t.TempDir(), "go")
	w := work(t, hanging("while [ ! -e "+flag+" ]; do sleep 0.05; done"))
	kill := startDaemon(t, w)
	testutil.Eventually(t, 30*time.Second, func() bool { return logged(w, "local-exec): Executing") }, "the command runs")
	kill()
	write(t, filepath.Dir(flag), "go", "")
	b := new(backend)
	b.serve(t, w)
	for range 2 { // the daemon may be killed before it has stored the state
		got, err := d.Recover(t.Context(), w)
		if err != nil || got == nil || got.Err == nil || errors.Is(got.Err, driver.ErrLost) || read(t, got.State).instances() != 2 {
			t.Fatalf("Recover() = %+v, %v, want a failure and a state with 2 instances", got, err)
		}
		b.state = got.State
	}
	if res := apply(t, d, w, driver.Request{ID: "next"}); res.Changes != (driver.Changes{}) {
		t.Errorf("changes of the next run = %+v, want none", res.Changes)
	}
	if got, err := d.Recover(t.Context(), w); err != nil || got.Err != nil || got.State != nil {
		t.Errorf("Recover() after the next run = %+v, %v, want a success without a state", got, err)
	}
}

// A run that ended before it changed anything is lost.
func TestRecover_Lost(t *testing.T) {
	d, b := newDriver(t), new(backend)
	w := work(t, `variable "services" {}`)
	if got, err := d.Recover(t.Context(), w); got != nil || err != nil {
		t.Errorf("Recover() without a run = %+v, %v, want nil, nil", got, err)
	}
	b.serve(t, w)
	apply(t, d, w, driver.Request{ID: "r1", Mode: driver.Plan})
	got, err := d.Recover(t.Context(), w)
	if err != nil || got == nil || got.ID != "r1" || !errors.Is(got.Err, driver.ErrLost) {
		t.Errorf("Recover() = %+v, %v, want ErrLost", got, err)
	}
}

// The daemon is killed at random moments. Each resource is created once.
func TestRecover_RandomKill(t *testing.T) {
	testutil.Cluster(t)
	d := newDriver(t)
	const module = `
variable "services" {}
resource "terraform_data" "x" {
  count = 10
  provisioner "local-exec" { command = "sleep 0.0${count.index}; echo ${count.index} >>created" }
}
`
	ran := 0
	for moment := range 15 {
		w, b := work(t, module), new(backend)
		stop := b.serve(t, w)
		kill := startDaemon(t, w)
		// The moment is random, so there is no event to wait for.
		time.Sleep(250*time.Millisecond + time.Duration(rand.N(400))*time.Millisecond)
		kill()
		if moment%2 == 1 {
			stop() // the backend was a part of the daemon
		}
		start := time.Now()
		got, err := d.Recover(t.Context(), w)
		if err != nil {
			t.Fatalf("Recover() = %v, want nil", err)
		}
		recovered := time.Since(start)
		stop()
		b.lock = "" // the daemon removes the lock of a program that has ended
		if got != nil && got.State != nil {
			b.state = got.State
		}
		b.serve(t, w)
		before, _ := os.ReadFile(filepath.Join(w.Dir, "created"))
		res := apply(t, d, w, driver.Request{ID: "next"})
		created, err := os.ReadFile(filepath.Join(w.Dir, "created"))
		if err != nil {
			t.Fatalf("ReadFile() = %v, want nil", err)
		}
		if got != nil && got.Err == nil {
			ran++
		}
		lines := strings.Fields(string(created))
		slices.Sort(lines)
		if want := strings.Fields("0 1 2 3 4 5 6 7 8 9"); !slices.Equal(lines, want) || read(t, b.state).instances() != 10 {
			t.Errorf("created %v, of them %d before the kill's recovery (%v), then %+v; want each resource once; recovered %+v",
				lines, len(strings.Fields(string(before))), recovered, res.Changes, got)
		}
	}
	t.Logf("%d of 15 runs continued to their end", ran)
}
