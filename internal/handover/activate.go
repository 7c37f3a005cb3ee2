// SPDX-License-Identifier: MPL-2.0

package handover

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Variables of socket activation (sd_listen_fds(3)).
const (
	listenPID   = "LISTEN_PID"
	listenFDs   = "LISTEN_FDS"
	listenNames = "LISTEN_FDNAMES"
)

// takeActivated takes the sockets that the service manager opened for this process. Those that it opened for another, whose
// environment this one has, are not its business.
func takeActivated() ([]net.Listener, error) {
	pid, count := os.Getenv(listenPID), os.Getenv(listenFDs)
	for _, name := range []string{listenPID, listenFDs, listenNames} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxSockets {
		return nil, fmt.Errorf("environment variable %s is %q, not a number of sockets that a service manager would give", listenFDs, count)
	}
	var all []net.Listener
	for fd := pipeFD; fd < pipeFD+n; fd++ {
		f := inherit(fd, "activated")
		ln, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err == nil {
			all = append(all, ln)
		}
		if _, ok := ln.(*net.TCPListener); !ok {
			closeListeners(all)
			return nil, errors.Join(fmt.Errorf("socket %d of the service manager does not listen on TCP: write ListenStream=IP:PORT in its unit", fd), err)
		}
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

// Activated returns the socket that the service manager opened for this address (ip:port), if it did: once.
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

// sameAddr says whether two addresses to listen on are the same. What stands for every address does so in both versions of IP:
// systemd opens "[::]" for a mere port.
func sameAddr(a, b netip.AddrPort) bool {
	x, y := a.Addr().Unmap(), b.Addr().Unmap()
	return a.Port() == b.Port() && (x == y || x.IsUnspecified() && y.IsUnspecified())
}

// CheckActivated returns an error if the service manager opened a socket that was not taken: clients would wait at it for ever.
func (in *Inherited) CheckActivated() error {
	if len(in.activated) == 0 {
		return nil
	}
	var addrs []string
	for _, ln := range in.activated {
		addrs = append(addrs, ln.Addr().String())
	}
	return fmt.Errorf("the service manager opened %s, and no setting says to listen there: change ListenStream= in the socket's unit, or the settings", strings.Join(addrs, ", "))
}
