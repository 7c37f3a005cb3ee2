// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// syncUsage is what a daemon uses.
type syncUsage struct {
	goroutines, fds, files int
	rss                    int // bytes
}

// TestSync_LeaksNothing changes data, creates and deletes tasks, and restarts the
// server for 10 minutes. A daemon then has as many goroutines, file descriptors,
// files and as much memory as after the first minute.
func TestSync_LeaksNothing(t *testing.T) {
	onlyChaos(t)
	t.Parallel()
	r := newProcessRig(t, 1)
	d := r.server.DC().Syncs[0]
	for _, name := range r.tasks {
		r.change(name)
	}
	d.StartSync(r.parts...)
	r.settled()
	r.churn(time.Minute)
	before := r.usage(d)
	r.churn(10 * time.Minute)
	var after syncUsage
	testutil.Await(t, 2*time.Minute, "as few goroutines, file descriptors and files as before", func(context.Context) error {
		if after = r.usage(d); after.goroutines > before.goroutines+slack || after.fds > before.fds+slack || after.files > before.files+slack {
			return fmt.Errorf("usage %+v, want %+v", after, before)
		}
		return nil
	})
	if limit := before.rss*5/4 + 16<<20; after.rss > limit {
		t.Errorf("resident memory = %d bytes, want at most %d", after.rss, limit)
	}
	t.Logf("after 1 and 11 minutes of churn: %+v, %+v", before, after)
	d.Stop()
}

// churn changes what the daemon depends on for a time, and waits until all tasks
// are applied.
func (r *processRig) churn(d time.Duration) {
	r.t.Helper()
	end := time.Now().Add(d)
	for i := 0; time.Now().Before(end); i++ {
		for _, n := range r.rnd.Perm(len(r.tasks))[:5] {
			r.change(r.tasks[n])
		}
		if i%5 == 0 {
			r.extraTask()
		}
		if i%20 == 19 {
			r.server.Kill()
			r.server.StartServer(r.server.ServeHTTP()...)
		}
		time.Sleep(time.Second)
	}
	r.settled()
}

// extraTask creates a task with a view of its own, and deletes it.
func (r *processRig) extraTask() {
	r.t.Helper()
	testutil.Await(r.t, waitLimit, "a task that is created", func(ctx context.Context) error {
		res := &pb.Resource{Id: task.ID("extra")}
		var err error
		res.Data, err = anypb.New(&pb.Task{Driver: task.DriverExec, Group: "edge", OnDelete: task.Keep,
			Exec:       &pb.ExecDriver{Command: []string{"true"}},
			Conditions: []*pb.TaskQuery{{Kind: task.KindServices, Names: []string{"extra"}}, {Kind: task.KindMember}}})
		if err == nil {
			_, err = r.client.Write(ctx, &pb.WriteRequest{Resource: res})
		}
		return resource.FromStatus(err)
	})
	testutil.Await(r.t, time.Minute, "a run of the task", func(ctx context.Context) error {
		st, err := r.state(ctx, "extra")
		if err == nil && (st.AppliedAt == nil || st.Running != nil) {
			err = fmt.Errorf("state %v", st)
		}
		return err
	})
	testutil.Await(r.t, time.Minute, "the end of the task", func(ctx context.Context) error {
		if _, err := r.client.Delete(ctx, &pb.DeleteRequest{Id: task.ID("extra")}); err != nil {
			return resource.FromStatus(err)
		}
		if _, err := r.state(ctx, "extra"); err == nil {
			return fmt.Errorf("the task is being deleted")
		}
		return nil
	})
}

// usage returns what a daemon uses.
func (r *processRig) usage(d *lab.Node) (u syncUsage) {
	r.t.Helper()
	_, api, _ := strings.Cut(d.Process.Line(), ": api ")
	u.goroutines, u.rss = int(metricAt(r.t, d, api, "go_goroutines")), int(metricAt(r.t, d, api, "process_resident_memory_bytes"))
	var err error
	if u.fds, err = d.OpenFiles(); err != nil {
		r.t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(filepath.Dir(d.SyncConfig()), "tasks"), func(_ string, e fs.DirEntry, err error) error {
		u.files++
		return nil // files disappear
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return u
}
