// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// listeners closes what was opened, if whoever serves it has not done so.
type listeners struct{ open []net.Listener }

func (l *listeners) listen(setting, addr string) (net.Listener, error) {
	// The gateway sets its own keepalive; HTTP has idle timeouts.
	ln, err := (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: the port is taken by another process; stop it (see: ss -ltnp), or choose another", setting, addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s %s is no address of this machine; behind NAT, say with wan_bind where to listen", setting, addr)
	case err != nil:
		return nil, fmt.Errorf("%s: listen on %s: %w", setting, addr, err)
	}
	l.open = append(l.open, ln)
	return ln, nil
}

func (l *listeners) close() error {
	var errs []error
	for _, ln := range l.open {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
