// SPDX-License-Identifier: MPL-2.0

package hotrestart

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
)

// environ is the environment variable that describes the inherited sockets. Its
// name must not change, because the two processes may have different versions.
const environ = "WANFED_HANDOVER"

// message is the JSON value of the variable. Descriptor 3 is the pipe. The
// sockets follow in the order of their names.
type message struct {
	Sockets []string `json:"sockets"` // names
}

const (
	pipeFD      = 3
	firstSocket = 4
	maxSockets  = 1024
	readyWord   = "ready\n"

	firstActivated = 3 // first socket of the service manager (sd_listen_fds)
)

// Inherited holds the sockets that this process received from the old process
// or from the service manager. The methods of an empty Inherited return no
// sockets. An Inherited is not safe for concurrent use.
type Inherited struct {
	pipe      *os.File       // pipe to the old process; nil: none
	sockets   []Socket       // sockets of the old process that were not taken yet
	activated []net.Listener // sockets of the service manager that were not taken yet
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
				"write ListenStream=IP:PORT in its unit", firstActivated+i), err)
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

// HasParent reports whether an old process started this process.
func (in *Inherited) HasParent() bool { return in.pipe != nil }

// Listener returns the socket with that name. ok is false if no such socket
// exists or the socket was already taken.
func (in *Inherited) Listener(name string) (ln net.Listener, ok bool, err error) {
	i := slices.IndexFunc(in.sockets, func(s Socket) bool { return s.Name == name })
	if i < 0 {
		return nil, false, nil
	}
	file := in.sockets[i].File
	in.sockets = slices.Delete(in.sockets, i, i+1)
	ln, err = net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, false, fmt.Errorf("take over socket %s from the old process: %w", name, err)
	}
	return ln, true, nil
}

// Activated returns the socket that the service manager opened for addr
// (ip:port). ok is false if no such socket exists or the socket was already
// taken.
func (in *Inherited) Activated(addr string) (ln net.Listener, ok bool) {
	want, err := netip.ParseAddrPort(addr)
	i := slices.IndexFunc(in.activated, func(ln net.Listener) bool {
		return err == nil && sameAddr(want, ln.Addr().(*net.TCPAddr).AddrPort())
	})
	if i < 0 {
		return nil, false
	}
	ln = in.activated[i]
	in.activated = slices.Delete(in.activated, i, i+1)
	return ln, true
}

// sameAddr reports whether two listen addresses are equal. The unspecified
// addresses of IPv4 and IPv6 count as equal: systemd opens "[::]" for a bare
// port.
func sameAddr(a, b netip.AddrPort) bool {
	x, y := a.Addr().Unmap(), b.Addr().Unmap()
	return a.Port() == b.Port() && (x == y || x.IsUnspecified() && y.IsUnspecified())
}

// CheckActivated returns an error if a socket of the service manager was not
// taken, because the clients of that socket would wait indefinitely.
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

// Ready notifies the old process that this process serves, and closes the
// sockets that were not taken.
func (in *Inherited) Ready() error {
	if in.pipe == nil {
		return nil
	}
	_, err := in.pipe.WriteString(readyWord)
	return errors.Join(err, in.Close())
}

// Close closes the sockets that were not taken. If Ready was not called, the
// old process continues to serve.
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
