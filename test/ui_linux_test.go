// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// uiVisible bounds the time from a change of the server's status to the change of
// the page.
const uiVisible = 2 * time.Second

// browser is the program ui/test/browser.mjs, which tests the web UI in Chromium.
type browser struct {
	t     *testing.T
	lines chan string
	stdin io.Writer
}

// startBrowser starts the program. It skips the test without Chromium, node or
// the packages of the directory ui. WANFED_UI_SCREENSHOTS is the directory of the
// screenshots.
func startBrowser(t *testing.T, base, dc string) *browser {
	t.Helper()
	dir := os.Getenv("WANFED_UI_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*waitLimit)
	cmd := exec.CommandContext(ctx, "node", filepath.Join("..", "ui", "test", "browser.mjs"), base, dc, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Chromium has many processes
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &browser{t, make(chan string), stdin}
	done := make(chan error, 1)
	go func() {
		defer close(b.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			select {
			case b.lines <- s.Text():
			case <-ctx.Done():
			}
		}
		done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			cancel()
		}
		for line := range b.lines {
			b.note(line)
		}
		if err := <-done; err != nil {
			t.Errorf("browser.mjs: %v", err)
		}
		cancel()
	})
	return b
}

// note reports a line that is not a step.
func (b *browser) note(line string) {
	if strings.HasPrefix(line, "fail: ") {
		b.t.Error(line)
	} else {
		b.t.Log(line)
	}
}

// await waits for a step, and returns its time.
func (b *browser) await(step string) time.Time {
	b.t.Helper()
	for line := range b.lines {
		if line == step {
			return time.Now()
		}
		b.note(line)
	}
	b.t.Fatalf("browser.mjs ended before the step %q", step)
	return time.Time{}
}

// goOn ends the wait of the program.
func (b *browser) goOn() {
	b.t.Helper()
	if _, err := io.WriteString(b.stdin, "\n"); err != nil {
		b.t.Fatal(err)
	}
}

// TestUI shows a federation in Chromium. Every page works under its
// Content-Security-Policy, with the keyboard, and without a serious finding of
// axe, in light and dark. A fault and its end appear without a reload.
func TestUI(t *testing.T) {
	for _, path := range []string{"/usr/bin/chromium", "../ui/node_modules/playwright-core"} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("%v: install Debian's package chromium, and run npm ci in the directory ui", err)
		}
	}
	t.Parallel()
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	dc3 := l.start("dc3", "dc1", dc1.gateway.WAN)
	put := operatorPut(t, l, dc1)
	put("/v1/kv/app/mode", "blue")
	put("/v1/kv/app/script", "<img src=x onerror=alert(1)>")
	put("/v1/catalog/register", `{"Node": "host1", "Address": "10.0.0.1", "Service": {"ID": "web-1", "Service": "web",
		"Tags": ["v1"], "Port": 80}, "Check": {"Name": "http", "Status": "critical", "ServiceID": "web-1", "Output":
		"connection refused"}}`)
	var many []string
	for i := range 120 {
		many = append(many, fmt.Sprintf(`{"KV": {"Verb": "set", "Key": "many/%03d", "Value": "MQ=="}}`, i))
	}
	put("/v1/txn", "["+strings.Join(many, ",")+"]")
	l.federated(dc1, dc2, dc3)

	b := startBrowser(t, dc1.server.HTTP, "dc3")
	b.await("ready for a key")
	put("/v1/kv/many/new", "1")
	b.goOn()
	b.change(dc1, "shown fault", api.HealthUnreachable, func() error { return dc3.gateway.Signal(syscall.SIGSTOP) })
	b.change(dc1, "shown recovery", api.HealthOK, func() error { return dc3.gateway.Signal(syscall.SIGCONT) })
}

// change makes a change of dc3. The page must show it in time after the status of
// the server has it.
func (b *browser) change(s *site, step string, state api.Health, act func() error) {
	b.t.Helper()
	b.await("ready")
	if err := act(); err != nil {
		b.t.Fatal(err)
	}
	b.goOn()
	testutil.Await(b.t, waitLimit, step, func(ctx context.Context) error {
		st, err := s.status(ctx)
		if err != nil {
			return err
		}
		return checkView(st, "dc3", state, "", "")
	})
	seen := time.Now()
	took := b.await(step).Sub(seen)
	if b.t.Logf("%s %v after the status", step, took.Round(time.Millisecond)); took > uiVisible {
		b.t.Errorf("%s %v after the status, want at most %v", step, took, uiVisible)
	}
}

// operatorPut returns a function that sends a PUT as an operator.
func operatorPut(t *testing.T, l *loopback, s *site) func(path, body string) {
	transport := &http.Transport{TLSClientConfig: l.client(t, tlsutil.RoleOperator, "op", s.dc, "server."+s.dc+".wanfed")}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: waitLimit}
	return func(path, body string) {
		t.Helper()
		testutil.Await(t, waitLimit, "PUT "+path, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPut,
				strings.Replace(s.server.HTTP, "http:", "https:", 1)+path, strings.NewReader(body))
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s %s", resp.Status, answer)
			}
			return err
		})
	}
}
