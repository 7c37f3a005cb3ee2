// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unicode"
)

// RunConfig configures Run.
type RunConfig struct {
	// Command is the program and its arguments. Required.
	Command []string
	// Env has additional environment variables, as in Config.
	Env []string
	// Stdin is the input of the program.
	Stdin []byte
	// MaxOutput bounds stdout, in bytes. A longer output is an error. Required.
	MaxOutput int
}

const (
	// errorTail is the number of bytes at the end of stderr that Run keeps.
	errorTail = 4 << 10
	// errorText bounds the part of stderr in an error, in bytes.
	errorText = 300
	// runDelay is outputDelay for Run.
	runDelay = 200 * time.Millisecond
)

// Run runs a program to its end, and returns its stdout. If ctx ends first, or the
// output is too long, Run kills the process group of the program. The error has
// one line, with the last line of stderr.
func Run(ctx context.Context, cfg RunConfig) ([]byte, error) {
	cmd := exec.CommandContext(ctx, cfg.Command[0], cfg.Command[1:]...)
	cmd.Env = append(Environ(), cfg.Env...)
	cmd.Stdin = bytes.NewReader(cfg.Stdin)
	out, errs := &limitedBuffer{limit: cfg.MaxOutput}, &tailBuffer{limit: errorTail}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return killGroup(cmd.Process) }
	cmd.WaitDelay = runDelay
	out.full = func() { _ = killGroup(cmd.Process) } // fails only if it has ended
	err := cmd.Run()
	switch {
	case out.exceeded:
		err = fmt.Errorf("its output has more than %d bytes", cfg.MaxOutput)
	case ctx.Err() != nil:
		err = fmt.Errorf("it did not end in time: %w", context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // a process that it has started has the output open
	}
	if err == nil {
		return out.b.Bytes(), nil
	}
	if line := lastLine(errs.b); line != "" {
		err = fmt.Errorf("%w: %s", err, line)
	}
	return nil, fmt.Errorf("run %s: %w", cfg.Command[0], err)
}

// limitedBuffer keeps up to limit bytes, and calls full once more are written.
type limitedBuffer struct {
	b        bytes.Buffer
	limit    int
	full     func()
	exceeded bool
}

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if l.b.Len()+len(b) <= l.limit {
		return l.b.Write(b)
	}
	l.exceeded = true
	l.full()
	return 0, errors.New("too long")
}

// tailBuffer keeps the last limit bytes.
type tailBuffer struct {
	b     []byte
	limit int
}

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if n := len(t.b) - t.limit; n > 0 {
		t.b = slices.Clone(t.b[n:])
	}
	return len(b), nil
}

// lastLine returns the last line with text, without characters that could control
// a terminal.
func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	line := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSpace(lines[len(lines)-1]))
	return line[:min(len(line), errorText)]
}
