// SPDX-License-Identifier: MPL-2.0

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// activate has a gateway started as systemd starts a service with these sockets.
func activate(sockets ...*os.File) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Env = append(cmd.Env, "LISTEN_FDS=1")
		cmd.ExtraFiles = sockets
	}
}

// TestGatewaySocketActivation has a gateway serve a socket of the service manager, hand it over, and leave it when it ends: who comes
// then waits for the next one.
func TestGatewaySocketActivation(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	socket, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	write(t, routes, `route "*.server.dc2.wanfed" { to = ["`+echoUpstream(t)+`"] }`)
	hello := clientHello(t, "srv1.server.dc2.wanfed")
	addr := ln.Addr().String()
	g := startGatewayProcBy(t, activate(socket), "--listen", addr, "--routes", routes)
	open := func(g *gatewayProc) {
		t.Helper()
		c, err := g.open(hello)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	open(g)
	if err := g.first.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	pid := g.wait(t, `msg="new process took over, draining connections" .*pid=(\d+)`, 1)[1]
	<-g.ended
	open(g)
	if err := exec.Command("kill", pid).Run(); err != nil {
		t.Fatal(err)
	}
	for { // its admin address is the last that it gives up
		c, err := net.Dial("tcp", strings.TrimPrefix(g.admin, "http://"))
		if err != nil {
			break
		}
		c.SetDeadline(time.Now().Add(refuseLimit))
		c.Read(make([]byte, 1)) // until it is closed
		c.Close()
	}
	early, err := net.Dial("tcp", addr) // nobody serves it
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	early.SetDeadline(time.Now().Add(refuseLimit))
	next := startGatewayProcBy(t, activate(socket), "--listen", addr, "--routes", routes)
	if err := roundTrip(early, hello); err != nil {
		t.Error("who came while no gateway ran:", err)
	}
	open(next)

	_, stderr := runGateway(t, activate(socket), "--listen", "127.0.0.1:0", "--routes", routes)
	if want := "the service manager opened " + addr + ", but no setting has this address"; !strings.Contains(stderr, want) {
		t.Errorf("%q does not say %q", stderr, want)
	}
}

// runGateway runs a gateway that is to fail at its start.
func runGateway(t testing.TB, change func(*exec.Cmd), args ...string) (code int, stderr string) {
	t.Helper()
	cmd := exec.Command(linkWanfed(t), append([]string{"gateway"}, args...)...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	var out strings.Builder
	cmd.Stderr = &out
	change(cmd)
	if err := cmd.Run(); err == nil {
		t.Error("it did not fail")
	}
	return cmd.ProcessState.ExitCode(), out.String()
}
