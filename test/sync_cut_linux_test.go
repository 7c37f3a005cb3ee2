// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// cutModule is a module whose second resource takes a minute while the file PAUSE
// exists.
const cutModule = `
variable "services" {}
variable "consul_kv" {}
resource "terraform_data" "first" { input = var.consul_kv }
resource "terraform_data" "second" {
  depends_on       = [terraform_data.first]
  triggers_replace = var.consul_kv
  provisioner "local-exec" { command = "echo x >> LOG; if [ -e PAUSE ]; then exec sleep 60; fi" }
}
`

// TestSync_CutOffInMidApply cuts off a daemon during the first apply of a task.
// Terraform cannot store its state and leaves errored.tfstate. Another daemon runs
// the task. When the first one has the task again, it keeps the state of its run in
// an encrypted file, reports the file, and runs the task at the next change.
func TestSync_CutOffInMidApply(t *testing.T) {
	onlyChaos(t)
	t.Parallel()
	lab.NeedNFT(t)
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Skip("terraform is not installed")
	}
	l := lab.New(t)
	dc := l.Add(1, 0)
	r := &processRig{t: t, server: dc.Servers[0], out: t.TempDir(), lease: 3 * time.Second, values: map[string]int{}}
	r.server.StartServer(r.server.ServeHTTP()...)
	w := &documentWriters{t: t, l: l}
	r.client = w.operator(r.server)
	pause, created, dir := r.log("pause"), r.log("created"), r.log("module")
	r.write(pause, "")
	r.write(filepath.Join(dir, "main.tf"), strings.NewReplacer("PAUSE", pause, "LOG", created).Replace(cutModule))
	r.parts = []string{haText(r.lease)}
	r.add("web", fmt.Sprintf("module = %q", dir), "5s")
	r.setKey("web/key", 1)
	first, other := dc.AddSync(nil), dc.AddSync(nil)
	first.StartSync(r.parts...)
	testutil.Await(t, waitLimit, "the second resource", func(context.Context) error {
		_, err := os.Stat(created)
		return err
	})
	first.BlackHole()
	left := filepath.Join(filepath.Dir(first.SyncConfig()), "tasks", "web", "errored.tfstate")
	testutil.Await(t, waitLimit, "errored.tfstate", func(context.Context) error {
		_, err := os.Stat(left)
		return err
	})
	if err := os.Remove(pause); err != nil {
		t.Fatal(err)
	}
	other.StartSync(r.parts...)
	applied := func(instance string, versions int) (st *pb.TaskState) {
		t.Helper()
		testutil.Await(t, time.Minute, "an apply by "+instance, func(ctx context.Context) (err error) {
			if st, err = r.state(ctx, "web"); err != nil {
				return err
			}
			if st.Instance != instance || st.Running != nil || st.AppliedAt == nil || len(st.Versions) < versions {
				return fmt.Errorf("state = %v", st)
			}
			return nil
		})
		return st
	}
	before := applied(other.Name, 1)
	first.Heal()
	other.Stop()
	r.setKey("web/key", 2)
	after := applied(first.Name, len(before.Versions)+1)
	if a, b := after.Versions[0], before.Versions[0]; a.Lineage != b.Lineage || a.Serial <= b.Serial {
		t.Errorf("state of the daemon that was cut off = %v after %v, want the same lineage and a higher serial", a, b)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(%s) = %v, want ErrNotExist", left, err)
	}
	kept, err := filepath.Glob(filepath.Join(filepath.Dir(first.SyncConfig()), "tasks", ".pending", "web.*.kept"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("Glob() = %q, %v, want one kept state", kept, err)
	}
	if _, data, err := state.OpenJournal(kept[0], dc.SyncKeys()); err != nil || !strings.Contains(string(data), `"first"`) {
		t.Errorf("OpenJournal() = %s, %v, want the state of the run that was cut off", data, err)
	}
	resp, err := r.client.Read(t.Context(), &pb.ReadRequest{Id: task.ID("web")})
	if err != nil || !strings.Contains(resp.Resource.Status[task.StatusKey].String(), kept[0]) {
		t.Errorf("status of the task = %v, %v, want the path %s", resp, err, kept[0])
	}
	first.Stop()
}
