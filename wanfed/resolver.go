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
	// lookupTTL is the time for which a result is reused. net.Resolver does not
	// report the TTL of a name. Common TTLs are longer.
	lookupTTL = 5 * time.Second
	// staleLookupTimeout bounds a lookup of a name with cached addresses.
	staleLookupTimeout = time.Second
	// maxCachedNames bounds the cache. The least recently used name is evicted.
	maxCachedNames = 1024
)

// resolver caches the addresses of DNS names. When a lookup fails, it returns
// the last known addresses, regardless of their age: a DNS outage must not
// disconnect a datacenter. Old addresses are safe because TLS authenticates the
// peer.
type resolver struct {
	lookupIP func(ctx context.Context, host string) ([]net.IP, error)
	timeout  time.Duration // of a lookup without cached addresses

	mu    sync.Mutex
	cache map[string]*lookupResult
}

// lookupResult is the cache entry of one name. All fields except lastUsed are
// immutable.
type lookupResult struct {
	ips      []net.IP
	at       time.Time // end of the last lookup
	lastUsed time.Time // guarded by resolver.mu
}

func newResolver(lookup func(context.Context, string) ([]net.IP, error), timeout time.Duration) *resolver {
	return &resolver{lookupIP: lookup, timeout: timeout, cache: map[string]*lookupResult{}}
}

// lookup returns the addresses of host. It blocks until a lookup or ctx ends.
func (r *resolver) lookup(ctx context.Context, host string) ([]net.IP, error) {
	old, timeout := r.get(host), r.timeout
	if old != nil && len(old.ips) > 0 {
		if time.Since(old.at) < lookupTTL {
			return old.ips, nil
		}
		timeout = min(timeout, staleLookupTimeout)
	}
	lctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ips, err := r.lookupIP(lctx, host)
	if err == nil && len(ips) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil && ctx.Err() != nil {
		return nil, err // the caller cancelled the lookup; the name may be valid
	}
	if err != nil && old != nil {
		ips = old.ips
	}
	r.put(host, &lookupResult{ips: ips, at: time.Now()})
	if len(ips) > 0 {
		return ips, nil
	}
	return nil, err
}

// get returns the cached result of host, or nil.
func (r *resolver) get(host string) *lookupResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.cache[host]
	if e != nil {
		e.lastUsed = time.Now()
	}
	return e
}

// put caches e as the result of host. It evicts the least recently used name if
// the cache is full.
func (r *resolver) put(host string, e *lookupResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.lastUsed = e.at
	r.cache[host] = e
	if len(r.cache) <= maxCachedNames {
		return
	}
	oldest := host
	for h, e := range r.cache {
		if e.lastUsed.Before(r.cache[oldest].lastUsed) {
			oldest = h
		}
	}
	delete(r.cache, oldest)
}
