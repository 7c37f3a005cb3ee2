// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// trio is a datacenter of three server processes on loopback addresses.
type trio struct {
	*loopback
	servers  [3]*subprocess.Server
	operator tlsutil.Files
}

func newTrio(t testing.TB) *trio {
	t.Helper()
	g := &trio{loopback: newLoopback(t)}
	g.log = "info"
	g.operator = g.ca.Files(t, tlsutil.RoleOperator, "joe", "dc1")
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	ports := freePorts(t)
	for i := range g.servers {
		node := fmt.Sprintf("srv%d", i+1)
		var join []string
		for _, port := range ports {
			join = append(join, fmt.Sprintf("127.0.0.1:%d", port))
		}
		var err error
		g.servers[i], err = subprocess.StartServer(ctx, subprocess.ServerConfig{
			Program: []string{g.bin}, Dir: filepath.Join(g.dir, node), DC: "dc1", Node: node,
			TLS: g.ca.Files(t, tlsutil.RoleServer, node, "dc1"), BootstrapExpect: 3, RetryJoin: join, LogLevel: g.log,
			Port: ports[i],
		})
		if err != nil {
			t.Fatal(err)
		}
		g.keep(g.servers[i].Process)
	}
	g.leader()
	return g
}

// freePorts returns ports of 127.0.0.1 that were free.
func freePorts(t testing.TB) (ports [3]int) {
	t.Helper()
	for i := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ports[i] = ln.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// leader waits for a leader and returns its position.
func (g *trio) leader() (leader int) {
	g.t.Helper()
	testutil.Await(g.t, waitLimit, "leader", func(context.Context) error {
		for _, s := range g.servers {
			if s.Err() != nil || isDone(s.Process) {
				continue
			}
			addr, err := g.client(s).Status().Leader()
			if err != nil {
				return err
			}
			for i, other := range g.servers {
				if other.Addr == addr && !isDone(other.Process) {
					leader = i
					return nil
				}
			}
		}
		return errors.New("no leader")
	})
	return leader
}

func isDone(p *subprocess.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// client returns a client of Consul with the certificate of an operator.
func (g *trio) client(s *subprocess.Server) *consul.Client {
	g.t.Helper()
	c, err := consul.NewClient(g.clientConfig(s))
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func (g *trio) clientConfig(s *subprocess.Server) *consul.Config {
	cfg := consul.DefaultNonPooledConfig()
	cfg.Address, cfg.Scheme = strings.TrimPrefix(s.HTTP, "http://"), "https"
	cfg.TLSConfig = consul.TLSConfig{CAFile: g.operator.CA, CertFile: g.operator.Cert, KeyFile: g.operator.Key}
	return cfg
}

// mortal is a client whose requests fail after the client was killed, so that
// the servers receive nothing more from it.
type mortal struct {
	*consul.Client
	killed atomic.Bool
}

func (g *trio) mortal(s *subprocess.Server) *mortal {
	g.t.Helper()
	cfg := g.clientConfig(s)
	inner, err := consul.NewHttpClient(cfg.Transport, cfg.TLSConfig)
	if err != nil {
		g.t.Fatal(err)
	}
	m := &mortal{}
	transport := inner.Transport
	cfg.HttpClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if m.killed.Load() {
			return nil, errors.New("killed")
		}
		return transport.RoundTrip(r)
	})}
	if m.Client, err = consul.NewClient(cfg); err != nil {
		g.t.Fatal(err)
	}
	return m
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// command returns a command in its own process group, with the settings of the
// clients of wanfed and of Consul for server s.
func (g *trio) command(s *subprocess.Server, name string, args ...string) *exec.Cmd {
	addr := strings.TrimPrefix(s.HTTP, "http://")
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "WANFED_HTTP_ADDR=https://"+addr, "WANFED_CA_FILE="+g.operator.CA,
		"WANFED_CERT_FILE="+g.operator.Cert, "WANFED_KEY_FILE="+g.operator.Key,
		"CONSUL_HTTP_ADDR="+addr, "CONSUL_HTTP_SSL=true", "CONSUL_CACERT="+g.operator.CA,
		"CONSUL_CLIENT_CERT="+g.operator.Cert, "CONSUL_CLIENT_KEY="+g.operator.Key, "CHECKPOINT_DISABLE=1",
		"TF_IN_AUTOMATION=1")
	return cmd
}

