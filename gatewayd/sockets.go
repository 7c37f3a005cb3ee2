// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/wanfed/wanfed/internal/hotrestart"
)

// sockets opens the listening sockets of a gateway. It keeps a duplicate of
// each socket for a hot restart.
type sockets struct {
	inherited  *hotrestart.Inherited
	open       []net.Listener
	duplicates []hotrestart.Socket
}

// listen takes over the socket of the old process for this setting, or the
// socket of the service manager for this address. Otherwise it opens a socket.
func (s *sockets) listen(setting, addr string) (net.Listener, error) {
	name := setting + " " + addr
	ln, ok, err := s.inherited.Listener(name)
	if !ok && err == nil {
		ln, ok = s.inherited.Activated(addr)
	}
	if !ok && err == nil {
		// Package gateway sets keepalive, and HTTP has idle timeouts. MPTCP
		// connections are slower.
		lc := net.ListenConfig{KeepAlive: -1}
		lc.SetMultipathTCP(false)
		ln, err = lc.Listen(context.Background(), "tcp", addr)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: the port is in use by another process; "+
			"stop it (see: ss -ltnp), or choose another port", setting, addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && setting == "wan":
		return nil, fmt.Errorf("wan %s is not an address of this machine; "+
			"behind NAT, set wan_bind to the address to listen on", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s %s is not an address of this machine; use one that is (see: ip address)",
			setting, addr)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s %s: this user may not use the port; choose one above 1023, "+
			"let systemd open the socket, or give the program CAP_NET_BIND_SERVICE", setting, addr)
	case err != nil:
		return nil, fmt.Errorf("%s: listen on %s: %w", setting, addr, err)
	}
	s.open = append(s.open, ln)
	dup, err := hotrestart.Duplicate(name, ln)
	if err != nil {
		return nil, err
	}
	s.duplicates = append(s.duplicates, dup)
	return ln, nil
}

// release closes the duplicates. When the listeners are also closed, the system
// refuses connections, unless another process has the sockets.
func (s *sockets) release() error {
	var errs []error
	for _, d := range s.duplicates {
		errs = append(errs, d.File.Close())
	}
	s.duplicates = nil
	return errors.Join(errs...)
}

func (s *sockets) close() error {
	errs := []error{s.release(), s.inherited.Close()}
	for _, ln := range s.open {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
