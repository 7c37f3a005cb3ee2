// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

const (
	// DefaultMaxRatePerSource is the usual value of Policy.MaxRatePerSource. A
	// datacenter whose connections all come from one gateway opens far fewer.
	DefaultMaxRatePerSource = 100
	// rateBurst is the size of a token bucket, in seconds of its rate. When a
	// path returns, all servers of a datacenter connect at once.
	rateBurst = 10
	// maxRatedSources is the maximum number of sources in one generation of
	// sourceRates: 131,072 sources in total, with about 16 MB.
	maxRatedSources = 64 << 10
)

// sourceRates bounds the new connections of each source by a token bucket. It
// remembers two generations of sources. When the young generation is full, it
// becomes the old one, and the sources of the old one start again with a full
// bucket. A client with many addresses can reach that state, but then each of
// its addresses is a source of its own anyway.
//
// Listener.mu guards it. The zero sourceRates has no limit.
type sourceRates struct {
	perSecond  int // 0 or negative: no limit
	young, old map[netip.Addr]*rate.Limiter
}

// set replaces the limit. If it changes, all sources start with a full bucket.
func (r *sourceRates) set(perSecond int) {
	if perSecond != r.perSecond {
		*r = sourceRates{perSecond: perSecond}
	}
}

// allow takes one token of source and reports whether there was one.
func (r *sourceRates) allow(source netip.Addr, now time.Time) bool {
	if r.perSecond <= 0 {
		return true
	}
	bucket := r.young[source]
	if bucket == nil {
		if bucket = r.old[source]; bucket == nil {
			bucket = rate.NewLimiter(rate.Limit(r.perSecond), rateBurst*r.perSecond)
		}
		if r.young == nil || len(r.young) >= maxRatedSources {
			r.young, r.old = map[netip.Addr]*rate.Limiter{}, r.young
		}
		r.young[source] = bucket
	}
	return bucket.AllowN(now, 1)
}
