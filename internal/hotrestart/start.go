// SPDX-License-Identifier: MPL-2.0

package hotrestart

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Socket is a named listening socket. The new process finds a socket by its
// name.
type Socket struct {
	Name string
	File *os.File // duplicate of the socket; the caller closes it
}

// Duplicate returns a Socket for a listener on TCP or on a Unix socket. The
// caller closes its File.
func Duplicate(name string, ln net.Listener) (Socket, error) {
	l, ok := ln.(syscall.Conn)
	if !ok {
		return Socket{}, fmt.Errorf("%s: a %T has no socket to duplicate", name, ln)
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return Socket{}, fmt.Errorf("%s: %w", name, err)
	}
	// Do not use ln.File: a child that inherits that file sets the socket to
	// blocking mode, also for ln.
	var fd int
	var dup error
	err = raw.Control(func(of uintptr) { fd, dup = duplicate(of) })
	if err := cmp.Or(err, dup); err != nil {
		return Socket{}, fmt.Errorf("%s: %w", name, err)
	}
	return Socket{name, os.NewFile(uintptr(fd), name)}, nil
}

// Config describes the new process.
type Config struct {
	// Program is the path of the program. Required.
	Program string
	// Args are the arguments without the program name.
	Args []string
	// Sockets are the sockets that the new process inherits.
	Sockets []Socket
	// Timeout is the maximum time until the new process is ready. Default 30 s.
	Timeout time.Duration
}

// Program returns the path from which this process was started. Program does
// not resolve symbolic links, because a link may point to a newer version when
// Start is called.
func Program() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("find the program to start: %w", err)
	}
	return path, nil
}

const (
	defaultTimeout = 30 * time.Second
	// exitTimeout is the maximum time between the closing of the pipe by the
	// new process and its exit.
	exitTimeout = time.Second
)

// Start starts the new process, waits until the process is ready and returns
// its process id. If Start returns an error, the new process has ended. The
// error has the reason, and the standard error of the new process has the
// details.
func Start(ctx context.Context, cfg Config) (pid int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	cmd := exec.Command(cfg.Program, cfg.Args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{w}
	var m message
	for _, s := range cfg.Sockets {
		m.Sockets = append(m.Sockets, s.Name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.File)
	}
	value, err := json.Marshal(m)
	if err == nil {
		cmd.Env = append(os.Environ(), environ+"="+string(value))
		err = cmd.Start()
	}
	w.Close()
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", cfg.Program, err)
	}
	timeout := cmp.Or(cfg.Timeout, defaultTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready within %v", timeout))
	defer cancel()
	if err := awaitReady(ctx, r); err != nil {
		return 0, fmt.Errorf("new process %s: %w", cfg.Program, end(cmd, err))
	}
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release()
}

// end waits for the end of a process that failed with err. A process that
// closed the pipe usually exits by itself, so end kills it only after
// exitTimeout. After any other failure, end kills the process at once.
func end(cmd *exec.Cmd, err error) error {
	if !errors.Is(err, errExited) {
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	kill := time.AfterFunc(exitTimeout, func() { cmd.Process.Kill() })
	defer kill.Stop()
	return fmt.Errorf("%w (%v)", err, cmd.Wait())
}

var errExited = errors.New("exited, or closed its pipe, before it was ready; its last lines on stderr have the reason")

// awaitReady waits until the new process writes readyWord to the pipe.
func awaitReady(ctx context.Context, r *os.File) error {
	stop := context.AfterFunc(ctx, func() { r.SetReadDeadline(time.Now()) })
	defer stop()
	b := make([]byte, len(readyWord))
	_, err := io.ReadFull(r, b)
	switch {
	case err == nil && string(b) == readyWord:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return errExited
}
