// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
)

func TestDaemon_RunsOnChange(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.setKey("app/a", "1")
		c.addTask("web", "app/")
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`)
		c.setKey("other", "1") // not below the prefix
		c.setKey("app/a", "2")
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`, `{"app/a":"2"}`)
	})
}

// wantAfter compares the runs after d.
func (c *cluster) wantAfter(d time.Duration, name string, want ...string) {
	c.Helper()
	time.Sleep(d)
	c.wantRuns(name, want...)
}

func TestDaemon_RestartRunsNothing(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.setKey("app/a", "1")
		c.addTask("web", "app/")
		n := c.start("sync1")
		time.Sleep(time.Second)
		if err := n.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		n = c.start("sync1")
		c.wantAfter(time.Minute, "web", `{"app/a":"1"}`)
		n.stop()
		c.setKey("app/a", "2") // while no daemon runs
		n = c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`, `{"app/a":"2"}`)
	})
}

// Several conditions of the kind services define one variable together.
func TestDaemon_SeveralServices(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.write(catalog.NodeType, "n1", &pb.Node{Node: "n1", Address: "10.0.0.1"})
		for _, name := range []string{"web", "db"} {
			c.write(catalog.ServiceType, "n1/"+name, &pb.Service{Node: "n1", Id: name, Service: name})
		}
		c.addTask("t", "", func(t *pb.Task) {
			t.Conditions = []*pb.TaskQuery{{Kind: task.KindServices, Names: []string{"web"}}, {Kind: task.KindServices, Names: []string{"db"}}}
		})
		n := c.start("sync1")
		defer n.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		runs := c.programs.runs("t")
		var got map[string]any
		if len(runs) != 1 || json.Unmarshal([]byte(runs[0].services), &got) != nil || len(got) != 2 {
			t.Errorf("runs = %+v, want one with two services", runs)
		}
	})
}

func TestDaemon_KilledIsReplaced(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.setKey("app/a", "1")
		c.addTask("web", "app/")
		one, two := c.start("sync1"), c.start("sync2")
		time.Sleep(time.Second)
		owner, other := one, two
		if c.state("web").Instance == "sync2" {
			owner, other = two, one
		}
		owner.kill()
		defer other.stop()
		killed := time.Now()
		c.setKey("app/a", "2")
		for c.state("web").Instance != other.id {
			time.Sleep(100 * time.Millisecond)
			if time.Since(killed) > DefaultLease+2*time.Second {
				t.Fatalf("task not taken over %v after the kill", time.Since(killed))
			}
		}
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`, `{"app/a":"2"}`)
	})
}

