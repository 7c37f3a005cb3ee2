// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// syncRig is a datacenter of server processes, processes of sync daemons, and a module of
// Terraform that writes one file for each instance of a service.
type syncRig struct {
	*stateRig
	operator tlsutil.Files
	store    *state.Store
	client   pb.ResourceServiceClient
	catalog  *consul.Client
	module   string // directory
	out      string // directory of the files
	created  string // file with one line for each file that was created
}

// moduleText is the module. OUT, LOG and PAUSE are replaced. The shell
// command PAUSE runs between the line in LOG and the creation of the file.
const moduleText = `
variable "services" {
  type = map(object({ name = string, address = string, port = number, status = string }))
}
resource "terraform_data" "file" {
  for_each         = var.services
  triggers_replace = { file = "OUT/${each.key}", text = "${each.value.address}:${each.value.port} ${each.value.status}" }
  provisioner "local-exec" {
    environment = self.triggers_replace
    command     = "echo $file >> LOG; PAUSE; echo $text > $file"
  }
  provisioner "local-exec" {
    when    = destroy
    command = "rm ${self.triggers_replace.file}"
  }
}
`

// newSyncRig starts a server. pause is a shell command of the module.
func newSyncRig(t *testing.T, pause string) *syncRig { return newSyncRigOf(t, pause, 1) }

