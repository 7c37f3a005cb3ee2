// SPDX-License-Identifier: MPL-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/automation/driver"
)

// Run runs the program and blocks until it has ended. It returns the exit
// status, or 128 plus the number of the signal that ended the program. The error
// is driver.ErrTimedOut or driver.ErrInterrupted if the program was interrupted,
// even if its exit status is 0. The status is -1 if the program did not start.
func (p Program) Run(ctx context.Context) (status int, err error) {
	if ctx.Err() != nil {
		return -1, driver.ErrInterrupted
	}
	if err := mayStart(p.Dir); err != nil {
		return -1, err
	}
	boot, err := bootID()
	if err != nil {
		return -1, err
	}
	if err := os.Remove(filepath.Join(p.Dir, interruptedName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return -1, err
	}
	rec := &Record{ID: p.ID, Step: p.Step, Started: time.Now(), Timeout: p.Timeout, Grace: p.Grace, Boot: boot, dir: p.Dir}
	// A daemon that dies between the start and the second write leaves a record
	// without a process. Find then looks for the id of the run.
	if err := rec.write(); err != nil {
		return -1, fmt.Errorf("write the record of the run: %w", err)
	}
	cmd, err := p.start()
	if err != nil {
		return -1, fmt.Errorf("start %s: %w", p.Args[0], err)
	}
	rec.PID = cmd.Process.Pid
	var end pidfd
	if err = mayStart(p.Dir); err == nil {
		end, err = open(rec.PID)
	}
	if err == nil {
		rec.Ticks, err = startTicks(rec.PID)
	}
	if err == nil {
		err = rec.write()
	}
	if err != nil {
		// A program after its time, and one without a record, must not run.
		unix.Kill(-rec.PID, unix.SIGKILL)
		_ = end.Close()
		_ = cmd.Wait()
		return -1, fmt.Errorf("record the start of %s: %w", p.Args[0], err)
	}
	err = end.wait(ctx, rec, p.Timeout)
	if errors.Is(err, errAlive) {
		return -1, err
	}
	// The program is not reaped yet, so the id of its group is not in use again.
	unix.Kill(-rec.PID, unix.SIGKILL)
	_ = cmd.Wait() // an exit status is not an error
	if err != nil {
		kill(rec.ID)
	}
	// Without this file, Wait looks for processes of the run, which takes longer.
	_ = os.WriteFile(filepath.Join(p.Dir, endedName), []byte(rec.start()), 0o600)
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), err
	}
	return ws.ExitStatus(), err
}

func (p Program) start() (*exec.Cmd, error) {
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env = p.Dir, slices.Concat(p.Env, []string{RunVariable + "=" + p.ID})
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = p.Stdout, p.Stderr, p.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.Stdin != "" {
		in, err := os.Open(p.Stdin)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		cmd.Stdin = in
	}
	// This process may have been stopped for a while since the last check. It may be
	// stopped here too, so Run checks again after the start.
	if err := mayStart(p.Dir); err != nil {
		return nil, err
	}
	return cmd, cmd.Start()
}

// Wait waits for the program of the record, if it still runs, with the timeout
// and the grace period of the record. It then kills the descendants that the
// program has left. The error is driver.ErrTimedOut or driver.ErrInterrupted if
// the program was interrupted.
func (r *Record) Wait(ctx context.Context) error {
	if r.ended {
		return nil
	}
	if boot, err := bootID(); err != nil || boot != r.Boot {
		return err // no program survives the end of its system
	}
	if r.PID == 0 {
		r.PID, r.Ticks = leader(r.ID)
	}
	err := r.waitProgram(ctx)
	if !errors.Is(err, errAlive) {
		kill(r.ID)
	}
	return err
}

func (r *Record) waitProgram(ctx context.Context) error {
	if r.PID == 0 {
		return nil
	}
	end, err := open(r.PID)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	ticks, err := startTicks(r.PID)
	if err != nil || ticks != r.Ticks {
		return end.Close() // another process has the id
	}
	age, err := age(ticks)
	if err != nil {
		return errors.Join(err, end.Close())
	}
	return end.wait(ctx, r, r.Timeout-age)
}

// errAlive is the error of wait for a process that SIGKILL has not ended.
var errAlive = errors.New("SIGKILL has not ended the program: it waits for a device or a file system")

// pidfd refers to a process. It is readable when the process has ended.
type pidfd struct{ *os.File }

func open(pid int) (pidfd, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return pidfd{}, fmt.Errorf("open process %d: %w", pid, err)
	}
	return pidfd{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// wait waits for the end of the process, which leads the process group r.PID,
// interrupts the group at the end of ctx or after the timeout, and kills it
// after the grace period. It closes f.
func (f pidfd) wait(ctx context.Context, r *Record, timeout time.Duration) (err error) {
	ended := make(chan struct{})
	raw, err := f.SyscallConn()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	go func() {
		defer close(ended)
		_ = raw.Read(func(fd uintptr) bool { // ends with an error when f is closed
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
	}()
	defer func() {
		f.Close()
		<-ended
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	check := time.NewTicker(outputInterval)
	defer check.Stop()
	for err == nil {
		select {
		case <-ended:
			return nil
		case <-check.C:
			_ = limitOutput(r.dir, maxOutput) // repeated at the next check
		case <-ctx.Done():
			err = driver.ErrInterrupted
		case <-timer.C:
			err = driver.ErrTimedOut
		}
	}
	select {
	case <-ended: // at the same moment
		return nil
	default:
	}
	if r.firstInterrupt() {
		unix.Kill(-r.PID, unix.SIGINT)
	}
	unix.Kill(-r.PID, unix.SIGCONT) // a stopped process handles SIGINT now
	timer.Reset(r.Grace)
	select {
	case <-ended:
		return err
	case <-timer.C:
	}
	unix.Kill(-r.PID, unix.SIGKILL)
	timer.Reset(killTime)
	select {
	case <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("process %d: %w", r.PID, errAlive)
	}
}