// TestDaemon_ReturnsAfterPartition cuts off each of two daemons for longer than
// their leases, one after the other. Both are members of the group again after
// that, and share the tasks.
func TestDaemon_ReturnsAfterPartition(t *testing.T) {
	inCluster(t, func(c *cluster) {
		const tasks = 6
		for i := range tasks {
			c.addTask(fmt.Sprintf("task%d", i), fmt.Sprintf("app%d/", i))
		}
		nodes := []*node{c.start("sync1"), c.start("sync2")}
		time.Sleep(time.Minute)
		for _, n := range nodes {
			n.link.cut.Store(true)
			time.Sleep(time.Minute)
			n.link.cut.Store(false)
			time.Sleep(time.Minute)
			owned := map[string]int{}
			for i := range tasks {
				owned[c.state(fmt.Sprintf("task%d", i)).Instance]++
			}
			if owned["sync1"] == 0 || owned["sync2"] == 0 {
				t.Errorf("tasks by daemon after the partition of %s = %v, want some at both", n.id, owned)
			}
		}
		nodes[0].kill()
		time.Sleep(DefaultLease + 2*time.Second)
		for i := range tasks {
			name := fmt.Sprintf("task%d", i)
			if got := c.state(name).Instance; got != "sync2" {
				t.Errorf("daemon of %s after the death of sync1 = %q, want sync2", name, got)
			}
		}
		if err := nodes[1].stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// A failed recovery is repeated after a delay, and the task reports it.
func TestDaemon_RecoverFails(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.setKey("app/a", "1")
		c.addTask("web", "app/")
		c.programs.recoverErr = errors.New("damaged file")
		n := c.start("sync1")
		defer n.stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		c.programs.mu.Lock()
		if got := c.programs.recovers; got < 10 || got > 13 {
			t.Errorf("attempts to recover in a minute = %d, want 12", got)
		}
		c.programs.recoverErr = nil
		c.programs.mu.Unlock()
		if ready := c.ready("web"); ready.GetReason() != "Recovery" || ready.GetMessage() != "damaged file" {
			t.Errorf("condition Ready = %v, want the error", ready)
		}
		c.wantAfter(recoverRetry+time.Second, "web", `{"app/a":"1"}`)
	})
}

func TestDaemon_KilledRestartsAtOnce(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.setKey("app/a", "1")
		c.addTask("web", "app/")
		n := c.start("sync1")
		time.Sleep(time.Second)
		n.kill()
		c.setKey("app/a", "2")
		n = c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`, `{"app/a":"2"}`)
	})
}

// After a deletion as the last change, the data of a new daemon is not older
// than that of the last run: a request is not delayed.
func TestDaemon_RequestAfterDeletion(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.setKey("app/a", "1")
		c.setKey("app/b", "1")
		c.addTask("web", "app/")
		n := c.start("sync1")
		c.wantAfter(time.Second, "web", `{"app/a":"1","app/b":"1"}`)
		c.remove("app/b")
		c.wantAfter(time.Second, "web", `{"app/a":"1","app/b":"1"}`, `{"app/a":"1"}`)
		n.stop()
		n = c.start("sync1")
		defer n.stop()
		time.Sleep(time.Second)
		c.request("web")
		c.wantAfter(time.Second, "web", `{"app/a":"1","app/b":"1"}`, `{"app/a":"1"}`, `{"app/a":"1"}`)
	})
}

// request requests a run of a task.
func (c *cluster) request(name string) {
	c.Helper()
	resp, err := c.resource.Read(c.Context(), &pb.ReadRequest{Id: task.ID(name)})
	if err == nil {
		r := resp.Resource
		next := &pb.Resource{Id: r.Id, Version: r.Version, Data: r.Data, Metadata: maps.Clone(r.Metadata)}
		next.Metadata[task.RequestKey] = resource.NewUID() + " " + string(driver.Apply)
		_, err = c.resource.Write(c.Context(), &pb.WriteRequest{Resource: next})
	}
	if err != nil {
		c.Fatalf("request of a run of %s = %v, want nil", name, err)
	}
}

func TestDaemon_StopReleasesAtOnce(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/")
		one, two := c.start("sync1"), c.start("sync2")
		time.Sleep(time.Second)
		owner, other := one, two
		if c.state("web").Instance == "sync2" {
			owner, other = two, one
		}
		owner.stop()
		defer other.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := c.state("web").Instance; got != other.id {
			t.Errorf("instance 1 s after the stop = %q, want %q", got, other.id)
		}
		c.wantRuns("web", `{}`)
	})
}

func TestDaemon_FailedRunIsRetried(t *testing.T) {
	inCluster(t, func(c *cluster) {
		failures := 3
		c.programs.fail = func(string) error {
			if failures--; failures >= 0 {
				return errors.New("exit status 1")
			}
			return nil
		}
		c.addTask("web", "app/")
		n := c.start("sync1")
		defer n.stop()
		time.Sleep(time.Second)
		if st := c.state("web"); st.Failures != 1 || st.AppliedAt != nil {
			t.Errorf("failures = %d, applied at %v, want 1 and never", st.Failures, st.AppliedAt)
		}
		c.wantAfter(time.Minute, "web", `{}`)
		if st := c.state("web"); st.Failures != 0 || len(st.Runs) != 4 {
			t.Errorf("failures = %d, runs = %d, want 0 and 4", st.Failures, len(st.Runs))
		}
	})
}

func TestDaemon_BufferCoalesces(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/", func(t *pb.Task) {
			t.Buffer = &pb.TaskBuffer{Min: durationpb.New(5 * time.Second), Max: durationpb.New(20 * time.Second)}
		})
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{}`) // the first run is not delayed
		for _, value := range []string{"1", "2", "3"} {
			c.setKey("app/a", value)
			time.Sleep(4 * time.Second)
		}
		c.wantRuns("web", `{}`)
		c.wantAfter(2*time.Second, "web", `{}`, `{"app/a":"3"}`)
		for range 10 { // a change every 4 s: after 20 s at most
			c.setKey("app/a", "x")
			c.setKey("app/b", time.Now().String())
			time.Sleep(4 * time.Second)
		}
		if runs := len(c.programs.runs("web")); runs != 3 && runs != 4 {
			t.Errorf("runs = %d, want 3 or 4", runs)
		}
	})
}

