// SPDX-License-Identifier: MPL-2.0

package upstream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxUnused bounds the number of addresses that are tracked without being
	// in use.
	maxUnused = 4096
	// slack is added to the usual response time of an address before the next
	// one is tried too.
	slack = 50 * time.Millisecond
	// firstPause is the part of Dialer.EjectFor after which an address that
	// failed is probed for the first time. The pause doubles up to the whole.
	firstPause = 8
	// maxTrial is the number of clients that may concurrently try an address
	// whose last attempt failed. One more client may try per AttemptDelay,
	// because pending attempts may be lost and take long to fail. Other clients
	// are refused at once. Otherwise they would wait, with two files each, and
	// all reach the address together when it recovers. As soon as one client
	// succeeds, all clients may use the address.
	maxTrial = 16
)

// Reasons why an address is not tried now.
var (
	// ErrFull is returned for an address at the limit of SetMaxConns.
	ErrFull = errors.New("has as many connections as one upstream may have")

	errOpenCircuit = fmt.Errorf("did not work, and %d clients are trying it already", maxTrial)
)

// Address contains the measurements of a Dialer for one address. It is guarded
// by the mutex of the tracker.
type Address struct {
	pending   int       // attempts
	began     time.Time // when the last of them began
	open      int       // connections
	broken    bool      // the last attempt failed
	rtt, vary time.Duration
	failed    time.Time     // when it was ejected; zero: it is not ejected
	pause     time.Duration // until the next probe; it stays when the address works, in case it fails again
	retry     time.Time     // when it is probed
}

// tracker contains the addresses of a Dialer.
type tracker struct {
	mu    sync.Mutex
	addrs map[string]*Address
	sweep int // number of addresses at which unused ones are removed
}

func (t *tracker) getLocked(addr string) *Address {
	a := t.addrs[addr]
	if a == nil {
		if t.addrs == nil {
			t.addrs, t.sweep = map[string]*Address{}, maxUnused
		}
		if len(t.addrs) >= t.sweep { // a removed address costs one AttemptDelay
			maps.DeleteFunc(t.addrs, func(_ string, a *Address) bool { return a.load() == 0 })
			t.sweep = max(maxUnused, 2*len(t.addrs))
		}
		a = &Address{}
		t.addrs[addr] = a
	}
	return a
}

// load is the number of connections, pending ones included.
func (a *Address) load() int { return a.pending + a.open }

// begin counts an attempt, unless the address must not be tried now. The
// attempt ends with canceled or opened. wait is the time after which the next
// address is tried too, at most limit. maxConns 0 is no limit.
func (t *tracker) begin(
	addr string, maxConns int, limit time.Duration, now time.Time,
) (a *Address, wait time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a = t.getLocked(addr)
	switch {
	case maxConns > 0 && a.load() >= maxConns:
		return nil, 0, fmt.Errorf("%s %w", addr, ErrFull)
	case a.broken && a.pending >= maxTrial && now.Sub(a.began) < limit:
		return nil, 0, fmt.Errorf("%s %w", addr, errOpenCircuit)
	}
	a.pending, a.began = a.pending+1, now
	return a, a.delay(limit), nil
}

// canceled ends an attempt without a connection. broken means that the address
// failed, rather than that the attempt was not needed.
func (t *tracker) canceled(a *Address, broken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.pending--
	a.broken = a.broken || broken
}

// opened ends an attempt that succeeded after took. The connection counts until
// Dialer.Closed.
func (t *tracker) opened(a *Address, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.pending--
	a.open++
	a.worked(took)
}

// Closed ends a connection to an address. a may be nil.
func (d *Dialer) Closed(a *Address) {
	if a == nil {
		return
	}
	d.tracker.mu.Lock()
	defer d.tracker.mu.Unlock()
	a.open--
}

// Conns returns the number of open connections by address, for the addresses
// that have any.
func (d *Dialer) Conns() map[string]int {
	d.tracker.mu.Lock()
	defer d.tracker.mu.Unlock()
	open := map[string]int{}
	for addr, a := range d.tracker.addrs {
		if a.open > 0 {
			open[addr] = a.open
		}
	}
	return open
}

