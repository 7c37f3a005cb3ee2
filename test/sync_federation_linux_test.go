// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// syncFor is the duration of the condition of the task "cut".
const syncFor = 2500 * time.Millisecond

// federationRig is a federation of two datacenters with a sync daemon in dc1.
// Each of its tasks has one condition about dc2, and the federation as an input.
type federationRig struct {
	t        *testing.T
	l        *lab.Lab
	writers  *documentWriters
	dc1, dc2 *lab.Datacenter
	out      string // directory with one file for each run: TASK.NANOSECONDS
	seen     map[string]int
	// delay is the time from the start of a run to the time in its file.
	delay  time.Duration
	stalls *lab.Stalls
}

// federationConditions has the conditions of the tasks, by name. The task "down"
// shows when the daemon has seen the begin and the end of an outage. On a busy
// machine, paths may fail again after the outage, so it may run more often.
var federationConditions = map[string]string{
	"gateway":  "condition \"gateway\" {\n datacenter = \"dc2\"\n}",
	"down":     "condition \"datacenter\" {\n datacenter = \"dc2\"\n state = \"unreachable\"\n on = [\"added\", \"removed\"]\n}",
	"cut":      fmt.Sprintf("condition \"datacenter\" {\n datacenter = \"dc2\"\n state = \"unreachable\"\n for = %q\n}", syncFor),
	"member":   "condition \"member\" {\n datacenter = \"dc2\"\n}",
	"document": "condition \"document\" {\n names = [\"flag\"]\n}",
}

// TestSync_Federation changes a federation: a gateway moves, a datacenter is cut
// off for longer and for shorter than the condition requires, a document changes,
// and a server leaves. Each change starts exactly one run of the task with the
// right condition, with the right state of the federation as its input, at most 1
// s after the change is visible, or after the end of the duration.
func TestSync_Federation(t *testing.T) {
	t.Parallel()
	const task = "  driver = \"exec\"\n  exec {\n    command = [\"/bin/sh\", \"-c\", %q]\n  }"
	testSyncFederation(t, 0, func(r *federationRig, name string) string {
		return fmt.Sprintf(task, fmt.Sprintf("at=$(date +%%s%%N); cat > %[1]s/.%[2]s; mv %[1]s/.%[2]s %[1]s/%[2]s.$at", r.out, name))
	})
}

// TestSync_FederationTerraform is TestSync_Federation with Terraform.
func TestSync_FederationTerraform(t *testing.T) {
	onlyChaos(t)
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Skip("terraform is not installed")
	}
	t.Parallel()
	const text = `
variable "services" {}
variable "federation" {}
variable "gateways" { default = null }
variable "datacenters" { default = null }
variable "members" { default = null }
variable "documents" { default = null }
resource "terraform_data" "file" {
  triggers_replace = [uuid()] # of each run: times have the resolution of a second
  provisioner "local-exec" {
    environment = { VALUE = jsonencode({ federation = var.federation }) }
    command     = "at=$(date +%%s%%N); echo \"$VALUE\" > %[1]s/.%[2]s; mv %[1]s/.%[2]s %[1]s/%[2]s.$at"
  }
}
`
	testSyncFederation(t, 5*time.Second, func(r *federationRig, name string) string { // Terraform initializes and plans
		dir := filepath.Join(t.TempDir(), "module")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "main.tf"), fmt.Appendf(nil, text, r.out, name), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("  module = %q", dir)
	})
}

