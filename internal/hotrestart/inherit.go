// SPDX-License-Identifier: MPL-2.0

package hotrestart

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
)

// environ is the variable that describes the inherited sockets to the new
// process. Its name stays as it is: the two processes may be of different
// versions.
const environ = "WANFED_HANDOVER"

// message is the value of the variable, as JSON. Descriptor 3 is the pipe, the
// sockets follow in their order.
type message struct {
	Sockets []string `json:"sockets"` // names
}

const (
	pipeFD      = 3
	firstSocket = 4
	maxSockets  = 1024
	readyWord   = "ready\n"
)

// Inherited holds the sockets that this process received from the old process
// or from the service manager. Without both, it is empty and all methods work.
// It is not safe for concurrent use.
type Inherited struct {
	pipe      *os.File       // nil: no old process started this one
	sockets   []Socket       // of the old process; not taken yet
	activated []net.Listener // of the service manager; not taken yet
}

// Inherit returns the inherited sockets of this process. Call it once, before
// this process starts other processes.
func Inherit() (*Inherited, error) {
	activated, err := activatedListeners()
	if err != nil {
		return nil, err
	}
	in := &Inherited{activated: activated}
	value := os.Getenv(environ)
	if value == "" {
		return in, nil
	}
	if err := os.Unsetenv(environ); err != nil {
		return nil, err
	}
	var m message
	if err := json.Unmarshal([]byte(value), &m); err != nil || len(m.Sockets) > maxSockets {
		return nil, fmt.Errorf("environment variable %s was not set by a wanfed process: %q; unset it", environ, value)
	}
	in.pipe = fileOf(pipeFD, "pipe")
	for i, name := range m.Sockets {
		in.sockets = append(in.sockets, Socket{name, fileOf(firstSocket+i, name)})
	}
	return in, nil
}

// fileOf wraps an inherited descriptor. Children of this process do not inherit
// it.
func fileOf(fd int, name string) *os.File {
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// activatedListeners returns the sockets that the service manager opened for
// this process.
func activatedListeners() ([]net.Listener, error) {
	var all []net.Listener
	var errs []error
	for i, f := range activation.Files(true) {
		ln, err := net.FileListener(f)
		errs = append(errs, f.Close())
		if err == nil {
			all = append(all, ln)
		}
		if _, ok := ln.(*net.TCPListener); !ok {
			errs = append(errs, fmt.Errorf("socket %d of the service manager does not listen on TCP; "+
				"write ListenStream=IP:PORT in its unit", pipeFD+i), err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, closeListeners(all))
	}
	return all, nil
}

func closeListeners(all []net.Listener) error {
	var errs []error
	for _, ln := range all {
		errs = append(errs, ln.Close())
	}
	return errors.Join(errs...)
}

// HasParent reports whether an old process started this one.
func (in *Inherited) HasParent() bool { return in.pipe != nil }

// Listener returns the socket with that name. Each socket is returned once. ok
// is false if no socket with that name is left.
func (in *Inherited) Listener(name string) (ln net.Listener, ok bool, err error) {
	for i, s := range in.sockets {
		if s.Name != name {
			continue
		}
		in.sockets = append(in.sockets[:i:i], in.sockets[i+1:]...)
		ln, err := net.FileListener(s.File)
		if err = errors.Join(err, s.File.Close()); err != nil {
			return nil, false, fmt.Errorf("take over socket %s from the old process: %w", name, err)
		}
		return ln, true, nil
	}
	return nil, false, nil
}

// Activated returns the socket that the service manager opened for addr
// (ip:port). Each socket is returned once.
func (in *Inherited) Activated(addr string) (net.Listener, bool) {
	want, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, false
	}
	for i, ln := range in.activated {
		if sameAddr(want, ln.Addr().(*net.TCPAddr).AddrPort()) {
			in.activated = append(in.activated[:i:i], in.activated[i+1:]...)
			return ln, true
		}
	}
	return nil, false
}

// sameAddr reports whether two listen addresses are the same. The unspecified
// addresses of IPv4 and IPv6 are equal: systemd opens "[::]" for a bare port.
func sameAddr(a, b netip.AddrPort) bool {
	x, y := a.Addr().Unmap(), b.Addr().Unmap()
	return a.Port() == b.Port() && (x == y || x.IsUnspecified() && y.IsUnspecified())
}

// CheckActivated returns an error if a socket of the service manager was not
// taken: its clients would wait indefinitely.
func (in *Inherited) CheckActivated() error {
	if len(in.activated) == 0 {
		return nil
	}
	var addrs []string
	for _, ln := range in.activated {
		addrs = append(addrs, ln.Addr().String())
	}
	return fmt.Errorf("the service manager opened %s, but no setting has this address; "+
		"change ListenStream= in the unit of the socket, or the settings", strings.Join(addrs, ", "))
}

// Ready notifies the old process that this one serves, and closes the sockets
// that were not taken.
func (in *Inherited) Ready() error {
	if in.pipe == nil {
		return nil
	}
	_, err := in.pipe.WriteString(readyWord)
	return errors.Join(err, in.Close())
}

// Close closes the sockets that were not taken. If Ready was not called before,
// the old process continues to serve.
func (in *Inherited) Close() error {
	var errs []error
	for _, s := range in.sockets {
		errs = append(errs, s.File.Close())
	}
	errs = append(errs, closeListeners(in.activated))
	if in.pipe != nil {
		errs = append(errs, in.pipe.Close())
	}
	*in = Inherited{}
	return errors.Join(errs...)
}
