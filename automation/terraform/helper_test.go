// SPDX-License-Identifier: MPL-2.0

//go:build linux

package terraform

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
)

// newDriver returns a driver, or skips the test where Terraform is missing.
func newDriver(t *testing.T) *Driver {
	t.Helper()
	d := New(Config{})
	if _, err := d.Version(t.Context()); err != nil {
		t.Skipf("no Terraform: %v", err)
	}
	// A file that does not exist is a warning of Terraform.
	t.Setenv("TF_CLI_CONFIG_FILE", write(t, t.TempDir(), "tf.rc", "disable_checkpoint = true\n"))
	return d
}

func write(t *testing.T, dir, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatalf("WriteFile() = %v, want nil", err)
	}
	return path
}

// work returns a task with a local module, and an empty directory.
func work(t *testing.T, module string) *driver.Work {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "main.tf", module)
	return &driver.Work{Name: "t", Dir: filepath.Join(t.TempDir(), "t"),
		Task: &pb.Task{Terraform: &pb.TerraformDriver{Module: dir}}}
}

// backend is a server for a state, as that of the daemon.
type backend struct {
	mu    sync.Mutex
	state []byte
	lock  string
	posts int
}

// serve listens, sets the backend of w, and returns a function that stops the
// server.
func (b *backend) serve(t *testing.T, w *driver.Work) (stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("Listen() = %v, want nil", err)
	}
	srv := &http.Server{Handler: b}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	stop = sync.OnceFunc(func() { srv.Close(); <-done })
	t.Cleanup(stop)
	w.Backend = httpBackend("http://" + ln.Addr().String())
	return stop
}

func httpBackend(url string) driver.Backend {
	return driver.Backend{Type: backendHTTP, Env: map[string]string{
		"TF_HTTP_ADDRESS": url, "TF_HTTP_LOCK_ADDRESS": url, "TF_HTTP_UNLOCK_ADDRESS": url,
		"TF_HTTP_PASSWORD": secret, "TF_HTTP_USERNAME": "run", "TF_HTTP_RETRY_MAX": "0",
	}}
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.Method == "LOCK" && b.lock != "":
		w.WriteHeader(http.StatusLocked)
		_, _ = io.WriteString(w, b.lock)
	case r.Method == "LOCK":
		b.lock = string(body)
	case r.Method == "UNLOCK":
		b.lock = ""
	case r.Method == http.MethodPost:
		b.state = body
		b.posts++
	case b.state == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		_, _ = w.Write(b.state)
	}
}

// stateOf is the part of a state that the tests read.
type stateOf struct {
	Serial    int
	Resources []struct {
		Name      string
		Instances []struct {
			Status     string
			Attributes struct {
				Input struct{ Value json.RawMessage }
			}
		}
	}
}

// read decodes a state.
func read(t *testing.T, b []byte) (s stateOf) {
	t.Helper()
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("Unmarshal(%.200s) = %v, want nil", b, err)
	}
	return s
}

// instances returns the number of resource instances that are complete.
func (s stateOf) instances() (n int) {
	for _, r := range s.Resources {
		for _, i := range r.Instances {
			if i.Status == "" {
				n++
			}
		}
	}
	return n
}

// apply runs d and fails the test unless it succeeds.
func apply(t *testing.T, d *Driver, w *driver.Work, r driver.Request) driver.Result {
	t.Helper()
	if r.Mode == "" {
		r.Mode = driver.Apply
	}
	res, err := d.Run(t.Context(), w, r)
	if err != nil {
		t.Fatalf("Run(%s) = %v, want nil; log:\n%s", r.Mode, err, res.Log)
	}
	return res
}

// eachKey is a module with a resource for each key.
const eachKey = `
variable "services" {}
variable "consul_kv" { type = map(string) }
resource "terraform_data" "x" {
  for_each = var.consul_kv
  input    = each.value
}
`

// secret is a value that must not be on disk.
const secret = "planted-secret-7d1f"

// TestDaemon is a daemon that the tests kill.
func TestDaemon(t *testing.T) {
	module := os.Getenv("WANFED_TEST_MODULE")
	if module == "" {
		t.Skip("startDaemon runs it")
	}
	w := &driver.Work{Name: "t", Dir: os.Getenv("WANFED_TEST_DIR"), Task: &pb.Task{Terraform: &pb.TerraformDriver{Module: module}}}
	if url := os.Getenv("WANFED_TEST_BACKEND"); url != "" {
		w.Backend = httpBackend(url)
	} else {
		new(backend).serve(t, w)
	}
	_, _ = New(Config{}).Run(t.Context(), w, driver.Request{ID: "daemon-" + strconv.Itoa(os.Getpid()), Mode: driver.Apply})
}

// startDaemon runs w in another process. Without a backend, the process has one.
func startDaemon(t *testing.T, w *driver.Work) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestDaemon$")
	cmd.Env = append(os.Environ(), "WANFED_TEST_MODULE="+w.Task.Terraform.Module, "WANFED_TEST_DIR="+w.Dir,
		"WANFED_TEST_BACKEND="+w.Backend.Env["TF_HTTP_ADDRESS"])
	if err := cmd.Start(); err != nil {
		t.Fatalf("Start() = %v, want nil", err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// logged reports whether the output of the run has the text.
func logged(w *driver.Work, text string) bool {
	b, _ := os.ReadFile(filepath.Join(w.Dir, "run.log"))
	return strings.Contains(string(b), text)
}