// newSyncRigOf is newSyncRig with a number of servers.
func newSyncRigOf(t *testing.T, pause string, servers int) *syncRig {
	r := &syncRig{stateRig: newStateRig(t, servers)}
	r.operator = r.ca.Files(t, tlsutil.RoleOperator, "operator", "dc1")
	d := r.daemon("operator", tlsutil.RoleOperator)
	r.store, r.client = d.store, pb.NewResourceServiceClient(d.conn)
	r.module, r.out, r.created = filepath.Join(r.dir, "module"), filepath.Join(r.dir, "out"), filepath.Join(r.dir, "created")
	r.writeModule(pause)
	if err := os.Mkdir(r.out, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := consul.DefaultNonPooledConfig()
	cfg.Address, cfg.Scheme = r.configs[0].HTTPAddr, "https"
	cfg.TLSConfig = consul.TLSConfig{CAFile: r.operator.CA, CertFile: r.operator.Cert, KeyFile: r.operator.Key}
	var err error
	if r.catalog, err = consul.NewClient(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

// writeModule writes the module with a shell command.
func (r *syncRig) writeModule(pause string) {
	r.t.Helper()
	text := strings.NewReplacer("OUT", r.out, "LOG", r.created, "PAUSE", pause).Replace(moduleText)
	r.write(filepath.Join(r.module, "main.tf"), text)
}

func (r *syncRig) write(path, text string) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

// register registers an instance of a service on the node of the same name.
func (r *syncRig) register(service, node, address, status string) {
	r.t.Helper()
	testutil.Await(r.t, waitLimit, "registration of "+node, func(context.Context) error {
		_, err := r.catalog.Catalog().Register(&consul.CatalogRegistration{
			Node: node, Address: address, Service: &consul.AgentService{ID: service, Service: service, Port: 80},
			Check: &consul.AgentCheck{Node: node, CheckID: "check", Name: "check", ServiceID: service, Status: status},
		}, nil)
		return err
	})
}

func (r *syncRig) deregister(node string) {
	r.t.Helper()
	if _, err := r.catalog.Catalog().Deregister(&consul.CatalogDeregistration{Node: node}, nil); err != nil {
		r.t.Fatal(err)
	}
}

// taskText returns a task with the module and a condition for one service.
func (r *syncRig) taskText(name, service string, options ...string) string {
	return fmt.Sprintf("task {\n  name = %q\n  module = %q\n  condition \"services\" {\n    names = [%q]\n  }\n  %s\n}\n",
		name, r.module, service, strings.Join(options, "\n  "))
}

// configure writes the configuration file of a daemon.
func (r *syncRig) configure(id string, parts ...string) (file string) {
	r.t.Helper()
	f := r.ca.Files(r.t, tlsutil.RoleSync, id, "dc1")
	file = filepath.Join(r.dir, id+".hcl")
	r.write(file, fmt.Sprintf(`
id             = %q
port           = 0
log_level      = "DEBUG"
working_dir    = %q
state_key_file = %q
max_running    = 4
buffer_period {
  enabled = false
}
consul {
  address = %q
}
wanfed {
  address = ["%s"]
  ca      = %q
  cert    = %q
  key     = %q
}
%s`, id, r.workingDir(id), r.keyFile, r.configs[0].HTTPAddr, strings.Join(r.addrs(), `", "`), f.CA, f.Cert, f.Key,
		strings.Join(parts, "\n")))
	return file
}

func (r *syncRig) workingDir(id string) string { return filepath.Join(r.dir, id+"-tasks") }

// syncDaemon is the process of a daemon.
type syncDaemon struct {
	*subprocess.Process
	api string // URL of the HTTP API
}

// run starts a daemon that is configured.
func (r *syncRig) run(id string) *syncDaemon {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	prefix := "wanfed sync " + id + ": api "
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name:    "dc1/" + id,
		Command: []string{r.bin, "sync", "--config-file", filepath.Join(r.dir, id+".hcl"), "--" + subprocess.StopOnEOF},
		LogPath: filepath.Join(r.dir, id+".log"),
		Ready:   func(line string) bool { return strings.HasPrefix(line, prefix) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.keep(p)
	return &syncDaemon{p, "http://" + strings.TrimPrefix(p.Line(), prefix)}
}

// stop stops the daemon with SIGTERM, and fails unless the exit status is 0.
func (d *syncDaemon) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.Stop(ctx); err != nil {
		t.Errorf("end of %s after SIGTERM = %v, want status 0", d.Name(), err)
	}
}

// request sends a request to the HTTP API of the daemon.
func (d *syncDaemon) request(t testing.TB, method, path, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.api+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// cli runs a command of wanfed as an operator.
func (r *syncRig) cli(args ...string) (status int, stdout, stderr string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.bin, args...)
	cmd.Env = append(os.Environ(), "WANFED_HTTP_ADDR=https://"+r.configs[0].HTTPAddr, "WANFED_CA_FILE="+r.operator.CA,
		"WANFED_CERT_FILE="+r.operator.Cert, "WANFED_KEY_FILE="+r.operator.Key)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil || ctx.Err() != nil {
		r.t.Fatalf("wanfed %q = %v: %s", args, err, &errs)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// mustCLI is cli for a command that succeeds.
func (r *syncRig) mustCLI(args ...string) (stdout string) {
	r.t.Helper()
	status, stdout, stderr := r.cli(args...)
	if status != 0 {
		r.t.Fatalf("wanfed %q = status %d, want 0: %s%s", args, status, stdout, stderr)
	}
	return stdout
}

// cliJSON decodes the JSON output of a command.
func (r *syncRig) cliJSON(into any, args ...string) {
	r.t.Helper()
	text := r.mustCLI(append(args, "--output", "json")...)
	if err := json.Unmarshal([]byte(text), into); err != nil {
		r.t.Fatalf("output of wanfed %q = %v: %s", args, err, text)
	}
}

// history returns the runs of a task, oldest first.
func (r *syncRig) history(name string) (runs []*pb.TaskRun) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	resp, err := r.client.List(ctx, &pb.ListRequest{Type: task.RunType, NamePrefix: name + "."})
	if err != nil {
		r.t.Fatal(err)
	}
	slices.SortFunc(resp.Resources, func(a, b *pb.Resource) int { return strings.Compare(a.Id.Name, b.Id.Name) })
	for _, res := range resp.Resources {
		run, err := resource.Decode[*pb.TaskRun](res)
		if err != nil {
			r.t.Fatal(err)
		}
		runs = append(runs, run)
	}
	return runs
}

// awaitState waits until the state of a task is as check requires.
func (r *syncRig) awaitState(name, condition string, check func(*pb.TaskState) bool) (st *pb.TaskState) {
	r.t.Helper()
	testutil.Await(r.t, time.Minute, name+": "+condition, func(ctx context.Context) (err error) {
		if st, err = r.store.Read(ctx, name); err == nil && !check(st) {
			err = fmt.Errorf("state %v", st)
		}
		return err
	})
	return st
}

// files returns the content of the files that the module has created, by the
// node of the instance.
func (r *syncRig) files() map[string]string {
	r.t.Helper()
	entries, err := os.ReadDir(r.out)
	if err != nil {
		r.t.Fatal(err)
	}
	files := make(map[string]string)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.t.Fatal(err)
		}
		node := strings.Split(e.Name(), ".")[1]
		files[node] = strings.TrimSpace(string(b))
	}
	return files
}

// awaitFiles waits for the files.
func (r *syncRig) awaitFiles(want map[string]string) {
	r.t.Helper()
	testutil.Await(r.t, time.Minute, fmt.Sprintf("files %v", want), func(context.Context) error {
		if got := r.files(); !maps.Equal(got, want) {
			return fmt.Errorf("files = %v", got)
		}
		return nil
	})
}
