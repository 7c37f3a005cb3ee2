// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/wanfed/wanfed/wanfed"
)

// redial says when a server that could not be dialed is dialed again: after a pause, or at once when there is news of its
// datacenter. News are other ways in the address book, and a server of it that has come here. gRPC dials a connection
// that failed again and again for as long as it is open, so calls that wait for one need no timer of their own.
type redial struct {
	own  string // datacenter
	book *wanfed.Book

	mu     sync.Mutex
	failed map[connKey]failure
	news   map[string]chan struct{} // by datacenter; closed and removed
	lost   map[string]bool          // datacenters of which the last dial failed
	turned chan struct{}            // closed and replaced when lost changes
}

// failure is what is known of a server that could not be dialed.
type failure struct {
	times int             // in a row
	until time.Time       // pause before the next dial
	news  <-chan struct{} // taken before the last dial
}

// Pauses between dials double from minPause to maxPause, or to maxOwnPause in the own datacenter.
const (
	minPause    = 50 * time.Millisecond
	maxPause    = 2 * time.Second
	maxOwnPause = 500 * time.Millisecond
)

// dialAtOnce makes gRPC dial without pauses worth the name: redial makes them.
var dialAtOnce = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
	MinConnectTimeout: 15 * time.Second,
})

func newRedial(own string, b *wanfed.Book) *redial {
	return &redial{
		own: own, book: b, failed: map[connKey]failure{}, news: map[string]chan struct{}{},
		lost: map[string]bool{}, turned: make(chan struct{}),
	}
}

// do dials key, not before its pause is over. A dial under way when the address book gets other ways to key's datacenter is
// begun anew: those it is busy with may be dead. It returns early when ctx ends.
func (r *redial) do(ctx context.Context, key connKey, dial func(context.Context) error) error {
	if err := r.pause(ctx, key); err != nil {
		return err
	}
	news := r.newsOf(key.dc) // before the dial: what comes during it counts
	err := r.dial(ctx, key.dc, dial)
	for errors.Is(err, errOtherWays) && ctx.Err() == nil {
		news = r.newsOf(key.dc)
		err = r.dial(ctx, key.dc, dial)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if key.node == "" && r.lost[key.dc] != (err != nil) {
		r.lost[key.dc] = err != nil
		close(r.turned)
		r.turned = make(chan struct{})
	}
	if err == nil {
		delete(r.failed, key)
		return nil
	}
	limit := maxPause
	if key.dc == r.own {
		limit = maxOwnPause
	}
	f := r.failed[key]
	f.until = time.Now().Add(min(minPause<<min(f.times, 10), limit))
	f.times++
	f.news = news
	r.failed[key] = f
	return err
}

var errOtherWays = errors.New("the address book has other ways now")

// dial calls dial once. Its error is errOtherWays when the ways changed meanwhile.
func (r *redial) dial(ctx context.Context, dc string, dial func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		for ways := r.book.Load().Hops[dc]; ; {
			news := r.newsOf(dc)
			if !slices.Equal(r.book.Load().Hops[dc], ways) {
				cancel(errOtherWays)
				return
			}
			select {
			case <-news:
			case <-ctx.Done():
				return
			}
		}
	})
	err := dial(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errOtherWays) {
		return errOtherWays
	}
	return err
}

func (r *redial) pause(ctx context.Context, key connKey) error {
	r.mu.Lock()
	f, failed := r.failed[key]
	r.mu.Unlock()
	if !failed {
		return nil
	}
	timer := time.NewTimer(time.Until(f.until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.news:
		r.mu.Lock()
		delete(r.failed, key) // what is new may take a moment to work: short pauses again
		r.mu.Unlock()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// newsOf returns a channel that is closed at the next news of a datacenter.
func (r *redial) newsOf(dc string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := r.news[dc]
	if ch == nil {
		ch = make(chan struct{})
		r.news[dc] = ch
	}
	return ch
}

// heardOf says that dc can perhaps be reached again, or otherwise than before.
func (r *redial) heardOf(dc string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch := r.news[dc]; ch != nil {
		close(ch)
		delete(r.news, dc)
	}
}

// lostOf says whether the last dial of a datacenter failed, and gives a channel that is closed when that may have changed.
func (r *redial) lostOf(dc string) (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost[dc], r.turned
}

// routesChanged gives the news of an address book that has changed.
func (r *redial) routesChanged(old, now *wanfed.Routes) {
	for dc, hops := range now.Hops {
		if !slices.Equal(hops, old.Hops[dc]) {
			r.heardOf(dc)
		}
	}
	if !maps.Equal(now.Servers, old.Servers) {
		r.heardOf(r.own)
	}
}
