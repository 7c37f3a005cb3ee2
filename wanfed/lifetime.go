// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"sync"
)

// lifetime runs goroutines on behalf of callers that return earlier, such as memberlist's, for as long as its run does.
// What is started before run waits for it; what is started after its end is refused.
type lifetime struct {
	over context.Context // ends when run ends, before it waits. Stored: it is the lifetime itself
	end  context.CancelFunc

	mu sync.Mutex
	// ctx is that of run. It is stored, against the rule, because a goroutine that a caller's send starts must end with
	// run, not with the call.
	ctx     context.Context
	waiting []func(context.Context)
	stopped bool
	wg      sync.WaitGroup
}

func newLifetime() *lifetime {
	l := &lifetime{}
	l.over, l.end = context.WithCancel(context.Background())
	return l
}

// start runs f in a goroutine that run joins; false means that run has ended. f must return soon after its ctx ends.
func (l *lifetime) start(f func(context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped:
		return false
	case l.ctx == nil:
		l.waiting = append(l.waiting, f)
	default:
		ctx := l.ctx
		l.wg.Go(func() { f(ctx) })
	}
	return true
}

// run blocks until ctx ends and everything that was started has returned.
func (l *lifetime) run(ctx context.Context) {
	l.mu.Lock()
	l.ctx = ctx
	for _, f := range l.waiting {
		l.wg.Go(func() { f(ctx) })
	}
	l.waiting = nil
	l.mu.Unlock()

	<-ctx.Done()
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.end()
	l.wg.Wait()
}
