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

	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/wanfed"
)

// redial says when a server that could not be dialed is dialed again: after a pause, or at once when there is news of its
// datacenter. News are other ways in the address book, and a server of it that has come here. gRPC dials a connection
// that failed again and again for as long as it is open, so calls that wait for one need no timer of their own.
type redial struct {
	own  string // datacenter
	book *wanfed.SharedAddressBook

	mu     sync.Mutex
	failed map[connKey]failure
	news   map[string]chan struct{} // by datacenter; closed and removed
	touch  map[string]federation.Reachability
	turned chan struct{} // closed and replaced when touch changes
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

func newRedial(own string, b *wanfed.SharedAddressBook) *redial {
	return &redial{
		own: own, book: b, failed: map[connKey]failure{}, news: map[string]chan struct{}{},
		touch: map[string]federation.Reachability{}, turned: make(chan struct{}),
	}
}

// do dials key, not before its pause is over. A dial under way when the address book gets other ways to key's datacenter is
// begun anew: those it is busy with may be dead. It returns early when ctx ends.
func (r *redial) do(ctx context.Context, key connKey, dial func(context.Context) error) error {
	woken, err := r.pause(ctx, key)
	if err != nil {
		return err
	}
	var limit time.Duration
	if woken {
		limit = waysSettle
	}
	var news <-chan struct{}
	for again := true; again; {
		news = r.newsOf(key.dc) // before the dial: what comes during it counts
		err = r.dial(ctx, key.dc, limit, dial)
		limit = 0
		if errors.Is(err, errOtherWays) {
			limit = waysSettle
		}
		again = ctx.Err() == nil && (errors.Is(err, errOtherWays) || errors.Is(err, errTooEarly))
	}
	r.note(key, news, err)
	return err
}

// note keeps how a dial of key went that began with news.
func (r *redial) note(key connKey, news <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key.node == "" {
		r.touchLocked(key.dc, err != nil)
	}
	if err == nil {
		delete(r.failed, key)
		return
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
}

var (
	errOtherWays = errors.New("the address book has other ways now")
	errTooEarly  = errors.New("the own gateways may not have had the new ways yet")
)

// waysSettle is when a dial that began with news is begun anew. The own gateways hear of other ways a moment later than this
// server does: a dial that passes them too early hangs at an address that is dead.
const waysSettle = 500 * time.Millisecond

// dial calls dial once. Its error is errOtherWays when the ways changed meanwhile, errTooEarly when it was not done within
// limit, if that is not 0.
func (r *redial) dial(ctx context.Context, dc string, limit time.Duration, dial func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		for ways := r.book.Load().Paths[dc]; ; {
			news := r.newsOf(dc)
			if !slices.Equal(r.book.Load().Paths[dc], ways) {
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
	if limit > 0 {
		timer := time.AfterFunc(limit, func() { cancel(errTooEarly) })
		defer timer.Stop()
	}
	err := dial(ctx)
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errOtherWays) || errors.Is(cause, errTooEarly)) {
		return cause
	}
	return err
}

// pause waits until key should be dialed again; woken says that there is news.
func (r *redial) pause(ctx context.Context, key connKey) (woken bool, err error) {
	r.mu.Lock()
	f, failed := r.failed[key]
	r.mu.Unlock()
	if !failed {
		return false, nil
	}
	timer := time.NewTimer(time.Until(f.until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.news:
		r.mu.Lock()
		delete(r.failed, key) // what is new may take a moment to work: short pauses again
		r.mu.Unlock()
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return false, nil
}

// isLost says whether the last dial of a datacenter failed, or no way to it works.
func (r *redial) isLost(dc string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.touch[dc].Unreachable
}

// reached notes whether any way to a datacenter works.
func (r *redial) reached(dc string, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.touchLocked(dc, !yes)
}

// touchLocked notes whether any server of dc can be reached.
func (r *redial) touchLocked(dc string, lost bool) {
	c := r.touch[dc]
	if c.Unreachable == lost {
		return
	}
	if c.Unreachable = lost; !lost {
		c.Recoveries++
	}
	r.touch[dc] = c
	close(r.turned)
	r.turned = make(chan struct{})
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

// contacts tells which datacenters can be reached, and gives a channel that is closed when that has changed.
func (r *redial) contacts() (map[string]federation.Reachability, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.touch), r.turned
}

// routesChanged gives the news of an address book that has changed.
func (r *redial) routesChanged(old, now *wanfed.AddressBook) {
	for dc, hops := range now.Paths {
		if !slices.Equal(hops, old.Paths[dc]) {
			r.heardOf(dc)
		}
	}
	if !maps.Equal(now.Servers, old.Servers) {
		r.heardOf(r.own)
	}
}