func TestDaemon_ChangeDuringRun(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.duration = 10 * time.Second
		c.addTask("web", "app/")
		n := c.start("sync1")
		defer n.stop()
		time.Sleep(time.Second)
		c.setKey("app/a", "1")
		c.setKey("app/a", "2")
		c.wantAfter(30*time.Second, "web", `{}`, `{"app/a":"2"}`)
	})
}

func TestDaemon_MaxRunning(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.duration = time.Second
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			c.addTask(name, "app/")
		}
		n := c.start("sync1", func(cfg *Config) { cfg.MaxRunning = 2 })
		defer n.stop()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for at := range c.programs.log {
			overlapping := 0
			for _, other := range c.programs.log {
				if !other.start.After(c.programs.log[at].start) && other.end.After(c.programs.log[at].start) {
					overlapping++
				}
			}
			if overlapping > 2 {
				t.Errorf("%d concurrent runs, want at most 2", overlapping)
			}
		}
		if len(c.programs.log) != 8 {
			t.Errorf("runs = %d, want 8", len(c.programs.log))
		}
	})
}

func TestDaemon_Disabled(t *testing.T) {
	inCluster(t, func(c *cluster) {
		disabled := false
		c.addTask("web", "app/", func(t *pb.Task) { t.Enabled = &disabled })
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Minute, "web")
		c.addTask("web", "app/")
		c.wantAfter(time.Second, "web", `{}`)
	})
}

func TestDaemon_GuardHoldsBack(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.changes = driver.Changes{Destroy: 3, Total: 10}
		c.addTask("web", "app/", func(t *pb.Task) { t.Guard, t.Exec.Plan = &pb.TaskGuard{Approve: true}, []string{"true"} })
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Minute, "web")
		st := c.state("web")
		if st.Refused == "" || st.Failures != 0 || len(st.Runs) != 1 {
			t.Fatalf("refused = %q, failures = %d, runs = %d, want one refused run", st.Refused, st.Failures, len(st.Runs))
		}
		st.Approved = st.Refused
		c.write(task.StateType, "web", st)
		c.wantAfter(time.Second, "web", `{}`)
		if st := c.state("web"); st.Refused != "" || st.Approved != "" {
			t.Errorf("refused = %q, approved = %q after the run, want none", st.Refused, st.Approved)
		}
	})
}

