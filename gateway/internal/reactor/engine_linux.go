// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"time"
)

// Supported is true if this system has the system calls of the engine.
const Supported = true

// Engine forwards connections with one worker per processor.
type Engine struct {
	Config
	start   time.Time
	workers []*worker
	open    atomic.Int64    // connections of all workers
	serving context.Context // of goroutines other than the workers; stored because events carry no context
	failed  chan error      // size 1: the first failure of a listener
}

// New returns an engine, or nil if it cannot serve the listeners: they must be
// TCP sockets.
func New(cfg Config) *Engine {
	for _, l := range cfg.Listeners {
		if _, ok := l.Listener.(*net.TCPListener); !ok {
			return nil
		}
	}
	return &Engine{Config: cfg, start: time.Now(), failed: make(chan error, 1)}
}

// Serve accepts and forwards connections until ctx ends. Then it closes the
// listeners, lets connections continue for the drain time, and closes the
// remaining connections. It joins its goroutines, but not the goroutines of the
// Dialer. It returns the error of a listener, or nil. It may be called once.
func (e *Engine) Serve(ctx context.Context) (err error) {
	var stop context.CancelFunc
	e.serving, stop = context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	for n := runtime.GOMAXPROCS(0); len(e.workers) < n; {
		w, err := openWorker(e, n)
		e.workers = append(e.workers, w)
		defer w.close()
		if err != nil {
			return errors.Join(err, e.closeListeners())
		}
	}
	// The workers have their own descriptors of the sockets.
	if err := e.closeListeners(); err != nil {
		return err
	}
	done := make(chan error, len(e.workers))
	for _, w := range e.workers {
		go func() { done <- w.run() }()
	}
	left := len(e.workers)
	defer func() {
		for ; left > 0; left-- {
			err = errors.Join(err, <-done)
		}
	}()
	select {
	case <-ctx.Done():
	case err = <-e.failed:
	case err = <-done:
		left--
	}
	e.broadcast(stopAccepting)
	over, endDrain := e.Drain()
	defer endDrain()
	for draining := true; draining && left > 0; {
		select {
		case one := <-done:
			err = errors.Join(err, one)
			left--
		case <-over:
			draining = false
		}
	}
	stop()
	e.broadcast(closeAll)
	return err
}

func (e *Engine) closeListeners() error {
	var errs []error
	for _, l := range e.Listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

func (e *Engine) broadcast(kind messageKind) {
	for _, w := range e.workers {
		w.send(message{kind: kind})
	}
}

// fail ends the engine because of a listener.
func (e *Engine) fail(err error) {
	select {
	case e.failed <- err:
	default:
	}
}
