// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/automation/process"
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