func TestDaemon_GuardOfEmptyInput(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.changes = driver.Changes{Change: 1}
		c.setKey("app/a", "1")
		c.addTask("web", "app/", func(t *pb.Task) { t.Guard, t.Exec.Plan = &pb.TaskGuard{EmptyInput: true}, []string{"true"} })
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`)
		c.remove("app/a")
		c.wantAfter(time.Minute, "web", `{"app/a":"1"}`)
		c.setKey("app/a", "2")
		c.wantAfter(time.Second, "web", `{"app/a":"1"}`, `{"app/a":"2"}`)
	})
}

func TestDaemon_Schedule(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "", func(t *pb.Task) {
			t.Conditions = []*pb.TaskQuery{{Kind: task.KindSchedule, Cron: "*/10 * * * *"}}
			t.Inputs = []*pb.TaskQuery{{Kind: task.KindKV, Path: "app/", Recurse: true}}
		})
		n := c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{}`) // the first run
		c.setKey("app/a", "1")
		c.wantAfter(time.Minute, "web", `{}`)
		c.wantAfter(10*time.Minute, "web", `{}`, `{"app/a":"1"}`)
		c.wantAfter(time.Hour, "web", `{}`, `{"app/a":"1"}`) // nothing has changed
	})
}

func TestDaemon_ServersAway(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.duration = 10 * time.Second
		c.addTask("web", "app/")
		n := c.start("sync1")
		defer n.stop()
		time.Sleep(5 * time.Second) // in the middle of the run
		n.link.cut.Store(true)
		c.setKey("app/a", "1")
		time.Sleep(45 * time.Second) // longer than the lease
		n.link.cut.Store(false)
		c.wantAfter(time.Minute, "web", `{}`, `{"app/a":"1"}`)
	})
}

func TestDaemon_StopInterruptsRun(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.programs.duration = time.Hour
		c.addTask("web", "app/")
		n := c.start("sync1", func(cfg *Config) { cfg.StopTimeout = 10 * time.Second })
		time.Sleep(time.Second)
		began := time.Now()
		if err := n.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("Run returned %v after the stop, want 10 s", took)
		}
		c.programs.duration = 0
		n = c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Second, "web", `{}`)
	})
}

func TestDaemon_OnAdded(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.addTask("web", "app/", func(t *pb.Task) { t.Conditions[0].On = []string{"added"} })
		n := c.start("sync1")
		c.wantAfter(time.Second, "web", `{}`)
		c.setKey("app/a", "1")
		c.wantAfter(time.Second, "web", `{}`, `{"app/a":"1"}`)
		c.setKey("app/a", "2")
		c.remove("app/a")
		c.wantAfter(time.Second, "web", `{}`, `{"app/a":"1"}`)
		n.stop()
		n = c.start("sync1")
		defer n.stop()
		c.wantAfter(time.Minute, "web", `{}`, `{"app/a":"1"}`)
	})
}

func TestGuard(t *testing.T) {
	for _, test := range []struct {
		guard   *pb.TaskGuard
		changes driver.Changes
		emptied bool
		want    bool // the run is held back
	}{
		{&pb.TaskGuard{Approve: true}, driver.Changes{Add: 1}, false, true},
		{&pb.TaskGuard{Approve: true}, driver.Changes{Total: 9}, false, false},
		{&pb.TaskGuard{MaxDestroy: "20%"}, driver.Changes{Destroy: 3, Total: 10}, false, true},
		{&pb.TaskGuard{MaxDestroy: "20%"}, driver.Changes{Destroy: 2, Total: 10}, false, false},
		{&pb.TaskGuard{MaxDestroy: "0"}, driver.Changes{Destroy: 1, Total: 10}, false, true},
		{&pb.TaskGuard{EmptyInput: true}, driver.Changes{Destroy: 1, Total: 10}, true, true},
		{&pb.TaskGuard{EmptyInput: true}, driver.Changes{Destroy: 1, Total: 10}, false, false},
	} {
		err := guard(test.guard, test.changes, test.emptied)
		if _, refused := errors.AsType[*refusedError](err); refused != test.want || !refused && err != nil {
			t.Errorf("guard(%v, %+v, %v) = %v, want held back: %v", test.guard, test.changes, test.emptied, err, test.want)
		}
	}
}
