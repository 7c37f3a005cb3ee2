// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// gatewayProc is a gateway as a process, and those that take over from it: their lines go to one log.
type gatewayProc struct {
	first            *os.Process
	ended            chan struct{} // the first has
	log, addr, admin string        // addr is the WAN side's, or that of a gateway on a route file
}

// linkWanfed makes this test binary the command, under its name.
func linkWanfed(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "wanfed")
	if err := os.Symlink(exe, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// startGatewayProc runs the command for real: what takes over is this test binary too, under the name that makes it wanfed.
func startGatewayProc(t testing.TB, args ...string) *gatewayProc {
	t.Helper()
	return startGatewayProcBy(t, func(*exec.Cmd) {}, args...)
}

// startGatewayProcBy has change a say in how the first process is started.
func startGatewayProcBy(t testing.TB, change func(*exec.Cmd), args ...string) *gatewayProc {
	t.Helper()
	link := linkWanfed(t)
	log := filepath.Join(filepath.Dir(link), "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, append([]string{"gateway", "--admin-addr", "127.0.0.1:0", "--" + subprocess.StopOnEOF}, args...)...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	change(cmd)
	err = cmd.Start()
	stdin.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	g := &gatewayProc{first: cmd.Process, ended: make(chan struct{}), log: log}
	go func() { cmd.Wait(); close(g.ended) }()
	t.Cleanup(func() {
		hold.Close() // with it all processes end, also those that the test does not know
		g.first.Kill()
		<-g.ended
	})
	g.addr = g.wait(t, `(?m)^wanfed gateway.*(?:listening on|wan) ([^\s,]+)`, 1)[1]
	g.admin = g.wait(t, `msg="admin address" .*addr=(\S+)`, 1)[1]
	return g
}

// wait returns the submatches of the n-th line that matches.
func (g *gatewayProc) wait(t testing.TB, expr string, n int) []string {
	t.Helper()
	re := regexp.MustCompile(expr)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(refuseLimit); ; {
		b := g.read(t)
		if all := re.FindAllStringSubmatch(b, n); len(all) == n {
			return all[n-1]
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("no %d lines match %s:\n%s", n, expr, b)
		}
	}
}

// read is what all the processes have said so far.
func (g *gatewayProc) read(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(g.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
