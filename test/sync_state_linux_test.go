// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// secret is in the states of Terraform. No file of a server may have it.
const secret = "correct-horse-battery-staple"

// stateRig is a datacenter of server processes, and Terraform with its state in
// the servers.
type stateRig struct {
	*loopback
	configs []subprocess.ServerConfig
	servers []*subprocess.Server
	keyFile string
	program string // Terraform
	runs    int
}

func newStateRig(t *testing.T, servers int) *stateRig {
	program, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("terraform is not installed")
	}
	l := newLoopback(t)
	g := &stateRig{loopback: l, program: program, keyFile: filepath.Join(l.dir, "keys"), servers: make([]*subprocess.Server, servers)}
	var addrs []string
	for i := range servers {
		name, port := fmt.Sprintf("srv%d", i+1), unusedPort(t)
		addrs = append(addrs, loopbackAddr(port))
		g.configs = append(g.configs, subprocess.ServerConfig{
			Program: []string{l.bin}, Dir: filepath.Join(l.dir, name), DC: "dc1", Node: name,
			TLS: l.ca.Files(t, tlsutil.RoleServer, name, "dc1"), LogLevel: "debug",
			Port: port, HTTPAddr: loopbackAddr(unusedPort(t)), BootstrapExpect: servers,
		})
	}
	if _, err := state.GenerateKey(g.keyFile); err != nil {
		t.Fatal(err)
	}
	for i := range g.configs {
		if servers > 1 {
			g.configs[i].RetryJoin = addrs
		}
		g.start(i)
	}
	return g
}

// start starts a server, for the first time or again.
func (g *stateRig) start(i int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	var err error
	if g.servers[i], err = subprocess.StartServer(ctx, g.configs[i]); err != nil {
		g.t.Fatal(err)
	}
	g.keep(g.servers[i].Process)
}

// addrs returns the addresses of the server ports.
func (g *stateRig) addrs() (addrs []string) {
	for _, s := range g.servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// stateDaemon is the part of a sync daemon that stores states.
type stateDaemon struct {
	*stateRig
	conn    *grpc.ClientConn
	store   *state.Store
	backend *state.Backend
	dir     string // of states that are not stored
}

// daemon starts the part of a daemon with its own certificate.
func (g *stateRig) daemon(node string, role tlsutil.Role) *stateDaemon {
	g.t.Helper()
	cc, err := api.NewServerClient(g.ca.Identity(g.t, role, node, "dc1"), "dc1", api.Addrs(g.addrs()...))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { cc.Close() })
	d := &stateDaemon{stateRig: g, conn: cc, dir: filepath.Join(g.dir, node+"-states")}
	d.store, err = state.NewStore(state.StoreConfig{Client: pb.NewResourceServiceClient(cc), KeyFile: g.keyFile})
	if err != nil {
		g.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	d.backend, err = state.NewBackend(state.BackendConfig{Store: d.store, Listener: ln, Dir: d.dir})
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.backend.Run(ctx) }()
	g.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			g.t.Errorf("Run() = %v, want nil", err)
		}
	})
	return d
}

// claim claims the task web.
func (d *stateDaemon) claim(instance string, epoch uint64) state.Claim {
	d.t.Helper()
	c := state.Claim{Task: "web", Instance: instance, Epoch: epoch}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if _, err := d.store.Claim(ctx, c); err != nil {
		d.t.Fatal(err)
	}
	return c
}

// applyConfig has two resources. The provisioner of the second one waits for the
// file "end".
const applyConfig = `
terraform {
  backend "http" {}
}
variable "n" {}
resource "terraform_data" "first" {
  input            = "` + secret + `"
  triggers_replace = var.n
}
resource "terraform_data" "second" {
  triggers_replace = terraform_data.first.id
  provisioner "local-exec" {
    command = "touch holds; until [ -e end ]; do sleep 0.05; done"
  }
}
`

// stateApply is a run of Terraform in its own directory.
type stateApply struct {
	*held
	dir string
	end func() error // of the run, for the backend
}

// command returns a command of Terraform in a process group of its own. It has
// no parent death signal: threads that lab moves into namespaces end early.
func (g *stateRig) command(dir string, env map[string]string, args ...string) *exec.Cmd {
	cmd := exec.Command(g.program, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_CLI_CONFIG_FILE="+os.DevNull,
		fmt.Sprintf("TF_VAR_n=%d", g.runs))
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// initialize prepares a new directory.
func (d *stateDaemon) initialize(env map[string]string) (dir string) {
	d.t.Helper()
	d.runs++
	dir = filepath.Join(d.dir, "..", fmt.Sprintf("terraform-%d", d.runs))
	err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "main.tf"), []byte(applyConfig), 0o600))
	if err == nil {
		err = output(d.command(dir, env, "init", "-no-color", "-input=false"))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return dir
}

