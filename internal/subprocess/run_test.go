// SPDX-License-Identifier: MPL-2.0

//go:build unix

package subprocess

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func shell(script string) RunConfig {
	return RunConfig{Command: []string{"/bin/sh", "-c", script}, MaxOutput: 100}
}

func TestRun(t *testing.T) {
	t.Setenv("WANFED_DC", "dc9")
	cfg := shell(`read line; echo "$line $GIVEN ${WANFED_DC-none}"; echo noise >&2`)
	cfg.Stdin, cfg.Env = []byte("hello\n"), []string{"GIVEN=env"}
	if got, err := Run(t.Context(), cfg); string(got) != "hello env none\n" || err != nil {
		t.Errorf("Run() = %q, %v, want stdin and the environment without settings", got, err)
	}
}

func TestRun_Fails(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"status":   {"echo first >&2; printf 'the cause\\033[1m\\n\\n' >&2; exit 3", "run /bin/sh: exit status 3: the cause?[1m"},
		"too long": {"while :; do echo 0123456789; done", "run /bin/sh: its output has more than 100 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Run(t.Context(), shell(c.script))
			if got != nil || err == nil || err.Error() != c.want {
				t.Errorf("Run() = %q, %v, want %s", got, err, c.want)
			}
		})
	}
	if _, err := Run(t.Context(), RunConfig{Command: []string{"/absent"}, MaxOutput: 1}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run() of an absent program = %v, want os.ErrNotExist", err)
	}
}

// TestRun_KillsTheGroup checks that the end of the context also ends processes
// that the program has started.
func TestRun_KillsTheGroup(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	// The child of the shell holds the only writing end, which it opens before
	// the test cancels.
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, shell("mkfifo "+fifo+".tmp; mv "+fifo+".tmp "+fifo+"; (echo open; exec sleep 600) >"+fifo))
		done <- err
	}()
	var r *os.File
	for until := time.Now().Add(10 * time.Second); r == nil && time.Now().Before(until); {
		r, _ = os.Open(fifo) // absent until the shell has created it
	}
	if r == nil {
		t.Fatal("the program has not started")
	}
	defer r.Close()
	b := make([]byte, 5)
	if _, err := r.Read(b); err != nil || string(b) != "open\n" {
		t.Fatalf("Read() = %q, %v, want open", b, err)
	}
	cancel(stop)
	if err := <-done; !errors.Is(err, stop) || !strings.Contains(err.Error(), "did not end in time") {
		t.Errorf("Run() = %v, want the cause of the context", err)
	}
	if n, err := r.Read(b); n != 0 || err == nil { // EOF: no process has the writing end
		t.Errorf("Read() after Run() = %d, %v, want EOF", n, err)
	}
}
