// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// resolveFor is how long an answer, or a failure, is taken for granted. The resolver does not tell the TTL that a name has;
	// this is shorter than what names have in practice, and only dials ask.
	resolveFor = 5 * time.Second
	// resolvePatience is how long a lookup may take when an older answer is there to fall back on.
	resolvePatience = time.Second
	// maxResolved bounds the names remembered: the one that was asked for longest ago goes.
	maxResolved = 1024
)

// resolver gives the addresses of names. When a name cannot be resolved, its last known addresses stand in, however old: TLS
// decides who is there, and a DNS outage must not cut a datacenter off.
type resolver struct {
	lookup func(ctx context.Context, host string) ([]net.IP, error)
	limit  time.Duration // of a lookup without an older answer

	mu    sync.Mutex
	known map[string]*resolved
}

// resolved is what is known of one name. It is never changed, only replaced, but for asked.
type resolved struct {
	ips    []net.IP
	err    error     // of the last lookup
	looked time.Time // when that ended
	asked  time.Time // guarded by resolver.mu
}

func newResolver(lookup func(context.Context, string) ([]net.IP, error), limit time.Duration) *resolver {
	return &resolver{lookup: lookup, limit: limit, known: map[string]*resolved{}}
}

// ips blocks for one lookup at most, or until ctx ends.
func (r *resolver) ips(ctx context.Context, host string) ([]net.IP, error) {
	old, limit := r.find(host), r.limit
	if old != nil && len(old.ips) > 0 {
		if time.Since(old.looked) < resolveFor {
			return old.ips, nil
		}
		limit = min(limit, resolvePatience)
	}
	lctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ips, err := r.lookup(lctx, host)
	if err == nil && len(ips) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil && ctx.Err() != nil {
		return nil, err // nobody waits for it any more: that tells nothing about the name
	}
	next := &resolved{ips: ips, err: err, looked: time.Now()}
	if err != nil && old != nil {
		next.ips = old.ips
	}
	r.keep(host, next)
	if len(next.ips) > 0 {
		return next.ips, nil
	}
	return nil, err
}

func (r *resolver) find(host string) *resolved {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[host]
	if e != nil {
		e.asked = time.Now()
	}
	return e
}

func (r *resolver) keep(host string, e *resolved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.asked = e.looked
	r.known[host] = e
	if len(r.known) <= maxResolved {
		return
	}
	oldest := host
	for h, e := range r.known {
		if e.asked.Before(r.known[oldest].asked) {
			oldest = h
		}
	}
	delete(r.known, oldest)
}
