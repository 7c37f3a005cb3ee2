// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// netEngine is the engine of EngineNet.
type netEngine struct {
	*Proxy
	conns   conns
	serving sync.WaitGroup
}

func newNetEngine(p *Proxy) *netEngine {
	return &netEngine{Proxy: p, conns: conns{max: &p.maxConns, grace: p.grace, open: map[*conn]struct{}{}}}
}

func (e *netEngine) serve(ctx context.Context, listeners []boundSocket) error {
	// Connections outlive ctx by the drain.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	accepting, accepted := errgroup.WithContext(ctx)
	for _, l := range listeners {
		accepting.Go(func() error { return e.accept(accepted, serving, l) })
	}
	accepting.Go(func() error {
		<-accepted.Done()
		for _, l := range listeners {
			l.Close()
		}
		return nil
	})
	err := accepting.Wait()

	done := make(chan struct{})
	go func() {
		e.serving.Wait()
		close(done)
	}()
	over, endDrain := e.drain.begin()
	defer endDrain()
	select {
	case <-done:
	case <-over:
	}
	stop()
	e.conns.closeAll()
	<-done
	return err
}

// accept takes connections from l until ctx ends and serves them under the context serving.
func (e *netEngine) accept(ctx, serving context.Context, l boundSocket) error {
	pause := minPause
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if c != nil {
				c.Close()
			}
			return nil
		}
		if err == nil {
			pause = minPause
			e.serving.Go(func() { e.own(serving, l.owner, c) })
			continue
		}
		if !passing(err) {
			return fmt.Errorf("accept on %s (listener %s): %w", l.Addr(), l.owner.name, err)
		}
		if noFiles(err) && e.shed(l) {
			continue
		}
		e.log.Warn("cannot accept connections for now", "listener", l.owner.name, "addr", l.Addr().String(), "err", err, "pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}
