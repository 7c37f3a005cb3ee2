// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
)

// A daemon is killed, or loses the servers, in the middle of a long run. Another
// daemon repeats the run when the program of the first one has certainly ended.
func TestDaemon_LongRunIsNotDoubled(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(*node)
	}{
		{"killed", (*node).kill},
		{"cut off", func(n *node) { n.link.cut.Store(true) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inCluster(t, func(c *cluster) {
				c.programs.duration = 10 * time.Minute
				c.addTask("web", "app/")
				one := c.start("sync1")
				time.Sleep(5 * time.Second)
				two := c.start("sync2")
				defer two.stop()
				at := time.Now()
				test.end(one)
				limit := DefaultLease + process.StopTime(task.DefaultGrace) + 2*time.Second
				time.Sleep(limit - time.Since(at))
				synctest.Wait()
				c.programs.mu.Lock()
				run := c.programs.alive["web"]
				c.programs.mu.Unlock()
				if run == nil || run.daemon != "sync2" {
					t.Errorf("program %v after the fault = %+v, want one of sync2", limit, run)
				}
				one.link.cut.Store(false)
				time.Sleep(20 * time.Minute)
				c.wantRuns("web", `{}`)
				if !one.dead {
					one.stop()
				}
			})
		})
	}
}

// A daemon that starts again finds the program of its long run, and extends the
// time of the program.
func TestDaemon_LongRunSurvivesRestart(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.duration = 10 * time.Minute
		c.addTask("web", "app/")
		n := c.start("sync1")
		time.Sleep(5 * time.Second)
		n.kill()
		n = c.start("sync1")
		defer n.stop()
		time.Sleep(20 * time.Minute)
		c.wantRuns("web", `{}`)
		if runs := c.programs.runs("web"); len(runs) != 1 {
			t.Errorf("%d runs, want 1", len(runs))
		}
	})
}

// A state that a run has left, and that is older than the stored one, blocks the
// task until an operator has decided. The task shows the file and the commands.
func TestDaemon_ObsoleteState(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/")
		n := c.start("sync1")
		c.wantAfter(time.Second, "web", `{}`)
		store, err := state.NewStore(state.StoreConfig{Client: c.resource, KeyFile: c.dir("keys")})
		if err == nil {
			_, err = store.Import(c.Context(), state.Claim{Task: "web"}, []byte(`{"serial":5,"lineage":"l"}`), state.ImportOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		n.stop()
		c.programs.left = []byte(`{"serial":3,"lineage":"l"}`)
		c.setKey("app/a", "1")
		n = c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Minute, "web", `{}`)
		got := c.ready("web")
		for _, want := range []string{"/w/errored.tfstate", "serial 5", "wanfed task state import web /w/errored.tfstate --force"} {
			if got.GetReason() != "Recovery" || !strings.Contains(got.GetMessage(), want) {
				t.Errorf("condition Ready = %v, want %q", got, want)
			}
		}
		c.programs.mu.Lock()
		c.programs.left = nil // the operator has removed the file
		c.programs.mu.Unlock()
		c.wantAfter(2*recoverRetry, "web", `{}`, `{"app/a":"1"}`)
	})
}

// A run fails and leaves a state that cannot be stored. No run removes it: the task
// is blocked as after a restart.
func TestDaemon_FailedRunLeavesState(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/")
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{}`)
		store, err := state.NewStore(state.StoreConfig{Client: c.resource, KeyFile: c.dir("keys")})
		if err == nil {
			_, err = store.Import(c.Context(), state.Claim{Task: "web"}, []byte(`{"serial":5,"lineage":"l"}`), state.ImportOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		set := func(left []byte, fail func(string) error) {
			c.programs.mu.Lock()
			defer c.programs.mu.Unlock()
			c.programs.left, c.programs.fail = left, fail
		}
		set([]byte(`{"serial":3,"lineage":"l"}`), func(string) error { return errors.New("exit status 1") })
		c.setKey("app/a", "1")
		time.Sleep(time.Minute)
		if runs := len(c.programs.runs("web")); runs != 2 {
			t.Errorf("%d runs with a state that is not stored, want 2: one that succeeded, and one that failed", runs)
		}
		if got := c.ready("web"); got.GetReason() != "Recovery" {
			t.Errorf("condition Ready = %v, want Recovery", got)
		}
		set(nil, nil) // the operator has removed the file
		c.wantAfter(2*recoverRetry, "web", `{}`, `{"app/a":"1"}`)
	})
}

// A daemon that is stopped at any moment of its start logs no warning.
func TestDaemon_StopDuringStart(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/")
		for i := range 30 {
			var log strings.Builder
			n := c.start("sync1", func(cfg *Config) {
				cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			}, func(*Config) { c.latency.Store(int64(10 * time.Millisecond)) })
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			if err := n.stop(); err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
			if log.Len() > 0 {
				t.Errorf("log of a daemon that is stopped after %d ms: %s", 5*i, &log)
			}
		}
	})
}