// apply starts an apply with a claim, and waits until it is between its two
// resources.
func (d *stateDaemon) apply(c state.Claim) *stateApply {
	d.t.Helper()
	env, end := d.backend.Open(d.t.Context(), c, fmt.Sprintf("run%d", d.runs+1))
	dir := d.initialize(env)
	h := &held{Cmd: d.command(dir, env, "apply", "-no-color", "-input=false", "-auto-approve"), done: make(chan error, 1)}
	h.Stdout, h.Stderr = &h.out, &h.out
	if err := h.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { h.done <- h.Wait() }()
	d.t.Cleanup(func() { _ = syscall.Kill(-h.Process.Pid, syscall.SIGKILL) })
	testutil.Await(d.t, waitLimit, "an apply between its resources", func(context.Context) error {
		_, err := os.Stat(filepath.Join(dir, "holds"))
		return err
	})
	return &stateApply{h, dir, end}
}

// finish lets the apply complete, and returns its error with its output.
func (a *stateApply) finish(t testing.TB) error {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := a.wait(t)
	a.end()
	if err != nil {
		return fmt.Errorf("%w: %s", err, &a.out)
	}
	return nil
}

func (a *stateApply) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-a.done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatal("Terraform has not ended")
		return nil
	}
}

// state returns the state of task web, and the content of its newest version.
func (d *stateDaemon) state() (*pb.TaskState, string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	st, err := d.store.Read(ctx, "web")
	if err != nil {
		d.t.Fatal(err)
	}
	data, _, err := d.store.Get(ctx, "web", 0)
	if err != nil && !errors.Is(err, state.ErrNoVersion) {
		d.t.Fatal(err)
	}
	return st, string(data)
}

