// SPDX-License-Identifier: MPL-2.0

package hotrestart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// testTimeout bounds each wait in real time.
const testTimeout = 20 * time.Second

// TestMain runs newProcess if the first argument names a mode of the new
// process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "new-process-") {
		os.Exit(newProcess(os.Args[1]))
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // by default, each new process exits a second later
	goleak.VerifyTestMain(m)
}

// newProcess takes the inherited socket "one", accepts one connection, sends
// the process id and returns the exit status.
func newProcess(mode string) int {
	in, err := Inherit()
	if err != nil || !in.HasParent() && mode != "new-process-activated" {
		fmt.Fprintln(os.Stderr, "inherit:", err)
		return 3
	}
	switch mode {
	case "new-process-activated":
		return activated(in)
	case "new-process-fails":
		return 4
	case "new-process-hangs":
		select {}
	case "new-process-closes-pipe":
		in.Close()
		select {}
	}
	ln, ok, err := in.Listener("one")
	if _, twice, _ := in.Listener("one"); err != nil || !ok || twice || os.Getenv(environ) != "" {
		fmt.Fprintln(os.Stderr, "listener:", ok, twice, err)
		return 5
	}
	if err := in.Ready(); err != nil {
		return 6
	}
	c, err := ln.Accept()
	if err != nil {
		return 7
	}
	fmt.Fprint(c, os.Getpid())
	c.Close()
	return 0
}

// activated is newProcess with sockets of the service manager. It accepts one
// connection at the address in the variable WANT, sends the result of
// CheckActivated and returns the exit status.
func activated(in *Inherited) int {
	ln, ok := in.Activated(os.Getenv("WANT"))
	if !ok {
		fmt.Fprint(os.Stderr, "no socket; ", in.CheckActivated())
		in.Close()
		return 3
	}
	environment := os.Getenv("LISTEN_PID") + os.Getenv("LISTEN_FDS") + os.Getenv("LISTEN_FDNAMES")
	if _, twice := in.Activated(os.Getenv("WANT")); twice || environment != "" || in.HasParent() {
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

func listen(t testing.TB) (*net.TCPListener, Socket) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Duplicate("one", ln)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close(); s.File.Close() })
	return ln.(*net.TCPListener), s
}

// checkNonblocking checks that the socket is in non-blocking mode. In blocking
// mode, Accept in the old process would block a thread.
func checkNonblocking(t testing.TB, s Socket) {
	t.Helper()
	raw, err := s.File.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags of the socket = %x, %v, want O_NONBLOCK", flags, err)
		}
	})
}

func TestStart(t *testing.T) {
	ln, s := listen(t)
	_, other := listen(t) // not taken by the new process
	other.Name = "other"
	ln.Close() // the duplicate keeps the socket open
	pid, err := Start(t.Context(), Config{
		Program: os.Args[0], Args: []string{"new-process-serves"}, Sockets: []Socket{other, s},
	})
	if err != nil {
		t.Fatal(err)
	}
	checkNonblocking(t, s)
	s.File.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	if b, err := io.ReadAll(c); err != nil || string(b) != strconv.Itoa(pid) {
		t.Errorf("connection is served by process %q, %v, want %d", b, err, pid)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Errorf("exit status of the new process = %d, %v, want 0", status.ExitStatus(), err)
	}
}

func TestStart_NewProcessFails(t *testing.T) {
	ln, s := listen(t)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name, program, mode string
		ctx                 context.Context
		timeout             time.Duration
		want                string
	}{
		{"exits", os.Args[0], "new-process-fails", t.Context(), testTimeout,
			"before it was ready; its last lines on stderr have the reason (exit status 4)"},
		{"closes the pipe", os.Args[0], "new-process-closes-pipe", t.Context(), testTimeout,
			"closed its pipe, before it was ready"},
		{"timeout", os.Args[0], "new-process-hangs", t.Context(), 300 * time.Millisecond, "not ready within 300ms"},
		{"canceled", os.Args[0], "new-process-hangs", canceled, testTimeout, "context canceled"},
		{"no program", filepath.Join(t.TempDir(), "absent"), "new-process-serves", t.Context(), testTimeout,
			"no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Start(tt.ctx, Config{
				Program: tt.program, Args: []string{tt.mode}, Sockets: []Socket{s}, Timeout: tt.timeout,
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start() = %v, want an error with %q", err, tt.want)
			}
		})
	}
	if n, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("Wait4() = %d, %v, want no child process", n, err)
	}
	checkNonblocking(t, s)
	go func() {
		if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			c.Close()
		}
	}()
	ln.SetDeadline(time.Now().Add(testTimeout))
	c, err := ln.Accept()
	if err != nil {
		t.Fatalf("Accept() in the old process = %v, want a connection", err)
	}
	c.Close()
}

func TestInherit_Nothing(t *testing.T) {
	in, err := Inherit()
	if err != nil || in.HasParent() {
		t.Fatalf("Inherit() = %+v, %v, want nothing inherited", in, err)
	}
	if _, ok, err := in.Listener("one"); ok || err != nil {
		t.Errorf("Listener() = %v, %v, want none", ok, err)
	}
	if err := errors.Join(in.Ready(), in.Close(), in.Close()); err != nil {
		t.Errorf("Ready() and Close() = %v, want nil", err)
	}
}

func TestInherit_BadVariable(t *testing.T) {
	t.Setenv(environ, "something")
	if _, err := Inherit(); err == nil || !strings.Contains(err.Error(), environ) {
		t.Errorf("Inherit() = %v, want an error that names %s", err, environ)
	}
}

func TestDuplicate_NotASocket(t *testing.T) {
	ln, _ := listen(t)
	if _, err := Duplicate("wrapped", struct{ net.Listener }{ln}); err == nil ||
		!strings.Contains(err.Error(), "wrapped") {
		t.Errorf("Duplicate() = %v, want an error that names the listener", err)
	}
}

// activate starts this test binary with sockets, as systemd does. pid is the
// value of LISTEN_PID. If pid is empty, the value is the id of the started
// process.
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
	c.SetDeadline(time.Now().Add(testTimeout))
	b, err := io.ReadAll(c)
	if want := "opened " + two.Addr().String() + ", but no setting"; err != nil || !strings.Contains(string(b), want) {
		t.Errorf("CheckActivated() = %q, %v, want an error with %q", b, err, want)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("activated process: %v, stderr %v", err, cmd.Stderr)
	}
	checkNonblocking(t, s1)
}

func TestActivated_Fails(t *testing.T) {
	one, s := listen(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, tt := range []struct {
		name, addr, pid string
		file            *os.File
		want            string
	}{
		{"another port", "127.0.0.1:1", "", s.File, "no socket; the service manager opened"},
		{"not an address", "name:1", "", s.File, "no socket; the service manager opened"},
		{"for another process", one.Addr().String(), "1", s.File, "no socket; <nil>"},
		{"not a socket", one.Addr().String(), "", null, "socket 3 of the service manager does not listen on TCP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := activate(t, tt.addr, tt.pid, tt.file)
			if err := cmd.Wait(); err == nil || !strings.Contains(fmt.Sprint(cmd.Stderr), tt.want) {
				t.Errorf("activated process: %v, stderr %q, want %q", err, cmd.Stderr, tt.want)
			}
		})
	}
	checkNonblocking(t, s)
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
		if got := sameAddr(netip.MustParseAddrPort(tt.a), netip.MustParseAddrPort(tt.b)); got != tt.want {
			t.Errorf("sameAddr(%s, %s) = %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}