// testSyncFederation runs the test with a driver. delay is at most the time from
// the start of a run to the time in its file.
func testSyncFederation(t *testing.T, delay time.Duration, driver func(r *federationRig, name string) string) {
	lab.NeedNFT(t)
	l := lab.New(t)
	r := &federationRig{t: t, l: l, dc1: l.Add(1, 1), dc2: l.Add(3, 2), out: t.TempDir(), seen: map[string]int{}, delay: delay,
		stalls: lab.WatchStalls(t)}
	r.dc1.Start()
	r.dc2.Start()
	testutil.Await(t, 30*time.Second, "federation", func(ctx context.Context) error {
		return federated(ctx, lab.One(r.dc1), 4, "dc1", "dc2")
	})
	r.writers = &documentWriters{t: t, l: l}
	r.writers.primary = []pb.ResourceServiceClient{r.writers.operator(lab.One(r.dc1))}
	r.setFlag("first")
	var parts []string
	for name, condition := range federationConditions {
		parts = append(parts, fmt.Sprintf("task {\n  name = %q\n  %s\n  module_input \"federation\" {}\n%s\n}", name, condition, driver(r, name)))
	}
	sync := r.dc1.AddSync(lab.One(r.dc1))
	sync.StartSync(parts...)
	for name := range federationConditions {
		r.awaitRun(name, time.Time{}, 0, time.Minute)
	}
	dc2 := func(f syncFederation) syncDatacenter { return f["dc2"] }
	if f := dc2(r.last("gateway")); !f.Reachable || f.ServersAlive != 3 || len(f.Gateways) != 2 {
		t.Errorf("federation of the first run: dc2 = %+v, want 3 servers and 2 gateways, reachable", f)
	}

	// A gateway moves.
	gw := r.dc2.Gateways[1]
	gw.Kill()
	gw.ReAddress("198.18.2.77")
	gw.StartGateway()
	moved := r.awaitVisible("the new address of gw2", func(ctx context.Context) error {
		g, ok, err := gatewayOf(ctx, lab.One(r.dc1), "dc2", "gw2")
		if err == nil && (!ok || g.Service.TaggedAddresses["wan"].Address != gw.WAN) {
			err = fmt.Errorf("gateway = %+v", g)
		}
		return err
	})
	r.awaitRun("gateway", moved, 0, 0)
	if f := dc2(r.last("gateway")); !slices.ContainsFunc(f.Gateways, func(g syncGateway) bool { return g.WAN == gw.WANAddr() }) {
		t.Errorf("federation after the move of a gateway: dc2 = %+v, want %s", f, gw.WANAddr())
	}

	// The datacenter is cut off, for less than syncFor and then for more.
	heal := r.cut()
	r.awaitRun("down", r.awaitReachable(false), 0, 0)
	heal()
	r.awaitRun("down", r.awaitReachable(true), 0, waitLimit)
	heal = r.cut()
	off := r.awaitReachable(false)
	r.awaitRun("down", off, 0, 0)
	r.awaitRun("cut", off, syncFor, 0)
	if f := dc2(r.last("cut")); f.Reachable {
		t.Errorf("federation after %v of the outage: dc2 = %+v, want it unreachable", syncFor, f)
	}
	heal()
	r.awaitRun("down", r.awaitReachable(true), 0, waitLimit)

	// A document changes.
	r.setFlag("second")
	r.awaitRun("document", time.Now(), 0, 0)
	if f := r.last("document"); !f["dc1"].Primary || !f["dc2"].Reachable {
		t.Errorf("federation after the change of a document = %+v, want dc2 reachable and dc1 the primary", f)
	}

	// A server leaves.
	left := r.dc2.Servers[2]
	left.Stop()
	gone := r.awaitVisible("the end of srv3", func(ctx context.Context) error {
		var members []api.Member
		err := lab.One(r.dc1).Get(ctx, "/v1/agent/members?wan=1", &members)
		if err == nil && slices.ContainsFunc(members, func(m api.Member) bool { return m.Name == left.WANName() && m.Status != api.MemberLeft }) {
			err = fmt.Errorf("members = %+v", members)
		}
		return err
	})
	r.awaitRun("member", gone, 0, 0)
	if f := dc2(r.last("member")); f.ServersAlive != 2 {
		t.Errorf("federation after a server has left: dc2 = %+v, want 2 servers", f)
	}

	time.Sleep(syncFor + time.Second) // no more runs
	for name := range federationConditions {
		if n := len(r.runs(name)); n != r.seen[name] && name != "down" {
			t.Errorf("task %s has run %d times, want %d", name, n, r.seen[name])
		}
	}
	sync.Stop()
}

