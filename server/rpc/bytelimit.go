// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/tlsutil"
)

// Limits of the requests of metered calls that one datacenter makes. A
// federation state has about 300 bytes per gateway.
const (
	meteredBurst = 4 << 20  // bytes at once
	meteredRate  = 32 << 10 // bytes per second
	// meteredCost is what a smaller request counts: each federation state is a
	// write of Raft, and a message to all datacenters. It bounds the rate to 32 per
	// second.
	meteredCost = 1 << 10 // bytes
	// maxMetered bounds the limiters. Above it, those with a full burst are evicted.
	maxMetered = 1 << 14
)

// byteLimit limits the bytes in the requests of each datacenter and role. Its peers
// make requests until its bytes are used up. The last one may exceed them, and
// the next ones then wait longer. A request can thus be refused before it is read.
// A byteLimit is safe for concurrent use. The zero value is ready.
type byteLimit struct {
	mu       sync.Mutex
	limiters map[meteredPeers]*rate.Limiter
}

// meteredPeers are all peers of a role and datacenter.
type meteredPeers struct {
	role tlsutil.Role
	dc   string
}

// check returns an error if the bytes of p's datacenter and role are used up.
func (l *byteLimit) check(p tlsutil.Peer, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.checkLocked(meteredPeers{p.Role, p.DC}, now)
}

// take counts a request of size bytes. It returns an error, and counts nothing, if
// the bytes of p's datacenter and role are used up.
func (l *byteLimit) take(p tlsutil.Peer, size int, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := meteredPeers{p.Role, p.DC}
	if err := l.checkLocked(key, now); err != nil {
		return err
	}
	if l.limiters == nil {
		l.limiters = map[meteredPeers]*rate.Limiter{}
	}
	if len(l.limiters) >= maxMetered {
		maps.DeleteFunc(l.limiters, func(_ meteredPeers, lim *rate.Limiter) bool { return lim.TokensAt(now) >= meteredBurst })
	}
	if l.limiters[key] == nil {
		l.limiters[key] = rate.NewLimiter(meteredRate, meteredBurst)
	}
	l.limiters[key].ReserveN(now, min(max(size, meteredCost), meteredBurst))
	return nil
}

func (l *byteLimit) checkLocked(key meteredPeers, now time.Time) error {
	if l.limiters[key] == nil {
		return nil
	}
	tokens := l.limiters[key].TokensAt(now)
	if tokens >= 1 {
		return nil
	}
	wait := time.Duration((1 - tokens) / meteredRate * float64(time.Second))
	return status.Errorf(codes.ResourceExhausted,
		"%ss of %s write too many federation states: %d MiB at once and %d KiB per second are accepted; retry in %v",
		key.role, key.dc, meteredBurst>>20, meteredRate>>10, (wait + time.Second).Truncate(time.Second))
}
