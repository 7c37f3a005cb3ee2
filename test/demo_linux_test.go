// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/demo"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// demoLimit bounds a demo that federates, on a busy machine.
const demoLimit = 60 * time.Second

// runDemo runs "wanfed demo --once" until it exits and returns its report.
func runDemo(t testing.TB, args ...string) demo.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
	defer cancel()
	tmp := t.TempDir()
	cmd := exec.CommandContext(ctx, lab.Binary(t), append([]string{"demo", "--once", "--output", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, errs.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("temporary directory after the demo = %v, %v, want it empty", left, err)
	}
	r := parseReport(t, out.String())
	checkGone(t, r)
	t.Logf("milliseconds: %v", r.TimingsMS)
	return r
}

func parseReport(t testing.TB, line string) demo.Report {
	t.Helper()
	if strings.Count(strings.TrimSuffix(line, "\n"), "\n") > 0 {
		t.Errorf("report = %q, want one line", line)
	}
	var r demo.Report
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatalf("decode report %q: %v", line, err)
	}
	return r
}

// addressesOf returns the addresses that the processes of the demo listen on.
func addressesOf(r demo.Report) (addrs []string) {
	for _, dc := range r.Datacenters {
		for _, s := range dc.Servers {
			addrs = append(addrs, s.RPC, strings.TrimPrefix(s.HTTP, "http://"))
		}
		for _, g := range dc.Gateways {
			addrs = append(addrs, g.LAN, g.WAN)
		}
	}
	return addrs
}

// checkGone waits until no process listens on the addresses of the demo.
func checkGone(t testing.TB, r demo.Report) {
	t.Helper()
	testutil.Await(t, 20*time.Second, "the end of all processes of the demo", func(ctx context.Context) error {
		for _, addr := range addressesOf(r) {
			var d net.Dialer
			if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
				c.Close()
				return fmt.Errorf("%s still listens", addr)
			}
		}
		return nil
	})
}

// TestDemo checks that the default demo federates three datacenters, and that
// it reports the time of each step.
func TestDemo(t *testing.T) {
	r := runDemo(t)
	if len(r.Datacenters) != 3 {
		t.Errorf("%d datacenters, want 3", len(r.Datacenters))
	}
	for _, step := range []string{"servers", "gateways", "members", "states", "request"} {
		if r.TimingsMS[step] <= 0 {
			t.Errorf("timings = %v, want a positive time for %q", r.TimingsMS, step)
		}
	}
}

// TestDemo_ThreeServers runs a demo with three servers per datacenter.
func TestDemo_ThreeServers(t *testing.T) {
	r := runDemo(t, "--datacenters", "2", "--servers", "3")
	for _, dc := range r.Datacenters {
		if len(dc.Servers) != 3 {
			t.Errorf("%s has %d servers, want 3", dc.Name, len(dc.Servers))
		}
	}
}

// TestDemo_Sync checks that the sync daemon of a demo runs its task at the start,
// and when a gateway has stopped.
func TestDemo_Sync(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
	defer cancel()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name:    "demo",
		Command: []string{lab.Binary(t), "demo", "--datacenters", "2", "--keep", filepath.Join(dir, "kept")},
		LogPath: log,
		Ready:   func(line string) bool { return strings.Contains(line, "has run the task gateways (start): succeeded") },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	gateways := func() string {
		b, err := os.ReadFile(filepath.Join(dir, "kept", "dc1", "sync1", "gateways.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := gateways(); strings.Count(got, `"healthy":true`) != 2 {
		t.Errorf("gateways at the start = %s, want two healthy ones", got)
	}
	output, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	pid := regexp.MustCompile(`(?m)^  kill (\d+);`).FindSubmatch(output)
	if pid == nil {
		t.Fatalf("the output has no command that stops a gateway:\n%s", output)
	}
	if out, err := exec.CommandContext(ctx, "kill", string(pid[1])).CombinedOutput(); err != nil {
		t.Fatalf("kill %s = %v, %s", pid[1], err, out)
	}
	testutil.Await(t, 20*time.Second, "a run after the stop of a gateway", func(context.Context) error {
		if got := gateways(); strings.Count(got, `"healthy":true`) != 1 {
			return fmt.Errorf("gateways = %s, want one healthy one", got)
		}
		return nil
	})
	if err := p.Stop(ctx); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
}

// TestDemo_End checks that all processes of a demo end when the demo is stopped
// or killed.
func TestDemo_End(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), demoLimit)
			defer cancel()
			dir := t.TempDir()
			p, err := subprocess.Start(ctx, subprocess.Config{
				Name: "demo",
				Command: []string{lab.Binary(t), "demo", "--datacenters", "2", "--output", "json", "--keep",
					filepath.Join(dir, "kept")},
				LogPath: filepath.Join(dir, "log"),
				Ready:   func(line string) bool { return strings.HasPrefix(line, "{") },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Kill()
			if how == "killed" {
				p.Kill()
			} else if err := p.Stop(ctx); err != nil {
				t.Errorf("Stop() = %v, want nil", err)
			}
			checkGone(t, parseReport(t, p.Line()))
		})
	}
}