// Pending returns the number of attempts that have not ended.
func (d *Dialer) Pending() (n int) {
	d.tracker.mu.Lock()
	defer d.tracker.mu.Unlock()
	for _, a := range d.tracker.addrs {
		n += a.pending
	}
	return n
}

// worked records that addr answered after took.
func (t *tracker) worked(addr string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.getLocked(addr).worked(took)
}

// worked smooths the response time as in RFC 6298, section 2.
func (a *Address) worked(took time.Duration) {
	a.failed, a.broken = time.Time{}, false
	if a.rtt == 0 {
		a.rtt, a.vary = took, took/2
		return
	}
	a.vary += (max(a.rtt-took, took-a.rtt) - a.vary) / 4
	a.rtt += (took - a.rtt) / 8
}

// failed ejects addr, which failed took after the attempt began, until it is
// probed. ejectFor bounds that time.
func (t *tracker) failed(addr string, took time.Duration, now time.Time, ejectFor time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.getLocked(addr)
	if a.rtt > 0 {
		a.rtt = max(a.rtt, took) // an address that is only slow gets more time from now on
	}
	switch {
	case !a.failed.IsZero() && now.Before(a.retry):
		return // the same failure, or the probe that order started: the time is set
	case a.pause == 0 || now.Sub(a.retry) > 2*ejectFor:
		a.pause = ejectFor / firstPause
	default:
		a.pause = min(2*a.pause, ejectFor)
	}
	a.failed, a.retry = now, now.Add(a.pause)
}

// delay returns the time to wait for addr before the next address is also
// tried, at most limit.
func (t *tracker) delay(addr string, limit time.Duration) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.addrs[addr]; a != nil {
		return a.delay(limit)
	}
	return limit
}

func (a *Address) delay(limit time.Duration) time.Duration {
	if a.rtt == 0 {
		return limit
	}
	return min(limit, a.usual())
}

// usual returns the time within which the address a nearly always answers. It
// is valid only if a has answered before.
func (a *Address) usual() time.Duration { return a.rtt + max(4*a.vary, slack) }

// before reports whether a is a better choice than b: it has fewer connections
// or, with equally many, is usually faster by more than the variation.
func (a *Address) before(b *Address) bool {
	if x, y := a.load(), b.load(); x != y {
		return x < y
	}
	return a.rtt > 0 && b.rtt > a.usual()
}

// order sorts addresses for a selection: the one with the fewest connections
// first, then the others in a circle, and those that failed last, with the
// oldest failure first. Ties go to the address number start. With InOrder the
// connections do not count.
//
// probe is an address that failed and is due for a probe, if the first address
// works. Each due address is returned to one caller. An address that was not
// probed for ejectFor longer than planned is no longer ejected.
func (t *tracker) order(
	addrs []string, start int, now time.Time, ejectFor time.Duration,
) (sorted []string, probe string) {
	if len(addrs) == 1 {
		return addrs, ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	from, ejected := max(start, 0), 0
	first, unknown := from, &Address{}
	var least *Address
	for i := range addrs {
		n := (from + i) % len(addrs)
		a := t.addrs[addrs[n]]
		if a == nil {
			a = unknown
		}
		if !a.failed.IsZero() && now.Sub(a.retry) >= ejectFor {
			a.failed = time.Time{}
		}
		if !a.failed.IsZero() {
			ejected++
			if probe == "" && !now.Before(a.retry) {
				probe = addrs[n]
			}
		} else if least == nil || a.before(least) {
			first, least = n, a
		}
	}
	if start == InOrder {
		first = from
	}
	if first == 0 && ejected == 0 {
		return addrs, ""
	}
	sorted = append(slices.Clone(addrs[first:]), addrs[:first]...)
	if ejected > 0 {
		slices.SortStableFunc(sorted, func(a, b string) int { return t.failedLocked(a).Compare(t.failedLocked(b)) })
	}
	if ejected == len(addrs) || probe == "" {
		return sorted, ""
	}
	a := t.addrs[probe]
	a.pause = min(2*a.pause, ejectFor)
	a.retry = now.Add(a.pause)
	return sorted, probe
}

func (t *tracker) failedLocked(addr string) time.Time {
	if a := t.addrs[addr]; a != nil {
		return a.failed
	}
	return time.Time{}
}
