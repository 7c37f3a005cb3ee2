// SPDX-License-Identifier: MPL-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain lets this test binary be the new process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "new-process-") {
		os.Exit(newProcess(os.Args[1]))
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // else each new process that ends well waits a second
	goleak.VerifyTestMain(m)
}

// newProcess answers one connection with its number and ends.
func newProcess(how string) int {
	in, err := Take()
	if err != nil || !in.From() && how != "new-process-activated" {
		fmt.Fprintln(os.Stderr, "take:", err)
		return 3
	}
	switch how {
	case "new-process-activated":
		return activated(in)
	case "new-process-fails":
		return 4
	case "new-process-hangs":
		select {}
	case "new-process-gives-up":
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

// checkBlocks fails if the socket blocks, and with it those who accept from it.
func checkBlocks(t testing.TB, s Socket) {
	t.Helper()
	raw, err := s.File.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("the socket blocks: %x, %v", flags, err)
		}
	})
}

func TestStart(t *testing.T) {
	ln, s := listen(t)
	_, other := listen(t) // which the new process does not want
	other.Name = "other"
	ln.Close() // the duplicate is enough
	pid, err := Start(t.Context(), Config{Program: os.Args[0], Args: []string{"new-process-serves"}, Sockets: []Socket{other, s}})
	if err != nil {
		t.Fatal(err)
	}
	checkBlocks(t, s)
	s.File.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if b, err := io.ReadAll(c); err != nil || string(b) != strconv.Itoa(pid) {
		t.Errorf("answer %q, %v; the new process is %d", b, err, pid)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Errorf("new process: %v, status %d", err, status.ExitStatus())
	}
}

func TestStartFails(t *testing.T) {
	ln, s := listen(t)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		program, how string
		ctx          context.Context
		want         string
	}{
		{os.Args[0], "new-process-fails", t.Context(), "before it was ready; its last lines on stderr say why (exit status 4)"},
		{os.Args[0], "new-process-gives-up", t.Context(), "gave up, before it was ready"},
		{os.Args[0], "new-process-hangs", t.Context(), "it was not ready within 300ms"},
		{os.Args[0], "new-process-hangs", canceled, "context canceled"},
		{filepath.Join(t.TempDir(), "absent"), "new-process-serves", t.Context(), "no such file"},
	} {
		timeout := 20 * time.Second
		if strings.Contains(tt.want, "300ms") {
			timeout = 300 * time.Millisecond
		}
		_, err := Start(tt.ctx, Config{Program: tt.program, Args: []string{tt.how}, Sockets: []Socket{s}, Timeout: timeout})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.how, err, tt.want)
		}
	}
	if n, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("a process is left: %d, %v", n, err)
	}
	checkBlocks(t, s)
	go func() { // the old process still accepts
		if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			c.Close()
		}
	}()
	ln.SetDeadline(time.Now().Add(20 * time.Second))
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestTakeNothing(t *testing.T) {
	in, err := Take()
	if err != nil || in.From() {
		t.Fatal(in, err)
	}
	if _, ok, err := in.Listener("one"); ok || err != nil {
		t.Error(ok, err)
	}
	if err := errors.Join(in.Ready(), in.Close(), in.Close()); err != nil {
		t.Error(err)
	}
	t.Setenv(environ, "something")
	if _, err := Take(); err == nil || !strings.Contains(err.Error(), environ) {
		t.Error(err)
	}
}

func TestDuplicateNeedsASocket(t *testing.T) {
	ln, _ := listen(t)
	if _, err := Duplicate("wrapped", struct{ net.Listener }{ln}); err == nil || !strings.Contains(err.Error(), "wrapped") {
		t.Error(err)
	}
}

func TestNotify(t *testing.T) {
	if err := Notify(StateReady); err != nil {
		t.Error(err)
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "n"), fmt.Sprintf("@wanfed-test-%d", os.Getpid())} {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", name)
		if err := Notify(StateMain(7)); err != nil {
			t.Error(err)
		}
		b := make([]byte, 100)
		c.SetDeadline(time.Now().Add(20 * time.Second))
		if n, err := c.Read(b); err != nil || string(b[:n]) != "MAINPID=7" {
			t.Errorf("%s: %q, %v", name, b[:n], err)
		}
		c.Close()
		if name[0] != '@' {
			if err := Notify(StateReady); err == nil {
				t.Error("nobody listens, and there is no error")
			}
		}
	}
}
