// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"sync"
)

// runGroup runs goroutines that outlive the call that starts them, for example
// a call by memberlist, but not the group's run. Goroutines spawned before run
// start when it does. After run has ended, spawn refuses.
type runGroup struct {
	done context.Context // ends before run waits; stored because callers have no other signal
	end  context.CancelFunc

	mu sync.Mutex
	// ctx is the context of run. It is stored because a spawned goroutine must
	// end with run and not with the call that spawned it.
	ctx     context.Context
	waiting []func(context.Context) // spawned before run
	stopped bool
	wg      sync.WaitGroup
}

func newRunGroup() *runGroup {
	g := &runGroup{}
	g.done, g.end = context.WithCancel(context.Background())
	return g
}

// spawn runs f in a goroutine that run joins. It returns false if run has
// ended. f must return soon after its context ends.
func (g *runGroup) spawn(f func(context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.stopped:
		return false
	case g.ctx == nil:
		g.waiting = append(g.waiting, f)
	default:
		ctx := g.ctx
		g.wg.Go(func() { f(ctx) })
	}
	return true
}

// run blocks until ctx ends and every spawned goroutine has returned.
func (g *runGroup) run(ctx context.Context) {
	g.mu.Lock()
	g.ctx = ctx
	for _, f := range g.waiting {
		g.wg.Go(func() { f(ctx) })
	}
	g.waiting = nil
	g.mu.Unlock()

	<-ctx.Done()
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.end()
	g.wg.Wait()
}
