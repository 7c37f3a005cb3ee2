// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"time"
)

const epollWorks = true

// epollEngine is the engine of EngineEpoll: one worker for each processor.
type epollEngine struct {
	*Proxy
	start   time.Time
	workers []*worker
	open    atomic.Int64    // connections of all workers
	serving context.Context // of what runs beside the workers; it ends after the drain. Kept here because events carry none
	failed  chan error      // of size one: the first failure counts
}

// newEpollEngine returns nil if the engine cannot serve these listeners.
func newEpollEngine(p *Proxy, listeners []boundSocket) engine {
	for _, l := range listeners {
		if _, ok := l.Listener.(*net.TCPListener); !ok {
			return nil
		}
	}
	return &epollEngine{Proxy: p, start: time.Now(), failed: make(chan error, 1)}
}

func (e *epollEngine) serve(ctx context.Context, listeners []boundSocket) (err error) {
	var stop context.CancelFunc
	e.serving, stop = context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	n := runtime.GOMAXPROCS(0)
	for range n {
		w, err := openWorker(e, n, listeners)
		e.workers = append(e.workers, w)
		defer w.close()
		if err != nil {
			return errors.Join(err, closeAll(listeners))
		}
	}
	// The workers have the sockets. The runtime need not look at them any more.
	if err := closeAll(listeners); err != nil {
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
	e.tell(mailStop)
	over, endDrain := e.drain.begin()
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
	e.tell(mailClose)
	return err
}

func closeAll(listeners []boundSocket) error {
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

func (e *epollEngine) tell(kind mail) {
	for _, w := range e.workers {
		w.post(message{kind: kind})
	}
}

// fail ends the engine because of a listener.
func (e *epollEngine) fail(err error) {
	select {
	case e.failed <- err:
	default:
	}
}
