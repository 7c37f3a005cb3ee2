// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
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
		c.storeVersion("", `{"serial":5,"lineage":"l"}`)
		n.stop()
		left := c.leave("sync1", "", `{"serial":3,"lineage":"l"}`)
		c.setKey("app/a", "1")
		n = c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Minute, "web", `{}`)
		got := c.ready("web")
		for _, want := range []string{left, "serial 5", "wanfed task state import web " + left + " --force"} {
			if got.GetReason() != "Recovery" || !strings.Contains(got.GetMessage(), want) {
				t.Errorf("condition Ready = %v, want %q", got, want)
			}
		}
		c.removeFile(left)
		c.wantAfter(2*recoverRetry, "web", `{}`, `{"app/a":"1"}`)
	})
}

// storeVersion stores a version of the state of the task "web", as a run, or as
// an operator's command.
func (c *cluster) storeVersion(run, text string) {
	c.Helper()
	store, err := state.NewStore(state.StoreConfig{Client: c.resource, KeyFile: c.dir("keys")})
	if err == nil {
		_, err = store.Put(c.Context(), state.Claim{Task: "web"}, []byte(text), state.PutOptions{Run: run})
	}
	if err != nil {
		c.Fatal(err)
	}
}

// leave writes the state that a run of the task "web" at a daemon could not store:
// the last run at this daemon, if run is "".
func (c *cluster) leave(daemon, run, text string) (path string) {
	c.Helper()
	path = filepath.Join(c.dir(daemon), "web", "errored.tfstate")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		c.Fatal(err)
	}
	c.programs.mu.Lock()
	defer c.programs.mu.Unlock()
	c.programs.left, c.programs.leftBy = path, run
	return path
}

// removeFile removes a file, as an operator.
func (c *cluster) removeFile(path string) {
	c.Helper()
	if err := os.Remove(path); err != nil {
		c.Fatal(err)
	}
}

// A daemon is cut off in the middle of a run, which cannot store its state. Another
// daemon runs the task, and then the first one gets it back. It does not wait for
// an operator, and does not replace the newer state, although its serial is lower.
func TestDaemon_SupersededState(t *testing.T) {
	for _, stored := range []bool{false, true} { // by the first run, after all
		inCluster(t, func(c *cluster) {
			const first, second = `{"serial":9,"lineage":"l"}`, `{"serial":4,"lineage":"l"}`
			var mu sync.Mutex
			var kept []string // the content of the file
			keep := func(cfg *Config) {
				cfg.Keep = func(_ state.Claim, run string, data []byte) (string, error) {
					mu.Lock()
					defer mu.Unlock()
					kept = append(kept, run+" "+string(data))
					return "/pending/web.1.kept", nil
				}
				cfg.Kept = func(string) []string {
					mu.Lock()
					defer mu.Unlock()
					return []string{"/pending/web.1.kept"}[:len(kept)]
				}
			}
			take := func(duration time.Duration) {
				c.programs.mu.Lock()
				defer c.programs.mu.Unlock()
				c.programs.duration = duration
			}
			c.addTask("web", "app/")
			n := c.start("sync1", keep)
			defer func() { n.stop() }()
			c.wantAfter(time.Second, "web", `{}`)
			take(time.Minute)
			c.setKey("app/a", "1")
			time.Sleep(time.Second)
			cut := c.state("web").Running.GetId()
			if cut == "" {
				t.Fatal("no run in progress")
			}
			if stored {
				c.storeVersion(cut, first)
			}
			n.link.cut.Store(true)
			left := c.leave("sync1", cut, first)
			other := c.start("sync2")
			take(time.Second)
			c.wantAfter(2*time.Minute, "web", `{}`, `{"app/a":"1"}`)
			c.storeVersion(c.state("web").Runs[0], second)
			n.link.cut.Store(false)
			other.stop()
			c.setKey("app/a", "2")
			c.wantAfter(time.Minute, "web", `{}`, `{"app/a":"1"}`, `{"app/a":"2"}`)
			st := c.state("web")
			if st.Running != nil || st.Versions[0].Serial != 4 {
				t.Errorf("state = %v, want no run in progress, and serial 4", st)
			}
			if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("Stat(%s) = %v, want ErrNotExist", left, err)
			}
			want, message := []string{cut + " " + first}, "daemon sync1 has kept the last one in /pending/web.1.kept"
			if stored {
				want, message = nil, ""
			}
			mu.Lock()
			states := slices.Clone(kept)
			mu.Unlock()
			if got := c.ready("web"); !slices.Equal(states, want) || got.GetState() != pb.Condition_STATE_TRUE ||
				!strings.Contains(got.GetMessage(), message) || (got.GetMessage() == "") != (message == "") {
				t.Errorf("kept states = %q, want %q; Ready = %v, want true with %q", states, want, got, message)
			}
		})
	}
}

// A run fails and leaves a state that cannot be stored. No run removes it: the task
// is blocked as after a restart.
func TestDaemon_FailedRunLeavesState(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/")
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{}`)
		c.storeVersion("", `{"serial":5,"lineage":"l"}`)
		left := c.leave("sync1", "", `{"serial":3,"lineage":"l"}`)
		fail := func(fail func(string) error) {
			c.programs.mu.Lock()
			defer c.programs.mu.Unlock()
			c.programs.fail = fail
		}
		fail(func(string) error { return errors.New("exit status 1") })
		c.setKey("app/a", "1")
		time.Sleep(time.Minute)
		if runs := len(c.programs.runs("web")); runs != 2 {
			t.Errorf("%d runs with a state that is not stored, want 2: one that succeeded, and one that failed", runs)
		}
		if got := c.ready("web"); got.GetReason() != "Recovery" {
			t.Errorf("condition Ready = %v, want Recovery", got)
		}
		fail(nil)
		c.removeFile(left)
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
