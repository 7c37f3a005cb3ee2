// SPDX-License-Identifier: MPL-2.0

package handover

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// activated is a process that the service manager gave sockets: it answers one connection at the address that WANT names with what
// else it was given, and ends.
func activated(in *Inherited) int {
	ln, ok := in.Activated(os.Getenv("WANT"))
	if !ok {
		fmt.Fprint(os.Stderr, "no socket; ", in.CheckActivated())
		in.Close()
		return 3
	}
	if _, twice := in.Activated(os.Getenv("WANT")); twice || os.Getenv(listenPID)+os.Getenv(listenFDs)+os.Getenv(listenNames) != "" || in.From() {
		return 4
	}
	c, err := ln.Accept()
	if err != nil {
		return 5
	}
	fmt.Fprint(c, in.CheckActivated())
	c.Close()
	in.Close()
	return 0
}

// activate starts this test binary as systemd would, with these sockets. pid is what LISTEN_PID says; empty: the process itself.
func activate(t *testing.T, want, pid string, files ...*os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", `LISTEN_PID=${PID:-$$} exec "$0" new-process-activated`, os.Args[0])
	cmd.Env = append(os.Environ(), "LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES=a", "WANT="+want, "PID="+pid)
	cmd.ExtraFiles = files
	cmd.Stderr = &strings.Builder{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestActivated(t *testing.T) {
	one, s1 := listen(t)
	two, s2 := listen(t)
	cmd := activate(t, one.Addr().String(), "", s2.File, s1.File)
	c, err := net.Dial("tcp", one.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(b), "opened "+two.Addr().String()+", and no setting") {
		t.Errorf("%q, %v", b, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err, cmd.Stderr)
	}
	for _, tt := range []struct{ want, pid, says string }{
		{"127.0.0.1:1", "", "no socket; the service manager opened"},
		{"name:1", "", "no socket; the service manager opened"},
		{one.Addr().String(), "1", "no socket; <nil>"}, // of another process
	} {
		cmd := activate(t, tt.want, tt.pid, s1.File)
		if err := cmd.Wait(); err == nil || !strings.Contains(fmt.Sprint(cmd.Stderr), tt.says) {
			t.Errorf("%+v: %v, %v", tt, err, cmd.Stderr)
		}
	}
	checkBlocks(t, s1)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	other := activate(t, one.Addr().String(), "", null)
	if err := other.Wait(); err == nil || !strings.Contains(fmt.Sprint(other.Stderr), "socket 3 of the service manager does not listen on TCP") {
		t.Error(err, other.Stderr)
	}
}

func TestSameAddr(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"10.0.0.1:1", "10.0.0.1:1", true},
		{"10.0.0.1:1", "[::ffff:10.0.0.1]:1", true},
		{"0.0.0.0:1", "[::]:1", true},
		{"0.0.0.0:1", "10.0.0.1:1", false},
		{"10.0.0.1:1", "10.0.0.1:2", false},
	} {
		if sameAddr(netip.MustParseAddrPort(tt.a), netip.MustParseAddrPort(tt.b)) != tt.want {
			t.Errorf("%+v", tt)
		}
	}
}

func TestStateReloading(t *testing.T) {
	if s := StateReloading(); !strings.HasPrefix(s, "RELOADING=1\nMONOTONIC_USEC=") || len(s) < 30 {
		t.Errorf("%q", s)
	}
}
