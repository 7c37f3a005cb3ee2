// SPDX-License-Identifier: MPL-2.0

package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// environ is the variable that tells a new process what it inherits.
const environ = "WANFED_HANDOVER"

// message is the value of the variable, as JSON. Descriptors are numbered from 3 on: the pipe, then the sockets in their order.
type message struct {
	Sockets []string `json:"sockets"` // names
}

const (
	pipeFD      = 3
	firstSocket = 4
	maxSockets  = 1024
	readyWord   = "ready\n"
)

// Inherited is what an old process, or the service manager, hands over to this one. That of a process that nobody started so is
// empty, and all its methods work. It is for one goroutine.
type Inherited struct {
	pipe      *os.File       // nil: there is no old process
	sockets   []socket       // not taken yet
	activated []net.Listener // by the service manager; not taken yet
}

type socket struct {
	name string
	file *os.File
}

// Take finds out what this process inherits. It may be called once, before the process starts others.
func Take() (*Inherited, error) {
	activated, err := takeActivated()
	if err != nil {
		return nil, err
	}
	value := os.Getenv(environ)
	if value == "" {
		return &Inherited{activated: activated}, nil
	}
	if err := os.Unsetenv(environ); err != nil {
		return nil, err
	}
	var m message
	if err := json.Unmarshal([]byte(value), &m); err != nil || len(m.Sockets) > maxSockets {
		return nil, fmt.Errorf("environment variable %s is not what an old process would set; unset it: %q", environ, value)
	}
	in := &Inherited{activated: activated}
	in.pipe = inherit(pipeFD, "handover")
	for i, name := range m.Sockets {
		in.sockets = append(in.sockets, socket{name, inherit(firstSocket+i, name)})
	}
	return in, nil
}

func inherit(fd int, name string) *os.File {
	syscall.CloseOnExec(fd) // what this process starts does not inherit it too
	return os.NewFile(uintptr(fd), name)
}

// From says whether there is an old process.
func (in *Inherited) From() bool { return in.pipe != nil }

// Listener returns the socket of that name, once for each that there is; ok is false if there is none (left).
func (in *Inherited) Listener(name string) (ln net.Listener, ok bool, err error) {
	for i, s := range in.sockets {
		if s.name != name {
			continue
		}
		in.sockets = append(in.sockets[:i:i], in.sockets[i+1:]...)
		ln, err := net.FileListener(s.file)
		if err = errors.Join(err, s.file.Close()); err != nil {
			return nil, false, fmt.Errorf("take over %s from the old process: %w", name, err)
		}
		return ln, true, nil
	}
	return nil, false, nil
}

// Ready tells the old process that this one serves, and closes the sockets that were not taken.
func (in *Inherited) Ready() error {
	if in.pipe == nil {
		return nil
	}
	_, err := in.pipe.WriteString(readyWord)
	return errors.Join(err, in.Close())
}

// Close gives up what was not taken. Without Ready before it, the old process goes on.
func (in *Inherited) Close() error {
	var errs []error
	for _, s := range in.sockets {
		errs = append(errs, s.file.Close())
	}
	in.sockets = nil
	errs = append(errs, closeListeners(in.activated))
	in.activated = nil
	if in.pipe != nil {
		errs = append(errs, in.pipe.Close())
		in.pipe = nil
	}
	return errors.Join(errs...)
}
