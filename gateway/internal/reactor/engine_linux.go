// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Engine forwards connections with one worker per processor.
type Engine struct {
	Config
	start   time.Time
	workers []*worker
	open    atomic.Int64    // connections of all workers
	serving context.Context // of dials; a field, because events carry no context
	failed  chan error      // size 1: the first failure of a listener
}

// New returns an engine, or nil if a listener is not a TCP socket. On systems
// other than Linux it returns nil.
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
// Dialer. It returns the error of a listener, or nil. Serve may be called once.
func (e *Engine) Serve(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	e.serving = serving
	for n := runtime.GOMAXPROCS(0); len(e.workers) < n; {
		w, err := openWorker(e, n)
		e.workers = append(e.workers, w)
		defer w.close()
		if err != nil {
			return errors.Join(err, e.closeListeners())
		}
	}
	// Each worker has a duplicate of each socket, so the originals can close.
	if err := e.closeListeners(); err != nil {
		return err
	}
	workers, accepting := errgroup.WithContext(ctx)
	for _, w := range e.workers {
		workers.Go(w.run)
	}
	workers.Go(func() error {
		select {
		case err := <-e.failed:
			return err
		case <-accepting.Done():
			return nil
		}
	})
	<-accepting.Done()
	e.broadcast((*worker).stopAccepting)
	var err error
	e.Drain(func() { err = workers.Wait() }, func() {
		stop()
		e.broadcast((*worker).closeConns)
	})
	return err
}

func (e *Engine) closeListeners() error {
	var errs []error
	for _, l := range e.Listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// broadcast sends a message to each worker.
func (e *Engine) broadcast(message func(*worker)) {
	for _, w := range e.workers {
		w.send(message)
	}
}
