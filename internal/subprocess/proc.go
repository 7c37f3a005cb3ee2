// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Config of one process.
type Config struct {
	// Name in errors, for example dc1/srv1. Required.
	Name string
	// Command is the program and its arguments. Required.
	Command []string
	// Env is added to this process's environment, of which the settings of wanfed (WANFED_...) are left out.
	Env []string
	// LogPath is the file to which stdout and stderr are appended. Required.
	LogPath string
	// Ready tells whether a line of stdout (without its end) says that the process is ready. Required.
	Ready func(line string) bool
}

// Process is a process that was ready. It is for any goroutine.
type Process struct {
	cfg   Config
	cmd   *exec.Cmd
	stdin io.Closer
	line  string

	done chan struct{} // closed after err is set
	err  error
}

// outputDelay is how long the output of an ended process may be held open by others that inherited it.
const outputDelay = time.Second

// Start runs the process and waits until it is ready. When it ends before that, or ctx does, the process is killed and the
// error has the last lines of its log. ctx does not bound the process's life after Start.
func Start(ctx context.Context, cfg Config) (*Process, error) {
	log, err := os.OpenFile(cfg.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	out := &readyWriter{w: log, ready: cfg.Ready, found: make(chan string, 1)}
	p := &Process{cfg: cfg, cmd: exec.Command(cfg.Command[0], cfg.Command[1:]...), done: make(chan struct{})}
	settings := func(v string) bool { return strings.HasPrefix(v, "WANFED_") }
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), settings), cfg.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, log
	p.cmd.WaitDelay = outputDelay
	p.cmd.SysProcAttr = ownGroup()
	p.stdin, err = p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", cfg.Name, err), log.Close())
	}
	go func() {
		defer close(p.done)
		p.err = errors.Join(p.cmd.Wait(), log.Close())
	}()

	select {
	case p.line = <-out.found:
		return p, nil
	case <-p.done:
		return nil, fmt.Errorf("%s ended before it was ready: %w", cfg.Name, p.describe(p.err))
	case <-ctx.Done():
		p.Kill()
		return nil, fmt.Errorf("%s was not ready in time: %w", cfg.Name, p.describe(context.Cause(ctx)))
	}
}

// describe adds the end of the log to err, or to "no error" where a process ended well that should not have ended.
func (p *Process) describe(err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%w; the end of %s:\n%s", err, p.cfg.LogPath, strings.Join(p.Tail(10), "\n"))
}

// Name is the configured one.
func (p *Process) Name() string { return p.cfg.Name }

// Pid is the process's id, also after its end.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Command is the command line; the caller must not change it.
func (p *Process) Command() []string { return p.cfg.Command }

// LogPath is the file with the process's output.
func (p *Process) LogPath() string { return p.cfg.LogPath }

// Line is what the process said when it was ready.
func (p *Process) Line() string { return p.line }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended: nil for exit status 0, and as long as it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends sig; os.ErrProcessDone if the process has ended.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Stop asks the process to end and waits for that. When ctx ends first, the process is killed. It returns how the process
// ended, or that it had to be killed.
func (p *Process) Stop(ctx context.Context) error {
	if terminate(p.cmd.Process) != nil {
		p.stdin.Close()
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s did not stop in time and was killed: %w", p.cfg.Name, context.Cause(ctx))
	}
}

// Kill ends the process at once and waits until it is gone. It may be called more than once, and after Stop.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the one error is that it has ended
	<-p.done
}

// tailBytes bounds how much of a log Tail reads.
const tailBytes = 64 << 10

// Tail returns the last n lines of the process's log, fewer if it is shorter. What cannot be read is empty.
func (p *Process) Tail(n int) []string {
	f, err := os.Open(p.cfg.LogPath)
	if err != nil {
		return nil
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, end-tailBytes), io.SeekStart)
	}
	b, _ := io.ReadAll(f)
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

// readyWriter copies to w and looks for the ready line. One goroutine writes to it.
type readyWriter struct {
	w     io.Writer
	ready func(string) bool
	found chan string // size 1, for the one line

	said bool
	part []byte // of a line that has not ended
}

// maxLine bounds the part of a line that is kept.
const maxLine = 64 << 10

func (r *readyWriter) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	if r.said || err != nil {
		return n, err
	}
	r.part = append(r.part, b...)
	for {
		line, rest, ok := strings.Cut(string(r.part), "\n")
		if !ok {
			break
		}
		r.part = []byte(rest)
		if r.ready(strings.TrimSuffix(line, "\r")) {
			r.said, r.part = true, nil
			r.found <- line
			return n, nil
		}
	}
	if len(r.part) > maxLine {
		r.part = nil
	}
	return n, nil
}
