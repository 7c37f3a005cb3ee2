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

	"github.com/wanfed/wanfed/internal/testutil"
)

// activate changes a command to start as systemd starts a service with these
// sockets.
func activate(sockets ...*os.File) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		shell := []string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path}
		cmd.Path, cmd.Args = "/bin/sh", append(shell, cmd.Args[1:]...)
		cmd.Env = append(cmd.Env, "LISTEN_FDS=1")
		cmd.ExtraFiles = sockets
	}
}

// serviceSocket opens a socket as the service manager does.
func serviceSocket(t testing.TB) (addr string, socket *os.File) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	socket, err = ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return ln.Addr().String(), socket
}

// A gateway serves a socket of the service manager, also after a hot restart. A
// connection that a client opens while no gateway runs is served by the next
// gateway.
func TestSocketActivation(t *testing.T) {
	testutil.Cluster(t)
	addr, socket := serviceSocket(t)
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, routes, `route "*.server.dc2.wanfed" { to = ["`+echoUpstream(t)+`"] }`)
	hello := clientHello(t, "srv1.server.dc2.wanfed")
	g := startGatewayProcess(t, activate(socket), "--listen", addr, "--routes", routes)
	g.checkOpen(t, hello)
	g.signal(t, syscall.SIGUSR2)
	pid := g.awaitReplaced(t, 1)
	<-g.ended
	g.checkOpen(t, hello)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for { // the process closes its admin address last
		c, err := net.Dial("tcp", strings.TrimPrefix(g.admin, "http://"))
		if err != nil {
			break
		}
		c.SetDeadline(time.Now().Add(processTimeout))
		c.Read(make([]byte, 1)) // blocks until the process closes c
		c.Close()
	}
	early, err := net.Dial("tcp", addr) // no gateway runs
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	early.SetDeadline(time.Now().Add(processTimeout))
	next := startGatewayProcess(t, activate(socket), "--listen", addr, "--routes", routes)
	if err := roundTrip(early, hello); err != nil {
		t.Errorf("roundTrip() on a connection opened before the start = %v, want nil", err)
	}
	next.checkOpen(t, hello)
}

func TestSocketActivation_NoSettingHasAddress(t *testing.T) {
	addr, socket := serviceSocket(t)
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, routes, `route "a.example" { to = ["127.0.0.1:1"] }`)
	_, stderr := runGateway(t, activate(socket), "--listen", "127.0.0.1:0", "--routes", routes)
	want := "the service manager opened " + addr + ", but no setting has this address"
	if !strings.Contains(stderr, want) {
		t.Errorf("stderr = %q, want it to contain %q", stderr, want)
	}
}
