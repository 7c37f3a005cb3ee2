// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
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
	lookupIP func(ctx context.Context, network, host string) ([]net.IP, error)
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

func newResolver(lookup func(context.Context, string, string) ([]net.IP, error), timeout time.Duration) *resolver {
	return &resolver{lookupIP: lookup, timeout: timeout, cache: map[string]*lookupResult{}}
}

// lookup returns the addresses of host. It blocks until a lookup or ctx ends.
func (r *resolver) lookup(ctx context.Context, host string) ([]net.IP, error) {
	now, timeout := time.Now(), r.timeout
	r.mu.Lock()
	old := r.cache[host]
	if old != nil {
		old.lastUsed = now
	}
	r.mu.Unlock()
	if old != nil && len(old.ips) > 0 {
		if now.Sub(old.at) < lookupTTL {
			return old.ips, nil
		}
		timeout = min(timeout, staleLookupTimeout)
	}
	lctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ips, err := r.lookupIP(lctx, "ip", host)
	if err == nil && len(ips) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil && ctx.Err() != nil {
		return nil, err // the caller cancelled the lookup; the name may be valid
	}
	if err != nil && old != nil {
		ips = old.ips
	}
	r.put(host, ips)
	if len(ips) > 0 {
		return ips, nil
	}
	return nil, err
}

// put caches ips, the result of a lookup that has just ended. It evicts the
// least recently used name if the cache is full.
func (r *resolver) put(host string, ips []net.IP) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cache[host] = &lookupResult{ips: ips, at: now, lastUsed: now}
	if len(r.cache) > maxCachedNames {
		delete(r.cache, slices.MinFunc(slices.Collect(maps.Keys(r.cache)), func(a, b string) int {
			return r.cache[a].lastUsed.Compare(r.cache[b].lastUsed)
		}))
	}
}
