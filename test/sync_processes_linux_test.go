// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// processRig is a server and three sync daemons, each in its own namespace. Each
// task has the keys with its name as a prefix as its condition.
type processRig struct {
	t      *testing.T
	rnd    *rand.Rand
	server *lab.Node
	client pb.ResourceServiceClient
	out    string // directory with one log for each task
	lease  time.Duration
	stalls *lab.Stalls
	parts  []string // of the configuration files
	tasks  []string
	values map[string]int // by task: the last value of its key
	faults []daemonFault
}

// daemonFault is a time in which a daemon could not store results.
type daemonFault struct {
	daemon     string
	begin, end time.Time
}

// TestSync_Processes kills, stops and cuts off daemons at random, while the data
// of their tasks changes. Other daemons have the tasks of a daemon with a fault at
// most 2 s after the end of its leases. At the end, each task has been applied
// with its last data, two programs of one task never ran at the same time, what
// was applied did not run again, and each state of Terraform has one lineage
// without a gap. WANFED_CHAOS=1 runs 20 seeds with 60 tasks and stops of 30 s,
// and WANFED_SEED selects one seed.
func TestSync_Processes(t *testing.T) {
	t.Parallel()
	first, count := 1, 2
	if chaos() {
		count = 20
	}
	if s := os.Getenv("WANFED_SEED"); s != "" {
		first, _ = strconv.Atoi(s)
		count = 1
	}
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			t.Parallel()
			newProcessRig(t, uint64(seed)).run()
		})
	}
}

// taskProgram runs a task: $1 is its log, and its standard input is the data. A
// program that finds another one of its task writes "overlap". Children have the
// lock too.
const taskProgram = `exec 9>>"$1.lock"
flock -n 9 || echo overlap $WANFED_RUN_ID >> "$1"
echo begin $WANFED_RUN_ID $(tr -dc 0-9 | tail -c 6) >> "$1"
sleep 0.3
echo end $WANFED_RUN_ID >> "$1"
`

// taskModule is the module of a task with Terraform.
const taskModule = `
variable "services" {}
variable "consul_kv" {}
resource "terraform_data" "x" {
  triggers_replace = var.consul_kv
  provisioner "local-exec" {
    command = "echo '${jsonencode(var.consul_kv)}' | WANFED_RUN_ID=terraform /bin/sh %s %s"
  }
}
`

func newProcessRig(t *testing.T, seed uint64) *processRig {
	lab.NeedNFT(t)
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("needs the flock command (Debian package util-linux)")
	}
	l := lab.New(t)
	dc := l.Add(1, 0)
	r := &processRig{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), server: dc.Servers[0], out: t.TempDir(),
		lease: longer(15*time.Second, 3*time.Second), values: map[string]int{}, stalls: lab.WatchStalls(t)}
	r.server.StartServer(r.server.ServeHTTP()...)
	w := &documentWriters{t: t, l: l}
	r.client = w.operator(r.server)
	r.parts = []string{haText(r.lease)}
	programs, modules := 8, 1
	if chaos() {
		programs, modules = 54, 6
	}
	program := filepath.Join(r.out, "program")
	r.write(program, taskProgram)
	for i := range programs {
		name := fmt.Sprintf("exec%02d", i)
		r.add(name, fmt.Sprintf("driver = \"exec\"\n exec {\n command = [\"/bin/sh\", %q, %q]\n }", program, r.log(name)), "1s")
	}
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Log("terraform is not installed: no task has a state")
		modules = 0
	}
	for i := range modules {
		name := fmt.Sprintf("module%d", i)
		dir := filepath.Join(r.out, name+".module")
		r.write(filepath.Join(dir, "main.tf"), fmt.Sprintf(taskModule, program, r.log(name)))
		r.add(name, fmt.Sprintf("module = %q", dir), "1s")
	}
	for range 3 {
		dc.AddSync(nil)
	}
	return r
}

// haText returns the block of a configuration file for a group of daemons.
func haText(lease time.Duration) string {
	return fmt.Sprintf("high_availability {\n cluster {\n name = \"edge\"\n storage \"consul\" {\n session_ttl = %q\n }\n }\n}", lease)
}

func (r *processRig) write(path, text string) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