// TestSyncState runs Terraform with its state in a server, through faults of
// each part.
func TestSyncState(t *testing.T) {
	t.Parallel()
	g := newStateRig(t, 1)
	first, second := g.daemon("sync1", tlsutil.RoleSync), g.daemon("sync2", tlsutil.RoleSync)
	c := first.claim("sync1", 1)

	// A second applier learns the holder of the lock.
	a := first.apply(c)
	operator := g.daemon("operator", tlsutil.RoleOperator)
	env, end := operator.backend.Open(t.Context(), state.Claim{Task: "web"}, "")
	dir := operator.initialize(env)
	err := output(g.command(dir, env, "plan", "-no-color", "-input=false"))
	text := strings.Join(strings.Fields(fmt.Sprint(err)), " ") // Terraform has wrapped the lines
	if st, _ := first.state(); !strings.Contains(text, "the state of task web is locked by run run1 since") ||
		!strings.Contains(text, "wanfed task state unlock web "+st.GetLock().GetId()) {
		t.Errorf("plan of a locked state = %v, want the holder %v", err, st.GetLock())
	}
	if err := a.finish(t); err != nil {
		t.Fatalf("apply = %v, want nil", err)
	}
	if st, data := first.state(); st.Lock != nil || !strings.Contains(data, secret) || st.Versions[0].Run != "run1" {
		t.Errorf("state after the apply = %v with %d bytes, want a version of run1 and no lock", st, len(data))
	}
	if err := output(g.command(dir, env, "plan", "-no-color", "-input=false")); err != nil {
		t.Errorf("plan of the operator = %v, want nil", err)
	}
	end()

	// Terraform and its daemon are killed in mid-apply. The next daemon applies.
	a = first.apply(c)
	if err := syscall.Kill(-a.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = a.wait(t)
	if st, _ := first.state(); st.Lock == nil {
		t.Error("the killed Terraform has no lock, want one")
	}
	c = second.claim("sync2", 2)
	if err := second.apply(c).finish(t); err != nil {
		t.Errorf("apply after a kill = %v, want nil", err)
	}
	a.end()

	// The claim is taken over in mid-apply.
	a = second.apply(c)
	before, _ := second.state()
	c = first.claim("sync1", 3)
	err = a.finish(t)
	if err == nil || !strings.Contains(err.Error(), "HTTP error: 409") {
		t.Errorf("apply with a replaced claim = %v, want status 409", err)
	}
	errored, err := os.ReadFile(filepath.Join(a.dir, "errored.tfstate"))
	if err != nil || !strings.Contains(string(errored), `"second"`) {
		t.Errorf("errored.tfstate = %d bytes, %v, want the state", len(errored), err)
	}
	kept, _ := filepath.Glob(filepath.Join(second.dir, "*.kept"))
	if len(kept) == 0 {
		t.Error("the refused state is in no file")
	} else if _, data, err := state.OpenJournal(kept[len(kept)-1], g.keyFile); err != nil || !strings.Contains(string(data), secret) {
		t.Errorf("OpenJournal() = %d bytes, %v, want the state", len(data), err)
	}
	if st, _ := first.state(); st.Versions[0].Number != before.Versions[0].Number {
		t.Errorf("version after the refused apply = %d, want %d", st.Versions[0].Number, before.Versions[0].Number)
	}
	if v, err := first.store.Import(t.Context(), c, errored, state.ImportOptions{}); err != nil ||
		v.Number != before.Versions[0].Number+1 {
		t.Errorf("Import(errored.tfstate) = %v, %v, want the next version", v, err)
	}

	// The server is away when the apply ends.
	a = first.apply(c)
	g.servers[0].Kill()
	back := time.AfterFunc(5*time.Second, func() { g.start(0) })
	defer back.Stop()
	start := time.Now()
	if err := a.finish(t); err != nil {
		t.Errorf("apply while the server is away = %v, want nil", err)
	}
	t.Logf("the apply ended %v after the server was killed for 5 s", time.Since(start))
	st, data := first.state()
	if st.Lock != nil || st.Versions[0].Run != "run6" || !strings.Contains(data, `"second"`) {
		t.Errorf("state after the return of the server = %v with %d bytes, want a version of run6 and no lock", st, len(data))
	}
	if left, _ := filepath.Glob(filepath.Join(first.dir, "*")); len(left) != 0 {
		t.Errorf("files of the daemon = %q, want none", left)
	}

	// The key is rotated.
	if _, err := state.GenerateKey(g.keyFile); err != nil {
		t.Fatal(err)
	}
	if _, err := state.UseNewestKey(g.keyFile); err != nil {
		t.Fatal(err)
	}
	if err := first.apply(c).finish(t); err != nil {
		t.Errorf("apply with another key = %v, want nil", err)
	}
	st, _ = first.state()
	if newest, oldest := st.Versions[0], st.Versions[len(st.Versions)-1]; newest.Key == oldest.Key {
		t.Errorf("keys of the versions = %s and %s, want different keys", newest.Key, oldest.Key)
	}
	for _, v := range st.Versions {
		if _, _, err := first.store.Get(t.Context(), "web", v.Number); err != nil {
			t.Errorf("Get(%d) = %v, want nil", v.Number, err)
		}
	}
	first.large(c)
	g.noSecret(st.Versions[0].Lineage)
}

// large stores and reads a state of 30 MiB that gzip reduces to three quarters.
func (d *stateDaemon) large(c state.Claim) {
	d.t.Helper()
	random := make([]byte, 30<<20*3/4)
	_, _ = rand.Read(random)
	data := fmt.Appendf(nil, `{"version":4,"serial":99,"lineage":"l","outputs":{"a":{"value":%q}}}`, base64.StdEncoding.EncodeToString(random))
	start := time.Now()
	v, err := d.store.Put(d.t.Context(), c, data, state.PutOptions{})
	if err != nil {
		d.t.Fatalf("Put(%d bytes) = %v, want nil", len(data), err)
	}
	stored := time.Since(start)
	got, _, err := d.store.Get(d.t.Context(), "web", 0)
	if err != nil || !bytes.Equal(got, data) {
		d.t.Errorf("Get() = %d bytes, %v, want %d", len(got), err, len(data))
	}
	d.t.Logf("%d MiB in %d chunks: stored in %v, read in %v", len(data)>>20, len(v.GetChunks()), stored, time.Since(start)-stored)
}

// noSecret checks that no file of the server and no snapshot has the secret. The
// lineage is not secret, and shows that the search finds what is there.
func (g *stateRig) noSecret(lineage string) {
	g.t.Helper()
	f := g.ca.Files(g.t, tlsutil.RoleOperator, "operator", "dc1")
	out, err := exec.Command(g.bin, "snapshot", "save", filepath.Join(g.configs[0].Dir, "snapshot"), "--datacenter", "dc1", "--server",
		g.servers[0].Addr, "--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key).CombinedOutput()
	if err != nil {
		g.t.Fatalf("wanfed snapshot save = %v, want nil: %s", err, out)
	}
	found, files := 0, 0
	err = filepath.WalkDir(g.configs[0].Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if hasSecret(content) {
			g.t.Errorf("%s has the secret", path)
		}
		files++
		if bytes.Contains(content, []byte(lineage)) {
			found++
		}
		return err
	})
	if err != nil || found == 0 {
		g.t.Errorf("%d of %d files of the server have the lineage, %v, want some", found, files, err)
	}
	g.t.Logf("%d files of the server searched", files)
}

// hasSecret reports whether content has the secret, also in a gzip stream.
func hasSecret(content []byte) bool {
	if bytes.Contains(content, []byte(secret)) {
		return true
	}
	for magic := []byte{0x1f, 0x8b, 8}; ; content = content[1:] {
		i := bytes.Index(content, magic)
		if i < 0 {
			return false
		}
		content = content[i:]
		if r, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
			plain, _ := io.ReadAll(io.LimitReader(r, 1<<20)) // fails at the end of the stream
			if bytes.Contains(plain, []byte(secret)) {
				return true
			}
		}
	}
}
