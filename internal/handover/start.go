// SPDX-License-Identifier: MPL-2.0

package handover

import (
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

	"golang.org/x/sys/unix"
)

// Socket is a listening socket and the name by which the new process finds it.
type Socket struct {
	Name string
	File *os.File // a duplicate, which stays the caller's
}

// Duplicate makes the Socket of a listener on TCP or in the file system. The caller closes its File.
func Duplicate(name string, ln net.Listener) (Socket, error) {
	l, ok := ln.(syscall.Conn)
	if !ok {
		return Socket{}, fmt.Errorf("%s: a %T cannot be handed over", name, ln)
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return Socket{}, fmt.Errorf("%s: %w", name, err)
	}
	// The file that ln.File gives makes the socket block, also in ln, once it is inherited.
	var fd int
	var dup error
	if err = raw.Control(func(of uintptr) { fd, dup = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
		err = dup
	}
	if err != nil {
		return Socket{}, fmt.Errorf("%s: %w", name, err)
	}
	return Socket{name, os.NewFile(uintptr(fd), name)}, nil
}

// Config of a new process.
type Config struct {
	// Program is its file, Args what it is called with, without its name. Required: Program.
	Program string
	Args    []string
	// Sockets are what it inherits.
	Sockets []Socket
	// Timeout is how long it may take until it is ready. Default 30 s.
	Timeout time.Duration
}

// Program is the file of the program that runs, as it was called: a link that leads to a newer version by now is followed then.
func Program() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("find the program to start: %w", err)
	}
	return path, nil
}

// endTime is how long a new process that gave up may take to end.
const endTime = time.Second

// Start starts the new process, waits until it is ready, and returns its number. Else there is no new process when it returns;
// the error says what the new one lacked, and more is on its standard error.
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
	timeout := cfg.Timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it was not ready within %v", timeout))
	defer cancel()
	if err := await(ctx, r); err != nil {
		patience := time.Duration(0)
		if errors.Is(err, errEnded) {
			patience = endTime // to end by itself
		}
		kill := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		end := cmd.Wait()
		kill.Stop()
		if errors.Is(err, errEnded) {
			err = fmt.Errorf("%w (%v)", err, end)
		}
		return 0, fmt.Errorf("new process %s: %w", cfg.Program, err)
	}
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release()
}

var errEnded = errors.New("it ended, or gave up, before it was ready; its last lines on stderr say why")

// await waits for the word on the pipe, or for ctx.
func await(ctx context.Context, r *os.File) error {
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
	return errEnded
}
