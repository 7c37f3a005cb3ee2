// SPDX-License-Identifier: MPL-2.0

package syncd_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/syncd"
	"github.com/wanfed/wanfed/tlsutil"
)

// rig is a server of wanfed.
type rig struct {
	t        *testing.T
	dir      string
	pki      *subprocess.PKI
	addrs    server.Addrs
	operator *api.Client
	ready    lines // of the daemon
}

// lines receives lines of a daemon.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

// api returns the address of the HTTP API of the daemon.
func (r *rig) api() string {
	_, addr, _ := strings.Cut(strings.TrimSpace(<-r.ready), ": api ")
	return addr
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testutil.Cluster(t)
	r := &rig{t: t, dir: t.TempDir(), ready: make(lines, 1)}
	var err error
	if r.pki, err = subprocess.NewPKI(filepath.Join(r.dir, "pki"), ""); err != nil {
		t.Fatal(err)
	}
	files := r.issue(tlsutil.RoleServer, "srv1")
	started := make(chan server.Addrs, 1)
	r.run(func(ctx context.Context) error {
		return server.Run(ctx, server.Config{
			DC: "dc1", Node: "srv1", DataDir: filepath.Join(r.dir, "data"), Bind: "127.0.0.1", HTTPAddr: "https://127.0.0.1:0", Port: -1,
			CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key, BootstrapExpect: 1,
			Logger: slog.New(slog.DiscardHandler), Started: func(a server.Addrs) { started <- a },
		})
	})
	r.addrs = <-started
	id, err := tlsutil.Load(r.issue(tlsutil.RoleOperator, "op"), tlsutil.DefaultDomain, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if r.operator, err = api.NewClient(api.ClientConfig{Addr: r.addrs.HTTP, TLS: id.ClientConfig("")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.operator.Close() })
	return r
}

func (r *rig) issue(role tlsutil.Role, node string) tlsutil.Files {
	r.t.Helper()
	files, err := r.pki.Issue(role, "dc1", node)
	if err != nil {
		r.t.Fatal(err)
	}
	return files
}

// run calls f in a goroutine until stop or the end of the test.
func (r *rig) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("run = %v, want nil", err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// daemon runs a daemon with a task that copies its inputs to the file out.
func (r *rig) daemon(settings, condition string) (out string, stop func()) {
	r.t.Helper()
	cfg, out := r.configure(settings, condition)
	return out, r.run(func(ctx context.Context) error { return syncd.Run(ctx, cfg) })
}

// configure writes the file of a daemon with a task that copies its inputs to the
// file out.
func (r *rig) configure(settings, condition string) (cfg syncd.Config, out string) {
	r.t.Helper()
	f := r.issue(tlsutil.RoleSync, "s1")
	out = filepath.Join(r.dir, "out.json")
	path := filepath.Join(r.dir, "sync.hcl")
	text := fmt.Sprintf(`
		id = "s1"
		port = 0
		working_dir = %q
		buffer_period { enabled = false }
		%s
		task {
			name   = "copy"
			driver = "exec"
			%s
			exec { command = ["install", "-m", "0644", "/dev/stdin", %q] }
		}`, filepath.Join(r.dir, "tasks"), strings.ReplaceAll(settings, "CERT", fmt.Sprintf("ca = %q\n cert = %q\n key = %q\n", f.CA, f.Cert, f.Key)),
		condition, out)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return syncd.Config{Paths: []string{path}, LogFormat: "text", Stdout: r.ready, Stderr: r.t.Output()}, out
}

// await waits until a file has a part.
func (r *rig) await(path, part string) {
	r.t.Helper()
	testutil.Await(r.t, 20*time.Second, part+" in "+filepath.Base(path), func(context.Context) error {
		b, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(b), part) {
			err = fmt.Errorf("content = %s, want a part %s", b, part)
		}
		return err
	})
}

// TestRun_Consul runs a task whose data comes from an agent of Consul. Consul's
// program cannot be part of the tests because of its licence, so consultest
// replaces it.
func TestRun_Consul(t *testing.T) {
	r := newRig(t)
	agent := consultest.NewAgent(t, "dc9")
	agent.SetToken("secret")
	agent.SetInstances(consultest.Instance{ID: "web1", Service: "web", Node: "n1", Port: 80})
	agent.SetKeys(map[string]string{"k": "1"})
	out, stop := r.daemon(fmt.Sprintf(`
		consul {
			address = %q
			token   = "secret"
		}
		wanfed {
			source  = "consul"
			address = [%q]
			CERT
		}`, agent.URL(), r.addrs.Server), `
			condition "services" { names = ["web"] }
			module_input "consul-kv" { path = "k" }`)
	r.await(out, `"web1.n1.dc9":{`)
	r.await(out, `"consul_kv":{"k":"1"}`)
	agent.SetInstances(consultest.Instance{ID: "web1", Service: "web", Node: "n1", Port: 81})
	r.await(out, `"port":81`)

	var body consultest.Object
	testutil.Await(t, 20*time.Second, "the registration of the daemon", func(context.Context) error {
		var status string
		if body, status = agent.Registration("s1"); status != "passing" {
			return fmt.Errorf("registration = %v, status %q, want passing", body, status)
		}
		return nil
	})
	if body["Name"] != "consul-terraform-sync" || body["Address"] != "127.0.0.1" || fmt.Sprint(body["Tags"]) != "[cts]" {
		t.Errorf("registration = %v, want service consul-terraform-sync with tag cts at 127.0.0.1", body)
	}
	// A daemon refuses tasks with data that its source does not have, and reports
	// those that the server has stored.
	resp, err := http.Post("http://"+r.api()+"/v1/tasks", "application/json", strings.NewReader(
		`{"task":{"name":"far","module":"./m","condition":{"services":{"names":["web"],"namespace":"team"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "namespaces are not supported") {
		t.Errorf("POST of a task with a namespace = %d, %s, %v, want 400 with the reason", resp.StatusCode, text, err)
	}
	const reason = "federation: Consul does not have this data"
	id := api.ResourceID{Type: api.ResourceTypeName{Group: "sync", GroupVersion: "v1", Kind: "Task"}, Name: "far"}
	if _, err := r.operator.WriteResource(t.Context(), api.Resource{ID: id, Data: []byte(
		`{"driver":"exec","conditions":[{"kind":"federation"}],"exec":{"command":["true"]}}`)}, api.ResourceOptions{}); err != nil {
		t.Fatal(err)
	}
	testutil.Await(t, 20*time.Second, "the report of the daemon", func(ctx context.Context) error {
		far, err := r.operator.ReadResource(ctx, id, api.ResourceOptions{})
		for _, c := range far.Status["sync"].Conditions {
			if c.Type == "Ready" && c.Reason == "Incompatible" && strings.Contains(c.Message, reason) {
				return nil
			}
		}
		return fmt.Errorf("status = %+v, %v, want Incompatible", far.Status, err)
	})
	testutil.Await(t, 20*time.Second, "the task in the status of the server", func(ctx context.Context) error {
		st, err := r.operator.Status(ctx, api.QueryOptions{})
		for _, c := range st.Components {
			if c.Name == "sync task far" && c.State == "incompatible" && strings.Contains(c.Detail, reason) {
				return nil
			}
		}
		return fmt.Errorf("components = %+v, %v, want the task", st.Components, err)
	})

	agent.Deregister("s1") // as after a loss of the agent's data
	testutil.Await(t, 20*time.Second, "another registration", func(context.Context) error {
		if body, _ := agent.Registration("s1"); body == nil {
			return fmt.Errorf("no registration")
		}
		return nil
	})
	stop()
	if body, _ := agent.Registration("s1"); body != nil {
		t.Errorf("registration after the stop = %v, want none", body)
	}
}

// TestRun_Registration runs a daemon that registers at the servers of wanfed.
func TestRun_Registration(t *testing.T) {
	r := newRig(t)
	_, stop := r.daemon(fmt.Sprintf("consul { address = %q }\n wanfed {\n CERT }", r.addrs.HTTP),
		`condition "services" { names = ["web"] }`)
	entries := func(want int) (e []api.ServiceEntry) {
		t.Helper()
		testutil.Await(t, 20*time.Second, fmt.Sprintf("%d registered daemons", want), func(ctx context.Context) (err error) {
			if e, _, err = r.operator.ServiceHealth(ctx, "consul-terraform-sync", api.QueryOptions{}); err == nil && (len(e) != want || want > 0 && len(e[0].Checks) == 0) {
				err = fmt.Errorf("instances %+v, want %d with checks", e, want)
			}
			return err
		})
		return e
	}
	e := entries(1)[0]
	if e.Node.Node != "sync.s1" || net.ParseIP(e.Node.Address) == nil || e.Service.ID != "s1" || e.Service.Address != "127.0.0.1" ||
		e.Service.Port == 0 || !e.Healthy() || len(e.Checks) != 1 || e.Checks[0].Name != "CTS Health Status" {
		t.Errorf("instance = %+v, want s1 on node sync.s1 at 127.0.0.1 with a passing check", e)
	}
	stop()
	entries(0)
}

// TestRun_OtherGroup starts a daemon whose file has a task of another group.
func TestRun_OtherGroup(t *testing.T) {
	r := newRig(t)
	keys := filepath.Join(r.dir, "keys")
	if _, err := state.GenerateKey(keys); err != nil {
		t.Fatal(err)
	}
	const condition = `condition "services" { names = ["web"] }`
	settings := fmt.Sprintf("state_key_file = %q\n consul { address = %q }\n wanfed {\n CERT }\n", keys, r.addrs.HTTP)
	stored := func(want string) {
		t.Helper()
		testutil.Await(t, 20*time.Second, "a task with "+want, func(ctx context.Context) error {
			res, err := r.operator.ReadResource(ctx, api.ResourceID{
				Type: api.ResourceTypeName{Group: "sync", GroupVersion: "v1", Kind: "Task"}, Name: "copy"}, api.ResourceOptions{})
			if err == nil && !strings.Contains(strings.ReplaceAll(string(res.Data), " ", ""), want) {
				err = fmt.Errorf("task = %s", res.Data)
			}
			return err
		})
	}
	_, stop := r.daemon("group = \"core\"\n"+settings, condition)
	stored(`"group":"core"`)
	stop()

	cfg, _ := r.configure("group = \"edge\"\n"+settings, condition)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := syncd.Run(ctx, cfg)
	for _, part := range []string{"task copy", `belongs to the daemons of the group "core"`, "rename the task", `set group = "edge"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("Run() with a task of another group = %v, want %q", err, part)
		}
	}
	stored(`"group":"core"`)

	_, stop = r.daemon("group = \"core\"\n"+settings, condition+"\n group = \"edge\"")
	stored(`"group":"edge"`)
	stop()
	r.daemon("group = \"edge\"\n"+settings, `condition "services" { names = ["moved"] }`)
	stored(`"moved"`)
}