// add adds a task with a grace period.
func (r *processRig) add(name, driver, grace string) {
	r.tasks = append(r.tasks, name)
	const text = "task {\n name = %q\n grace = %q\n condition \"consul-kv\" {\n path = %q\n recurse = true\n }\n %s\n}"
	r.parts = append(r.parts, fmt.Sprintf(text, name, grace, name+"/", driver))
}

// log returns the path of the log of the programs of a task.
func (r *processRig) log(name string) string { return filepath.Join(r.out, name) }

// change changes the data of a task. Values have six digits and grow.
func (r *processRig) change(name string) {
	r.t.Helper()
	r.values[name] = max(100000, r.values[name]) + 1 + r.rnd.IntN(9)
	r.setKey(name+"/key", r.values[name])
}

func (r *processRig) setKey(key string, value int) {
	r.t.Helper()
	testutil.Await(r.t, waitLimit, "write of the key "+key, func(ctx context.Context) error {
		res, err := resource.NewNamed(kv.EntryType, key, resource.CheckUTF8Name, &pb.KVEntry{Value: fmt.Append(nil, value)})
		if err != nil {
			return err
		}
		res.Id.Uid, res.Generation = "", ""
		_, err = r.client.Write(ctx, &pb.WriteRequest{Resource: res})
		return resource.FromStatus(err)
	})
}

func (r *processRig) run() {
	daemons := r.server.DC().Syncs
	for _, name := range r.tasks {
		r.change(name)
	}
	for _, d := range daemons {
		d.StartSync(r.parts...)
	}
	r.settled()
	kinds := []string{"kill", "stop", "cut", "restart"}
	for _, i := range r.rnd.Perm(len(kinds)) {
		d := daemons[r.rnd.IntN(len(daemons))]
		changing := r.rnd.Perm(len(r.tasks))[:len(r.tasks)/2]
		for _, i := range changing {
			r.change(r.tasks[i])
		}
		time.Sleep(time.Duration(r.rnd.IntN(500)) * time.Millisecond) // some programs run
		r.fault(kinds[i], d, changing)
	}
	r.settled()
	for _, d := range daemons {
		d.Stop()
	}
	for _, name := range r.tasks {
		r.check(name)
	}
}

// fault causes a fault of a daemon, and changes the data of tasks during the
// fault.
func (r *processRig) fault(kind string, d *lab.Node, changing []int) {
	r.t.Helper()
	f := daemonFault{daemon: d.Name, begin: time.Now()}
	var heal func()
	switch kind {
	case "kill", "restart":
		d.Kill()
		heal = func() { d.StartSync(r.parts...) }
	case "stop":
		d.Suspend()
		heal = d.Resume
	case "cut":
		d.BlackHole()
		heal = d.Heal
	}
	if kind == "restart" {
		heal()
		r.faults = append(r.faults, daemonFault{f.daemon, f.begin, time.Now()})
		return
	}
	var last time.Time // acquisition, by the clock of this machine
	testutil.Await(r.t, waitLimit+r.lease, "tasks at other daemons than "+d.Name, func(ctx context.Context) (err error) {
		last, err = r.claimed(ctx, d.Name)
		return err
	})
	took := max(0, last.Sub(f.begin))
	// A machine that stalls delays everything.
	if limit := r.lease + 2*time.Second + time.Since(f.begin) - r.stalls.Awake(f.begin); took > limit {
		r.t.Errorf("%s of %s: its tasks are claimed after %v, want at most %v", kind, d.Name, took, limit)
	}
	for _, i := range changing {
		r.change(r.tasks[i])
	}
	time.Sleep(max(0, longer(30*time.Second, 6*time.Second)-time.Since(f.begin)))
	heal()
	f.end = time.Now()
	r.faults = append(r.faults, f)
	r.t.Logf("%s of %s: its tasks claimed after %v", kind, d.Name, ms(took))
}

// claimed returns the time of the last claim, or an error unless each task has a
// claim of a daemon other than without.
func (r *processRig) claimed(ctx context.Context, without string) (last time.Time, err error) {
	resp, err := r.client.List(ctx, &pb.ListRequest{Type: lease.Type, NamePrefix: lease.SyncPrefix})
	if err != nil {
		return last, err
	}
	leases := map[string]*pb.Lease{}
	for _, res := range resp.Resources {
		if leases[res.Id.Name], err = resource.Decode[*pb.Lease](res); err != nil {
			return last, err
		}
	}
	for _, name := range r.tasks {
		l := leases[task.LeaseName(name)]
		if h, _, _ := strings.Cut(l.GetHolder(), "/"); h == "" || h == without {
			return last, fmt.Errorf("the holder of %s is %q", name, h)
		}
		if at := l.AcquiredAt.AsTime(); at.After(last) {
			last = at
		}
	}
	return last, nil
}

