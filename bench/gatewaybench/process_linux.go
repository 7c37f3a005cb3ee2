// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits for starting and stopping a process.
const (
	startTimeout = 10 * time.Second
	stopTimeout  = 3 * time.Second
)

// process is a child process in its own process group.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed after err is set
	err  error
}

// startPinned starts a child process on one core. Its stderr is written to the
// file log, and so is its stdout unless cmd.Stdout is set. The calling
// goroutine must be locked to its thread: the kernel kills the child when that
// thread ends.
func startPinned(name string, core int, cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stderr = f
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, fmt.Errorf("run on core %d: %w", core, err)
	}
	err = errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &before))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process and all processes of its group.
func (p *process) stop() {
	_ = syscall.Kill(-p.pid(), syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
	}
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // descendants that still run
	<-p.done
}

// waitListening waits until addr accepts connections.
func (p *process) waitListening(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s exited at start (%v): %s", p.name, p.err, p.output())
		case <-ctx.Done():
			return fmt.Errorf("%s does not accept connections on %s: %w: %s", p.name, addr, err, p.output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// output returns the first 1000 bytes that the process has written.
func (p *process) output() string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 1000))
	return string(b)
}

// freeAddr returns an unused address of 127.0.0.1.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// cores returns the core of the proxy, and the core of the clients and servers.
// They are the same on a machine with one core.
func cores() (proxy, load int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, 0, os.NewSyscallError("sched_getaffinity", err)
	}
	var all []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		return 0, 0, fmt.Errorf("the CPU affinity of this process permits none of %d cores", runtime.NumCPU())
	}
	return all[min(1, len(all)-1)], all[0], nil
}