// setFlag writes the document "flag".
func (r *federationRig) setFlag(value string) {
	r.t.Helper()
	content, err := structpb.NewValue(map[string]any{"value": value})
	if err != nil {
		r.t.Fatal(err)
	}
	doc, err := resource.New(document.Type, "flag", &pb.Document{Content: content})
	if err != nil {
		r.t.Fatal(err)
	}
	doc.Id.Uid, doc.Generation = "", ""
	if _, err := r.writers.write(r.writers.primary[0], doc); err != nil {
		r.t.Fatal(err)
	}
}

// cut cuts off dc2 from the WAN until heal is called. Its gateways stay healthy in
// dc2.
func (r *federationRig) cut() (heal func()) {
	r.t.Helper()
	for _, g := range r.dc2.Gateways {
		g.DropWAN()
	}
	return func() {
		r.t.Helper()
		for _, g := range r.dc2.Gateways {
			g.Heal()
		}
	}
}

// awaitVisible waits until the server of dc1 reports a change, and returns the
// time.
func (r *federationRig) awaitVisible(what string, check func(context.Context) error) time.Time {
	r.t.Helper()
	testutil.Await(r.t, waitLimit, what, check)
	return time.Now()
}

// awaitReachable waits until the server of dc1 reports that dc2 is reachable, or
// that it is not.
func (r *federationRig) awaitReachable(want bool) time.Time {
	r.t.Helper()
	return r.awaitVisible(fmt.Sprintf("dc2 is reachable = %v", want), func(ctx context.Context) error {
		var st api.Status
		if err := lab.One(r.dc1).Get(ctx, "/v1/agent/federation-status", &st); err != nil {
			return err
		}
		i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == "dc2" })
		if i < 0 || (st.Datacenters[i].Outbound == api.DirectionOK) != want || (st.Datacenters[i].Health() == api.HealthUnreachable) == want {
			return fmt.Errorf("status = %+v", st.Datacenters)
		}
		return nil
	})
}

// runs returns the files of the runs of a task, in the order of their times.
func (r *federationRig) runs(name string) []string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.out, name+".*"))
	if err != nil {
		r.t.Fatal(err)
	}
	return files
}

// awaitRun waits for the next run of a task. It must begin at most 1 s after from
// and the duration of the condition, and not before the end of this duration. A
// limit replaces the rule of 1 s.
func (r *federationRig) awaitRun(name string, from time.Time, duration, limit time.Duration) {
	r.t.Helper()
	r.seen[name]++
	wait := waitLimit
	if limit > 0 {
		wait = limit
	}
	testutil.Await(r.t, wait, "run of task "+name, func(context.Context) error {
		if n := len(r.runs(name)); n < r.seen[name] {
			return fmt.Errorf("%d runs, want %d", n, r.seen[name])
		}
		return nil
	})
	if name == "down" {
		r.seen[name] = len(r.runs(name))
	}
	if limit > 0 {
		return
	}
	files := r.runs(name)
	var at int64
	if _, err := fmt.Sscan(strings.TrimPrefix(filepath.Ext(files[len(files)-1]), "."), &at); err != nil {
		r.t.Fatal(err)
	}
	took := time.Unix(0, at).Sub(from)
	r.t.Logf("run of %s: %v after the change was visible", name, took.Round(time.Millisecond))
	// A machine that stalls delays everything.
	if most := duration + time.Second + r.delay + time.Since(from) - r.stalls.Awake(from); took > most {
		r.t.Errorf("run of %s %v after the change, want at most %v", name, took, most)
	}
	// The daemon may see the change before the test does.
	if duration > 0 && took < duration-time.Second {
		r.t.Errorf("run of %s %v after the change, want at least about %v", name, took, duration)
	}
}

// syncFederation is the variable "federation".
type syncFederation map[string]syncDatacenter

type syncDatacenter struct {
	Primary, Reachable bool
	ServersAlive       int `json:"servers_alive"`
	Gateways           []syncGateway
}

type syncGateway struct{ Name, LAN, WAN string }

// last returns the input of the last run of a task.
func (r *federationRig) last(name string) syncFederation {
	r.t.Helper()
	files := r.runs(name)
	b, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		r.t.Fatal(err)
	}
	var in struct{ Federation syncFederation }
	if err := json.Unmarshal(b, &in); err != nil {
		r.t.Fatalf("input of %s = %v: %s", name, err, b)
	}
	return in.Federation
}