// state returns the state of a task.
func (r *processRig) state(ctx context.Context, name string) (*pb.TaskState, error) {
	resp, err := r.client.Read(ctx, &pb.ReadRequest{Id: task.StateID(name)})
	if err != nil {
		return nil, err
	}
	return resource.Decode[*pb.TaskState](resp.Resource)
}

// settled waits until each task is applied with its last data.
func (r *processRig) settled() {
	r.t.Helper()
	// A daemon that takes over a run waits for grace and 7 s.
	testutil.Await(r.t, r.lease+longer(3*time.Minute, time.Minute), "all tasks applied", func(ctx context.Context) error {
		for _, name := range r.tasks {
			st, err := r.state(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			runs := r.runs(name)
			if st.Running != nil || st.AppliedAt == nil || st.Failures > 0 || len(runs) == 0 || runs[len(runs)-1].value != r.values[name] {
				return fmt.Errorf("%s: runs %v, want %d, state %v", name, runs[max(0, len(runs)-3):], r.values[name], st)
			}
		}
		return nil
	})
}

// programRun is a run as the program has recorded it.
type programRun struct {
	id    string
	value int
}

// runs returns the runs of a task in their order.
func (r *processRig) runs(name string) (runs []programRun) {
	r.t.Helper()
	b, _ := os.ReadFile(r.log(name)) // missing before the first run
	for line := range strings.Lines(string(b)) {
		switch words := strings.Fields(line); {
		case words[0] == "begin" && len(words) == 3:
			value, err := strconv.Atoi(words[2])
			if err != nil {
				r.t.Fatalf("log of %s: %q", name, line)
			}
			runs = append(runs, programRun{words[1], value})
		case words[0] != "end":
			r.t.Errorf("log of %s: %q, want one program at a time", name, line)
		}
	}
	return runs
}

// check checks the runs and the state of a task.
func (r *processRig) check(name string) {
	r.t.Helper()
	resp, err := r.client.List(r.t.Context(), &pb.ListRequest{Type: task.RunType, NamePrefix: name + "."})
	if err != nil {
		r.t.Fatal(err)
	}
	records := map[string]*pb.TaskRun{}
	for _, res := range resp.Resources {
		if records[strings.TrimPrefix(res.Id.Name, name+".")], err = resource.Decode[*pb.TaskRun](res); err != nil {
			r.t.Fatal(err)
		}
	}
	applied := map[int]string{} // by value: the run whose success is certainly stored
	runs := r.runs(name)
	for _, run := range runs {
		if id := applied[run.value]; id != "" {
			r.t.Errorf("%s ran again with %d in run %s: it was applied by %s", name, run.value, run.id, id)
		}
		if rec := records[run.id]; rec.GetResult() == task.Succeeded && !r.faulty(rec) {
			applied[run.value] = run.id
		}
	}
	if !slices.IsSortedFunc(runs, func(a, b programRun) int { return a.value - b.value }) {
		r.t.Errorf("%s ran with the values %v, want no older value after a newer one", name, runs)
	}
	st, err := r.state(r.t.Context(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	for i, v := range st.Versions[:max(0, len(st.Versions)-1)] { // newest first
		if before := st.Versions[i+1]; v.Number != before.Number+1 || v.Lineage != before.Lineage || v.Serial <= before.Serial {
			r.t.Errorf("version of the state of %s = %v after %v, want the next number, the same lineage and a higher serial", name, v, before)
		}
	}
	if strings.HasPrefix(name, "module") && len(st.Versions) == 0 {
		r.t.Errorf("%s has no state", name)
	}
	r.t.Logf("%s: %d programs, %d runs, %d versions, %d values applied", name, len(runs), len(records), len(st.Versions), len(applied))
}

// faulty reports whether the daemon of a run had a fault until 1 s after its end.
func (r *processRig) faulty(rec *pb.TaskRun) bool {
	return slices.ContainsFunc(r.faults, func(f daemonFault) bool {
		return f.daemon == rec.Instance && !f.begin.After(rec.EndedAt.AsTime().Add(time.Second)) && !f.end.Before(rec.StartedAt.AsTime())
	})
}
