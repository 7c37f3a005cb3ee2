// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Detached is a process in a session of its own, which continues after this
// process has ended.
type Detached struct {
	name, log string
	pid       int
	done      chan error // size 1: receives the result when the process ends first
}

// StartDetached starts a command without waiting until it is ready. Its output
// is appended to the file log. The process has no stdin, and inherits the
// environment except the settings of wanfed (WANFED_...). name is for errors.
func StartDetached(name string, command []string, log string) (*Detached, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	defer out.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = Environ()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = ownSession()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	d := &Detached{name: name, log: log, pid: cmd.Process.Pid, done: make(chan error, 1)}
	go func() { d.done <- cmd.Wait() }()
	return d, nil
}

// Pid returns the process id.
func (d *Detached) Pid() int { return d.pid }

// Err returns nil while the process runs. Otherwise it returns an error with the
// last lines of the log.
func (d *Detached) Err() error {
	select {
	case err := <-d.done:
		if err == nil {
			err = errors.New("exit status 0")
		}
		d.done <- err
		return fmt.Errorf("the %s has ended: %w; last lines of %s:\n%s", d.name, err, d.log, tail(d.log, 10))
	default:
		return nil
	}
}

// tail returns the last n lines of a file.
func tail(path string, n int) string {
	b, _ := TailFile(path, tailBytes)
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
