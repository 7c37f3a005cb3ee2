// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Engine names a way to move bytes.
type Engine string

// The engines. They do the same; connections cost less with EngineEpoll.
const (
	// EngineNet has two goroutines for each connection and runs everywhere.
	EngineNet Engine = "net"
	// EngineEpoll has one goroutine for each processor, which own their connections and wait for events on them. It needs
	// Linux, TCP listeners, and upstreams that it dials itself.
	EngineEpoll Engine = "epoll"
)

// engine does the work of a Proxy.
type engine interface {
	// serve takes connections from the listeners until ctx ends and forwards them. Then it closes the listeners, lets open
	// connections go on for the time of the drain, and ends those that are left. It joins what it started. An error is that
	// of a listener.
	serve(ctx context.Context, listeners []boundSocket) error
}

func (e Engine) check() error {
	switch e {
	case "", EngineNet:
		return nil
	case EngineEpoll:
		if epollWorks {
			return nil
		}
		return errors.New("engine epoll needs Linux; leave it out")
	}
	return fmt.Errorf("engine %q is not known; write %q or %q, or leave it out", e, EngineNet, EngineEpoll)
}

// chooseEngine makes the engine that was asked for, if it can serve these listeners.
func (p *Proxy) chooseEngine(listeners []boundSocket) engine {
	if p.wantsEpoll() {
		if e := newEpollEngine(p, listeners); e != nil {
			return e
		}
	}
	if p.kind == EngineEpoll {
		p.log.Warn("engine epoll cannot serve these listeners; using engine net")
	}
	return newNetEngine(p)
}

// wantsEpoll says whether EngineEpoll is chosen if the listeners allow it.
func (p *Proxy) wantsEpoll() bool { return epollWorks && p.kind != EngineNet && !p.custom }

// Limits of the pause after a failed Accept.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// passing says whether Accept may work again after this error: the process or the system has run out of something, or the
// error belongs to a connection that came and went (accept(2), "Error handling"). Errors of the listener itself stay.
func passing(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EOPNOTSUPP, syscall.EFAULT:
		return false
	}
	return true
}
