// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/wanfed/wanfed/internal/hotrestart"
)

// listeners closes what was opened, if whoever serves it has not done so, and keeps a duplicate of each socket for a new process
// to take over.
type listeners struct {
	inherited *hotrestart.Inherited
	open      []net.Listener
	sockets   []hotrestart.Socket
}

// listen takes over the socket that an old process had for this setting, or that the service manager opened for its address, or
// opens one.
func (l *listeners) listen(setting, addr string) (net.Listener, error) {
	name := setting + " " + addr
	ln, ok, err := l.inherited.Listener(name)
	if !ok && err == nil {
		ln, ok = l.inherited.Activated(addr)
	}
	if !ok && err == nil {
		// The gateway sets its own keepalive; HTTP has idle timeouts. What a listener of MPTCP accepts costs more.
		lc := net.ListenConfig{KeepAlive: -1}
		lc.SetMultipathTCP(false)
		ln, err = lc.Listen(context.Background(), "tcp", addr)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: the port is taken by another process; stop it (see: ss -ltnp), or choose another", setting, addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && setting == "wan":
		return nil, fmt.Errorf("wan %s is no address of this machine; behind NAT, say with wan_bind where to listen", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s %s is no address of this machine; name one that is (see: ip address)", setting, addr)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s %s: the port may not be taken by this user; choose one above 1023, have systemd open the socket, "+
			"or give the program CAP_NET_BIND_SERVICE", setting, addr)
	case err != nil:
		return nil, fmt.Errorf("%s: listen on %s: %w", setting, addr, err)
	}
	l.open = append(l.open, ln)
	s, err := hotrestart.Duplicate(name, ln)
	if err != nil {
		return nil, err
	}
	l.sockets = append(l.sockets, s)
	return ln, nil
}

// release closes the duplicates: when whoever serves the listeners has closed them, connections are refused, unless another
// process has the sockets too.
func (l *listeners) release() error {
	var errs []error
	for _, s := range l.sockets {
		errs = append(errs, s.File.Close())
	}
	l.sockets = nil
	return errors.Join(errs...)
}

func (l *listeners) close() error {
	errs := []error{l.release(), l.inherited.Close()}
	for _, ln := range l.open {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
