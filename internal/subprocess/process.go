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
	"strconv"
	"strings"
	"time"
)

// Config configures a process.
type Config struct {
	// Name is the name in errors, for example dc1/srv1. Required.
	Name string
	// Command is the program and its arguments. Required.
	Command []string
	// Env has additional environment variables. The process inherits the
	// variables of this process, except the settings of wanfed (WANFED_...).
	Env []string
	// LogPath is the file to which stdout and stderr are appended. Required.
	LogPath string
	// Ready reports whether a line of stdout means that the process is ready.
	// Required.
	Ready func(line string) bool
}

// Process is a process that became ready. It is safe for concurrent use.
type Process struct {
	cfg   Config
	cmd   *exec.Cmd
	stdin io.Closer
	line  string

	done chan struct{} // closed after err is set
	err  error
}

// outputDelay is the maximum time for which Process waits for output after its
// process has ended, because other processes may have the output open.
const outputDelay = time.Second

// Start runs the process and waits until the process is ready. If the process
// or ctx ends first, Start kills the process and returns an error with the last
// lines of its log. The end of ctx after Start does not affect the process.
func Start(ctx context.Context, cfg Config) (*Process, error) {
	log, err := os.OpenFile(cfg.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	out := &readyWriter{w: log, ready: cfg.Ready, found: make(chan string, 1)}
	p := &Process{cfg: cfg, cmd: exec.Command(cfg.Command[0], cfg.Command[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(Environ(), cfg.Env...)
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

// Environ returns the environment of this process except the settings of wanfed
// (WANFED_...), which are for the commands of the user.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WANFED_") })
}

// describe adds the last lines of the log to err. A nil err is exit status 0.
func (p *Process) describe(err error) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%w; last lines of %s:\n%s", err, p.cfg.LogPath, strings.Join(p.Tail(10), "\n"))
}

// Name returns the configured name.
func (p *Process) Name() string { return p.cfg.Name }

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Command returns the command line. The caller must not change it.
func (p *Process) Command() []string { return p.cfg.Command }

// LogPath returns the path of the log file.
func (p *Process) LogPath() string { return p.cfg.LogPath }

// Line returns the line that reported readiness.
func (p *Process) Line() string { return p.line }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the result of the process. It returns nil for exit status 0, and
// while the process runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends sig. It returns os.ErrProcessDone if the process has ended.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Stop sends SIGTERM, waits for the end of the process and returns its result.
// If ctx ends first, Stop kills the process and returns an error.
func (p *Process) Stop(ctx context.Context) error {
	if terminate(p.cmd.Process) != nil { // Windows has no SIGTERM: StopOnEOF stops the process
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

// Kill kills the process and waits for its end. It may be called again, also
// after Stop.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if the process has ended
	<-p.done
}

// tailBytes limits the part of a log that Tail reads.
const tailBytes = 64 << 10

// Tail returns the last n lines of the log, or fewer if the log is shorter or
// cannot be read.
func (p *Process) Tail(n int) []string {
	return strings.Split(tail(p.cfg.LogPath, n), "\n")
}

// TailFile returns the last bytes of a file, at most limit, also if other
// processes write to it.
func TailFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, end-limit), io.SeekStart)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// readyWriter copies its input to w and searches for the line that reports
// readiness. Only one goroutine uses it.
type readyWriter struct {
	w     io.Writer
	ready func(string) bool
	found chan string // size 1: receives at most one line

	done bool
	part []byte // beginning of an incomplete line
}

// maxLine limits the length of readyWriter.part in bytes.
const maxLine = 64 << 10

func (r *readyWriter) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	if r.done || err != nil {
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
			r.done, r.part = true, nil
			r.found <- line
			return n, nil
		}
	}
	if len(r.part) > maxLine {
		r.part = nil
	}
	return n, nil
}

// StopOnEOF is the flag that makes a wanfed process stop when its stdin ends.
const StopOnEOF = "stop-on-eof"

// ErrParentGone is the cause of the end of a context of UntilEOF.
var ErrParentGone = errors.New("stdin has ended: the process that started this one is gone")

// UntilEOF returns a context that ends with ctx or at the end of r. Its
// goroutine ends at the end of r, not with ctx. Therefore UntilEOF is intended
// for os.Stdin in the main function.
func UntilEOF(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel(ErrParentGone)
	}()
	return ctx
}

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// CPUTime returns the processor time of the process, with a resolution of 10
// ms. It works only on Linux.
func (p *Process) CPUTime() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.cfg.Name, err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("processor time of %s: its stat is short", p.cfg.Name)
	}
	// The fields utime and stime of proc(5) have the numbers 14 and 15. The
	// field after ")" has the number 3.
	user, uerr := strconv.ParseInt(fields[11], 10, 64)
	system, serr := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(uerr, serr)
}
