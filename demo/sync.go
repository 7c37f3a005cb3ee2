// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	syncNode = "sync1"
	// syncTask is the task that writes the gateways of all datacenters to a file.
	syncTask = "gateways"
)

// hasSync reports whether the demo has a sync daemon: it runs until the user ends
// it, on a system on which daemons run programs.
func (c Config) hasSync() bool { return !c.Once && !c.JSON && runtime.GOOS == "linux" }

// syncFile is the file that the task of the sync daemon writes.
func (f *federation) syncFile() string {
	return filepath.Join(f.dirOf(f.dcs[0], syncNode), syncTask+".json")
}

// startSync starts a sync daemon in the primary.
func (f *federation) startSync(ctx context.Context) error {
	dc := f.dcs[0]
	servers, _ := dc.running()
	cert, err := f.pki.Issue(tlsutil.RoleSync, dc.name, syncNode)
	if err != nil {
		return err
	}
	dir := f.dirOf(dc, syncNode)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the sync daemon: %w", err)
	}
	config := filepath.Join(dir, "sync.hcl")
	text := fmt.Sprintf(`id          = %q
port        = 0
working_dir = %q
consul {
  address = %q
}
wanfed {
  ca   = %q
  cert = %q
  key  = %q
}
task {
  name   = %q
  driver = "exec"
  condition "gateway" {}
  buffer_period {
    enabled = false
  }
  exec {
    command = ["sh", "-c", "cat > \"$0\"", %q]
  }
}
`, syncNode, filepath.Join(dir, "tasks"), servers[0].HTTP, cert.CA, cert.Cert, cert.Key, syncTask, f.syncFile())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the configuration of the sync daemon: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	f.sync, err = subprocess.Start(ctx, subprocess.Config{
		Name:    dc.name + "/" + syncNode,
		Command: []string{f.cfg.Program, "sync", "--config-file", config, "--" + subprocess.StopOnEOF},
		LogPath: filepath.Join(dir, "log"),
		Ready:   func(line string) bool { return strings.HasPrefix(line, "wanfed sync ") },
	})
	if err == nil {
		f.prog.printf("%s runs tasks (pid %d)", f.sync.Name(), f.sync.Pid())
	}
	return err
}

var runType = api.ResourceTypeName{Group: task.RunType.Group, GroupVersion: task.RunType.GroupVersion, Kind: task.RunType.Kind}

// followRuns reports each run of the sync daemon that ends, until ctx ends.
func (f *federation) followRuns(ctx context.Context) {
	servers, _ := f.dcs[0].running()
	c, err := client(servers[0])
	if err != nil {
		return // the address is that of a running server
	}
	defer c.Close()
	reported := make(map[string]bool) // by name: a new watch begins with all runs
	for ctx.Err() == nil {
		for ev, err := range c.WatchResources(ctx, runType, api.Tenancy{}, api.ResourceOptions{}) {
			if err != nil {
				break // the user may have stopped the server
			}
			var run pb.TaskRun
			name := ev.Resource.ID.Name
			if ev.Type != api.EventUpsert || reported[name] ||
				(protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(ev.Resource.Data, &run) != nil || run.Result == task.Running {
				continue
			}
			reported[name] = true
			f.prog.printf("%s has run the task %s (%s): %s; see %s", syncNode, run.Task, run.Trigger, run.Result, f.syncFile())
		}
		backoff.Sleep(ctx, time.Second, nil)
	}
}