// held is a process that holds a lock.
type held struct {
	*exec.Cmd
	out  bytes.Buffer
	done chan error
}

// hold starts a command and waits until it has created the file.
func (g *trio) hold(cmd *exec.Cmd, file string) *held {
	g.t.Helper()
	h := &held{Cmd: cmd, done: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = &h.out, &h.out
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() { h.done <- cmd.Wait() }()
	g.t.Cleanup(func() { h.kill() })
	testutil.Await(g.t, waitLimit, file, func(context.Context) error {
		if len(h.done) > 0 {
			return fmt.Errorf("%v has ended: %s", cmd.Args, &h.out)
		}
		_, err := os.Stat(filepath.Join(g.dir, file))
		return err
	})
	return h
}

// kill kills the process and its children.
func (h *held) kill() { _ = syscall.Kill(-h.Process.Pid, syscall.SIGKILL) }

// terraformDir writes a configuration whose apply holds the lock of its state
// until it is killed, or with variable hold=0 ends at once.
func (g *trio) terraformDir() string {
	g.t.Helper()
	dir := filepath.Join(g.dir, "tf")
	config := `
terraform {
  backend "consul" { path = "terraform/state" }
}
variable "hold" { default = 1 }
resource "terraform_data" "x" {
  triggers_replace = var.hold
  provisioner "local-exec" {
    command = "touch ../terraform-holds; [ ${var.hold} = 0 ] || sleep 600"
  }
}
`
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "main.tf"), []byte(config), 0o600)); err != nil {
		g.t.Fatal(err)
	}
	return dir
}

