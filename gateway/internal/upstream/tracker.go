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
	// address is tried too.
	slack = 50 * time.Millisecond
	// firstPause is the fraction of Dialer.EjectFor after which an address that
	// failed is first probed. The pause doubles up to EjectFor.
	firstPause = 8
	// maxTrial is the number of clients that may concurrently try an address
	// whose last attempt failed. One more client may try per AttemptDelay,
	// because pending attempts may be lost and take long to fail. Other clients
	// are refused at once. Otherwise they would wait, with two files each, and
	// all reach the address together when it recovers. After one success, all
	// clients may use the address.
	maxTrial = 16
)

// Reasons why an address is not tried now.
var (
	// ErrFull is returned for an address at the limit of SetMaxConns.
	ErrFull = errors.New("is at the limit of connections to one address")

	errOpenCircuit = fmt.Errorf("failed, and %d clients are already trying it", maxTrial)
)

// tracker has the measurements of a Dialer by address.
type tracker struct {
	mu    sync.Mutex
	addrs map[string]*Address
	sweep int // number of addresses at which unused ones are removed
}

// Address has the measurements of a Dialer for one address. The mutex of the
// Dialer guards its fields.
type Address struct {
	pending   int           // attempts
	began     time.Time     // when the last attempt began
	open      int           // connections
	broken    bool          // the last attempt failed
	rtt, vary time.Duration // smoothed response time and its variation; 0: unknown
	failed    time.Time     // when it was ejected; zero: not ejected
	pause     time.Duration // until the next probe; a success keeps it, because the address may soon fail again
	retry     time.Time     // when it is probed
}

func (t *tracker) getLocked(addr string) *Address {
	a := t.addrs[addr]
	if a == nil {
		if t.addrs == nil {
			t.addrs, t.sweep = map[string]*Address{}, maxUnused
		}
		if len(t.addrs) >= t.sweep { // the next use of a removed address begins with the full AttemptDelay
			maps.DeleteFunc(t.addrs, func(_ string, a *Address) bool { return a.load() == 0 })
			t.sweep = max(maxUnused, 2*len(t.addrs))
		}
		a = &Address{}
		t.addrs[addr] = a
	}
	return a
}

// load returns the number of connections with the pending ones.
func (a *Address) load() int { return a.pending + a.open }

// begin counts an attempt, unless the address must not be tried now. canceled
// or opened ends the attempt. wait is the time after which the next address is
// tried too.
func (d *Dialer) begin(addr string, now time.Time) (a *Address, wait time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a = d.getLocked(addr)
	limit := int(d.maxConns.Load())
	switch {
	case limit > 0 && a.load() >= limit:
		return nil, 0, fmt.Errorf("%s %w", addr, ErrFull)
	case a.broken && a.pending >= maxTrial && now.Sub(a.began) < d.AttemptDelay:
		return nil, 0, fmt.Errorf("%s %w", addr, errOpenCircuit)
	}
	a.pending, a.began = a.pending+1, now
	return a, a.delay(d.AttemptDelay), nil
}

// canceled ends an attempt without a connection. broken means that the address
// failed. Otherwise the attempt was not needed.
func (d *Dialer) canceled(a *Address, broken bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a.pending--
	a.broken = a.broken || broken
}

// opened ends an attempt that succeeded after the time took. The connection
// counts until Closed.
func (d *Dialer) opened(a *Address, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a.pending--
	a.open++
	a.worked(took)
}

// Closed ends the count of a connection to an address. a may be nil.
func (d *Dialer) Closed(a *Address) {
	if a != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		a.open--
	}
}

// Conns returns the number of open connections by address. Addresses without
// connections are absent.
func (d *Dialer) Conns() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := map[string]int{}
	for addr, a := range d.addrs {
		if a.open > 0 {
			open[addr] = a.open
		}
	}
	return open
}

// Pending returns the number of attempts that have not ended.
func (d *Dialer) Pending() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.addrs {
		n += a.pending
	}
	return n
}

// worked records that addr answered after the time took.
func (d *Dialer) worked(addr string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.getLocked(addr).worked(took)
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

// failed ejects addr until its next probe. took is the time from the start of
// the attempt to its failure.
func (d *Dialer) failed(addr string, took time.Duration, now time.Time) {
	if d.eject(addr, took, now) && d.Ejected != nil {
		d.Ejected(addr)
	}
}

// eject is failed without the call of Ejected. It returns false if the time of
// the next probe is already set.
func (d *Dialer) eject(addr string, took time.Duration, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.getLocked(addr)
	if a.rtt > 0 {
		a.rtt = max(a.rtt, took) // gives an address that is only slow more time from now on
	}
	switch {
	case !a.failed.IsZero() && now.Before(a.retry):
		return false
	case a.pause == 0 || now.Sub(a.retry) > 2*d.EjectFor:
		a.pause = d.EjectFor / firstPause
	default:
		a.pause = min(2*a.pause, d.EjectFor)
	}
	a.failed, a.retry = now, now.Add(a.pause)
	return true
}

// delay returns the time to wait for addr before the next address is also
// tried.
func (d *Dialer) delay(addr string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.addrs[addr]; a != nil {
		return a.delay(d.AttemptDelay)
	}
	return d.AttemptDelay
}

func (a *Address) delay(limit time.Duration) time.Duration {
	if a.rtt == 0 {
		return limit
	}
	return min(limit, a.usual())
}

// usual returns the time within which the address nearly always answers. It is
// valid only if the address has answered before.
func (a *Address) usual() time.Duration { return a.rtt + max(4*a.vary, slack) }

// before reports whether a is a better choice than b: a has fewer connections
// or, with equally many, is faster by more than the usual variation.
func (a *Address) before(b *Address) bool {
	if x, y := a.load(), b.load(); x != y {
		return x < y
	}
	return a.rtt > 0 && b.rtt > a.usual()
}

// order sorts addresses for a selection: the address with the fewest
// connections comes first, then the addresses that follow it in addrs, as in a
// circle. Ejected addresses come last, the oldest failure first. Among equally
// good addresses, the first one from index start on comes first. With start
// InOrder, the first address of addrs comes first.
//
// probe is an ejected address whose probe is due, or "". Each due address is
// returned to one caller, and to none if all addresses are ejected. An address
// that is not probed within EjectFor after its probe was due is no longer
// ejected.
func (d *Dialer) order(addrs []string, start int, now time.Time) (sorted []string, probe string) {
	if len(addrs) == 1 {
		return addrs, ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	from, ejected := max(start, 0), 0
	first, unknown := from, &Address{}
	var best *Address
	for i := range addrs {
		n := (from + i) % len(addrs)
		a := d.addrs[addrs[n]]
		if a == nil {
			a = unknown
		}
		if now.Sub(a.retry) >= d.EjectFor {
			a.failed = time.Time{}
		}
		if !a.failed.IsZero() {
			ejected++
			if probe == "" && !now.Before(a.retry) {
				probe = addrs[n]
			}
		} else if best == nil || a.before(best) {
			first, best = n, a
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
		slices.SortStableFunc(sorted, func(a, b string) int { return d.failedLocked(a).Compare(d.failedLocked(b)) })
	}
	if ejected == len(addrs) || probe == "" {
		return sorted, ""
	}
	a := d.addrs[probe]
	a.pause = min(2*a.pause, d.EjectFor)
	a.retry = now.Add(a.pause)
	return sorted, probe
}

func (t *tracker) failedLocked(addr string) time.Time {
	if a := t.addrs[addr]; a != nil {
		return a.failed
	}
	return time.Time{}
}
