// SPDX-License-Identifier: MPL-2.0

//go:build unix

package subprocess

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childEnv is the environment variable with the mode of a child process. Child
// processes run this test binary.
const childEnv = "PROC_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		child(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(mode string) {
	ctx, stop := signal.NotifyContext(UntilEOF(context.Background(), os.Stdin), syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(os.Stderr, "child", mode)
	switch mode {
	case "crash":
		os.Exit(3)
	case "silent":
		fmt.Println("not the ready line")
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		ctx = context.Background()
		fmt.Println("ready stubborn")
	case "parent": // starts the child "linked" and waits to be killed
		cfg := childConfig(os.TempDir(), "linked")
		cfg.LogPath = os.DevNull
		cfg.Env = append(cfg.Env, "PROC_TEST_ADDR="+os.Getenv("PROC_TEST_ADDR"))
		p, err := Start(ctx, cfg)
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("ready", p.Pid())
		ctx = context.Background()
	case "linked": // keeps a connection to the test open
		c, err := net.Dial("tcp", os.Getenv("PROC_TEST_ADDR"))
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		defer c.Close()
		fmt.Println("ready linked")
	default:
		fmt.Print("some banner\nready ")
		fmt.Print("steady\nand more\n")
	}
	<-ctx.Done()
	fmt.Fprintln(os.Stderr, "stopped cleanly")
}

func childConfig(dir, mode string) Config {
	return Config{
		Name:    "dc1/" + mode,
		Command: []string{os.Args[0]},
		Env:     []string{childEnv + "=" + mode},
		LogPath: filepath.Join(dir, mode+".log"),
		Ready:   func(line string) bool { return strings.HasPrefix(line, "ready ") },
	}
}

func deadline(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestStartAndStop(t *testing.T) {
	p, err := Start(deadline(t, 10*time.Second), childConfig(t.TempDir(), "steady"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if got := p.Line(); got != "ready steady" {
		t.Errorf("Line() = %q, want ready steady", got)
	}
	if p.Err() != nil {
		t.Errorf("Err() of a running process = %v, want nil", p.Err())
	}
	if err := p.Stop(deadline(t, 10*time.Second)); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
	if tail := p.Tail(2); !slices.Contains(tail, "stopped cleanly") {
		t.Errorf("Tail(2) = %q, want the line stopped cleanly", tail)
	}
	p.Kill() // again
	if err := p.Signal(os.Interrupt); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal() after the end = %v, want os.ErrProcessDone", err)
	}
}

func TestStart_ProcessExits(t *testing.T) {
	_, err := Start(deadline(t, 10*time.Second), childConfig(t.TempDir(), "crash"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "child crash") {
		t.Errorf("Start() = %v, want the exit status and the last lines of the log", err)
	}
}

func TestStart_ProcessNeverReady(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := Start(ctx, childConfig(t.TempDir(), "silent"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "dc1/silent") {
		t.Errorf("Start() = %v, want a deadline error that names the process", err)
	}
}

func TestStart_NoProgram(t *testing.T) {
	cfg := childConfig(t.TempDir(), "steady")
	cfg.Command = []string{filepath.Join(t.TempDir(), "absent")}
	if _, err := Start(t.Context(), cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start() = %v, want os.ErrNotExist", err)
	}
}

func TestStop_Kills(t *testing.T) {
	p, err := Start(deadline(t, 10*time.Second), childConfig(t.TempDir(), "stubborn"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Stop(deadline(t, 50*time.Millisecond))
	if err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop() = %v, want an error with \"was killed\"", err)
	}
	if p.Err() == nil {
		t.Error("Err() after Kill() = nil, want an error")
	}
}

// TestChildEndsWithItsParent checks that a child, running or suspended, ends
// after its parent was killed.
func TestChildEndsWithItsParent(t *testing.T) {
	for _, suspended := range []bool{false, true} {
		t.Run("suspended="+strconv.FormatBool(suspended), func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			cfg := childConfig(t.TempDir(), "parent")
			cfg.Env = append(cfg.Env, "PROC_TEST_ADDR="+ln.Addr().String())
			parent, err := Start(deadline(t, 10*time.Second), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer parent.Kill()
			conn, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if suspended {
				pid, err := strconv.Atoi(strings.TrimPrefix(parent.Line(), "ready "))
				if err != nil {
					t.Fatal(err)
				}
				suspend(t, pid)
			}
			parent.Kill()
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("Read() from the child times out, want the connection closed with the parent")
			}
		})
	}
}

// suspend suspends the process and waits until all its threads are stopped. If
// the parent ends before that, the kernel does not end the process: it sends
// SIGHUP only to the stopped processes of an orphaned process group, and a
// process with a running thread is not stopped.
func suspend(t testing.TB, pid int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc to see a process suspended")
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads of process %d = %v, %v, want at least one", pid, threads, err)
		}
		if !slices.ContainsFunc(threads, func(file string) bool {
			stat, err := os.ReadFile(file)
			return err != nil || !bytes.Contains(stat, []byte(") T "))
		}) {
			return
		}
	}
}

func TestUntilEOF(t *testing.T) {
	r, w := io.Pipe()
	ctx := UntilEOF(t.Context(), r)
	if err := ctx.Err(); err != nil {
		t.Fatal(err)
	}
	bw := bufio.NewWriter(w)
	fmt.Fprintln(bw, "ignored")
	bw.Flush()
	w.Close()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), ErrParentGone) {
		t.Errorf("context.Cause() = %v, want ErrParentGone", context.Cause(ctx))
	}
}

func TestTail_LongLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&b, "line", i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Process{cfg: Config{LogPath: path}}
	if got, want := p.Tail(2), []string{"line 19998", "line 19999"}; !slices.Equal(got, want) {
		t.Errorf("Tail(2) = %q, want %q", got, want)
	}
	if err := os.WriteFile(path, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := p.Tail(5), []string{"one"}; !slices.Equal(got, want) {
		t.Errorf("Tail(5) = %q, want %q", got, want)
	}
}