// TestLocks_SurviveKills has locks held by the helpers Lock and Semaphore of the
// client of Consul, by "wanfed lock" and by Terraform. All keep their locks when
// the leader is killed. When the holders are killed, others get the locks.
func TestLocks_SurviveKills(t *testing.T) {
	g := newTrio(t)
	leader := g.leader()
	first, second := g.servers[(leader+1)%3], g.servers[(leader+2)%3]

	dying := g.mortal(first)
	options := func() *consul.LockOptions {
		return &consul.LockOptions{Key: "jobs/lock", SessionTTL: "10s", LockDelay: time.Millisecond}
	}
	slots := &consul.SemaphoreOptions{Prefix: "jobs/semaphore", Limit: 1, SessionTTL: "10s"}
	lock, err := dying.LockOpts(options())
	if err != nil {
		t.Fatal(err)
	}
	lockLost, err := lock.Lock(nil)
	if err != nil {
		t.Fatalf("Lock() = %v, want nil", err)
	}
	semaphore, err := dying.SemaphoreOpts(slots)
	if err != nil {
		t.Fatal(err)
	}
	slotLost, err := semaphore.Acquire(nil)
	if err != nil {
		t.Fatalf("Acquire() = %v, want nil", err)
	}
	holder := g.hold(g.command(first, g.bin, "lock", "--ttl", "10s", "--lock-delay", "0s", "job", "--",
		"sh", "-c", "touch wanfed-holds; sleep 600"), "wanfed-holds")
	var terraform *held
	tf := func(s *subprocess.Server, args ...string) *exec.Cmd {
		cmd := g.command(s, "terraform", args...)
		cmd.Dir = filepath.Join(g.dir, "tf")
		return cmd
	}
	if _, err := exec.LookPath("terraform"); err != nil {
		t.Log("terraform is not installed: its backend is not tested")
	} else {
		g.terraformDir()
		if out, err := tf(first, "init", "-no-color", "-input=false").CombinedOutput(); err != nil {
			t.Fatalf("terraform init = %v: %s", err, out)
		}
		terraform = g.hold(tf(first, "apply", "-no-color", "-input=false", "-auto-approve"), "terraform-holds")
		out, err := tf(second, "apply", "-no-color", "-input=false", "-auto-approve").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "Error acquiring the state lock") {
			t.Errorf("terraform apply of a locked state = %v: %s, want an error about the lock", err, out)
		}
	}

	g.servers[leader].Kill()
	g.leader()
	other := g.client(second)
	for _, key := range []string{"jobs/lock", "job/.lock"} {
		if p, _, err := other.KV().Get(key, nil); err != nil || p == nil || p.Session == "" {
			t.Errorf("Get(%s) after the leader was killed = %+v, %v, want a session", key, p, err)
		}
	}
	time.Sleep(3 * time.Second) // the tested time: longer than a renewal interval
	select {
	case <-lockLost:
		t.Error("the lock was lost when the leader was killed, want it held")
	case <-slotLost:
		t.Error("the semaphore was lost when the leader was killed, want it held")
	case err := <-holder.done:
		t.Errorf("wanfed lock ended when the leader was killed: %v: %s", err, &holder.out)
	default:
	}

	dying.killed.Store(true)
	holder.kill()
	if terraform != nil {
		terraform.kill()
	}
	killed := time.Now()
	results := make(chan error, 4)
	waitFor := 4
	go func() {
		l, err := other.LockOpts(options())
		if err == nil {
			_, err = l.Lock(nil)
		}
		results <- wrap("Lock", err)
	}()
	go func() {
		s, err := other.SemaphoreOpts(slots)
		if err == nil {
			_, err = s.Acquire(nil)
		}
		results <- wrap("Semaphore", err)
	}()
	go func() {
		out, err := g.command(second, g.bin, "lock", "job", "--", "true").CombinedOutput()
		results <- wrap("wanfed lock: "+string(out), err)
	}()
	if terraform == nil {
		waitFor--
	} else {
		go func() {
			out, err := tf(second, "apply", "-no-color", "-input=false", "-auto-approve", "-lock-timeout=60s", "-var=hold=0").
				CombinedOutput()
			results <- wrap("terraform apply: "+string(out), err)
		}()
	}
	limit := time.After(time.Minute)
	for range waitFor {
		select {
		case err := <-results:
			if err != nil {
				t.Error(err)
			}
			t.Logf("another holder after %v", time.Since(killed).Round(100*time.Millisecond))
		case <-limit:
			t.Fatal("no other holder within a minute")
		}
	}
	if terraform != nil {
		out, err := tf(second, "show", "-no-color").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "terraform_data.x") {
			t.Errorf("terraform show = %v: %s, want the resource", err, out)
		}
	}
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// TestLocks_ConsulTemplateDedup runs two processes of consul-template with
// deduplication. One of them renders for both. When it is killed, the other one
// renders.
func TestLocks_ConsulTemplateDedup(t *testing.T) {
	program, err := exec.LookPath("consul-template")
	if err != nil {
		t.Skip("consul-template is not installed")
	}
	g := newTrio(t)
	leader := g.leader()
	first, second := g.servers[(leader+1)%3], g.servers[(leader+2)%3]
	keys := g.client(first).KV()
	put := func(value string) {
		t.Helper()
		if _, err := keys.Put(&consul.KVPair{Key: "app/color", Value: []byte(value)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	put("blue")
	if err := os.WriteFile(filepath.Join(g.dir, "in.tpl"), []byte(`{{ key "app/color" }}`), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(s *subprocess.Server, out string) *held {
		return g.hold(g.command(s, program, "-dedup", "-consul-addr", strings.TrimPrefix(s.HTTP, "http://"),
			"-consul-ssl", "-consul-ssl-ca-cert", g.operator.CA, "-consul-ssl-cert", g.operator.Cert,
			"-consul-ssl-key", g.operator.Key, "-template", "in.tpl:"+out), out)
	}
	renders := func(out, want string) {
		t.Helper()
		testutil.Await(t, time.Minute, out, func(context.Context) error {
			b, err := os.ReadFile(filepath.Join(g.dir, out))
			if err == nil && string(b) != want {
				err = fmt.Errorf("%s = %q, want %q", out, b, want)
			}
			return err
		})
	}
	holder := start(first, "a.out")
	start(second, "b.out")
	put("red")
	renders("a.out", "red")
	renders("b.out", "red")
	g.servers[leader].Kill()
	g.leader()
	holder.kill()
	put("green")
	renders("b.out", "green")
}
