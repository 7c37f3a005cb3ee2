// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestDaemon_RandomFaults runs three daemons with 60 tasks while keys change,
// and kills, stops, pauses and disconnects daemons, and shifts their clocks. At the end, the last run of each
// task has the last value of its key. No task runs twice with equal inputs,
// unless the daemon of the first run had a fault before the result was stored.
// WANFED_CHAOS=1 runs 20 seeds in place of 2, and WANFED_SEED one.
func TestDaemon_RandomFaults(t *testing.T) {
	first, count := 1, 2
	if os.Getenv("WANFED_CHAOS") != "" {
		count = 20
	}
	if s := os.Getenv("WANFED_SEED"); s != "" {
		first, _ = strconv.Atoi(s)
		count = 1
	}
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			inCluster(t, func(c *cluster) { randomFaults(c, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

// fault is a time in which a daemon could not store results.
type fault struct {
	daemon     string
	begin, end time.Time
}

func randomFaults(c *cluster, rnd *rand.Rand) {
	const tasks = 60
	c.programs.duration = 200 * time.Millisecond
	c.programs.slow = 20 * time.Second
	values := map[string]string{}
	change := func(i int) {
		key := fmt.Sprintf("app%02d/key", i)
		values[key] = strconv.Itoa(rnd.IntN(1000000))
		c.setKey(key, values[key])
	}
	for i := range tasks {
		change(i)
		c.addTask(fmt.Sprintf("task%02d", i), fmt.Sprintf("app%02d/", i))
	}
	var faults []fault
	nodes := map[string]*node{}
	for _, id := range []string{"sync1", "sync2", "sync3"} {
		nodes[id] = c.start(id)
	}
	for range 60 {
		id := fmt.Sprintf("sync%d", 1+rnd.IntN(3))
		n := nodes[id]
		pause := time.Duration(rnd.IntN(30000)) * time.Millisecond
		f := fault{daemon: id, begin: time.Now()}
		switch op := rnd.IntN(8); {
		case n == nil:
			nodes[id] = c.start(id)
			continue
		case op == 0:
			n.kill()
			nodes[id] = nil
		case op == 1:
			if err := n.stop(); err != nil {
				c.Errorf("Run() = %v, want nil", err)
			}
			nodes[id] = nil
		case op == 2:
			n.link.cut.Store(true)
			change(rnd.IntN(tasks))
			time.Sleep(pause)
			n.link.cut.Store(false)
		case op == 3:
			change(rnd.IntN(tasks))
			n.link.pause(pause)
		case op == 4:
			n.mu.Lock()
			n.jump = time.Duration(rnd.IntN(7200)-3600) * time.Second
			n.mu.Unlock()
			continue
		default:
			change(rnd.IntN(tasks))
			time.Sleep(pause / 10)
			continue
		}
		f.end = time.Now()
		faults = append(faults, f)
	}
	for id, n := range nodes {
		if n == nil {
			nodes[id] = c.start(id)
		}
	}
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	for i := range tasks {
		checkTask(c, fmt.Sprintf("task%02d", i), fmt.Sprintf(`{"app%02d/key":"%s"}`, i, values[fmt.Sprintf("app%02d/key", i)]), faults)
	}
	for _, n := range nodes {
		if err := n.stop(); err != nil {
			c.Errorf("Run() = %v, want nil", err)
		}
	}
}

// checkTask checks the runs of one task.
func checkTask(c *cluster, name, want string, faults []fault) {
	c.Helper()
	runs := c.programs.runs(name)
	if len(runs) == 0 || runs[len(runs)-1].inputs != want || runs[len(runs)-1].err != nil {
		c.Errorf("last of %d runs of %s does not have the inputs %s: %v, %v", len(runs), name, want, c.ready(name), c.state(name))
		return
	}
	if st := c.state(name); st.Failures != 0 || st.Running != nil || len(st.Runs) == 0 {
		c.Errorf("state of %s = %v, want no failure and no run in progress", name, st)
	}
	stored := runs[:0:0] // whose result was certainly stored
	for _, r := range runs {
		faulty := r.err != nil
		for _, f := range faults {
			// The result is stored right after the run.
			faulty = faulty || f.daemon == r.daemon && !f.begin.After(r.end.Add(time.Second)) && !f.end.Before(r.start)
		}
		if len(stored) > 0 && stored[len(stored)-1].inputs == r.inputs {
			c.Errorf("%s ran again with %s: at %v by %s, then at %v by %s", name, r.inputs,
				stored[len(stored)-1].end, stored[len(stored)-1].daemon, r.start, r.daemon)
		}
		if !faulty {
			stored = append(stored, r)
		}
	}
}
