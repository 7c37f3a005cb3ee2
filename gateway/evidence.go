// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxKnown bounds the memory of evidence, in addresses that are not in use.
	maxKnown = 4096
	// slack is added to what an address usually takes to answer before the next one is asked too.
	slack = 50 * time.Millisecond
	// firstPause is the part of Dialer.Memory after which an address that failed is tried again for the first time. The
	// pause doubles up to the whole.
	firstPause = 8
)

// evidence is what real connections have shown of upstream addresses: how soon each answers, and which failed lately. One that
// failed is asked after the others, and now and then beside one that works, so that it is back in its place before a client
// would have to wait for it.
type evidence struct {
	mu    sync.Mutex
	of    map[string]*known
	sweep int // at how many addresses those that are not in use are forgotten
}

type known struct {
	use
	typical, varies time.Duration // time to the answer, smoothed as in RFC 6298, section 2; zero: not known
	failed          time.Time     // since then it does not work; zero: it does, as far as is known
	pause           time.Duration // how long after that it is tried again. It stays when the address works, in case it only seems to
	retry           time.Time     // when
}

func (e *evidence) getLocked(addr string) *known {
	k := e.of[addr]
	if k == nil {
		if e.of == nil {
			e.of, e.sweep = map[string]*known{}, maxKnown
		}
		if len(e.of) >= e.sweep { // it is only a memory: forgetting costs one stagger each
			maps.DeleteFunc(e.of, func(_ string, k *known) bool { return k.tries+k.open == 0 })
			e.sweep = max(maxKnown, 2*len(e.of))
		}
		k = &known{}
		e.of[addr] = k
	}
	return k
}

// worked notes that addr answered after took.
func (e *evidence) worked(addr string, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.getLocked(addr).worked(took)
}

func (k *known) worked(took time.Duration) {
	k.failed, k.dead = time.Time{}, false
	if k.typical == 0 {
		k.typical, k.varies = took, took/2
		return
	}
	k.varies += (max(k.typical-took, took-k.typical) - k.varies) / 4
	k.typical += (took - k.typical) / 8
}

// noAnswer notes that addr failed, took after it was asked. It is given memory at most until it is tried again.
func (e *evidence) noAnswer(addr string, took time.Duration, now time.Time, memory time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.getLocked(addr)
	if k.typical > 0 {
		k.typical = max(k.typical, took) // if it is slow and nothing else, it gets more time from now on
	}
	switch {
	case !k.failed.IsZero() && now.Before(k.retry):
		return // of the same failure, or of the attempt that order allowed: it has set the time already
	case k.pause == 0 || now.Sub(k.retry) > 2*memory:
		k.pause = memory / firstPause
	default:
		k.pause = min(2*k.pause, memory)
	}
	k.failed, k.retry = now, now.Add(k.pause)
}

// patience is how long to wait for addr before the next one is asked too: limit at most.
func (e *evidence) patience(addr string, limit time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k := e.of[addr]; k != nil {
		return k.patience(limit)
	}
	return limit
}

func (k *known) patience(limit time.Duration) time.Duration {
	if k.typical == 0 {
		return limit
	}
	return min(limit, k.usual())
}

// usual is the time within which it nearly always answers, if that is known.
func (k *known) usual() time.Duration { return k.typical + max(4*k.varies, slack) }

// order returns the addresses from the one with the fewest connections on, in a circle, those that failed last, the longest ago
// first. Among equals it begins with number start; if that is inOrder, with the first address. It also returns one that failed
// and is to be tried again now, beside the first, if there is one and the first works; each due one is returned to a single
// caller. When nobody has tried one again for memory longer than it should, it is forgiven.
func (e *evidence) order(addrs []string, start int, now time.Time, memory time.Duration) (sorted []string, due string) {
	if len(addrs) == 1 {
		return addrs, ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	from, bad := max(start, 0), 0
	fewest := least{number: from}
	for i := range addrs {
		n := (from + i) % len(addrs)
		k := e.of[addrs[n]]
		if k != nil && !k.failed.IsZero() && now.Sub(k.retry) >= memory {
			k.failed = time.Time{}
		}
		if k == nil || k.failed.IsZero() {
			fewest.look(n, k)
			continue
		}
		bad++
		if due == "" && !now.Before(k.retry) {
			due = addrs[n]
		}
	}
	if start != inOrder {
		from = fewest.number
	}
	if from == 0 && bad == 0 {
		return addrs, ""
	}
	sorted = append(slices.Clone(addrs[from:]), addrs[:from]...)
	if bad > 0 {
		slices.SortStableFunc(sorted, func(a, b string) int { return e.failedLocked(a).Compare(e.failedLocked(b)) })
	}
	if bad == len(addrs) || due == "" {
		return sorted, ""
	}
	k := e.of[due]
	k.pause = min(2*k.pause, memory)
	k.retry = now.Add(k.pause)
	return sorted, due
}

func (e *evidence) failedLocked(addr string) time.Time {
	if k := e.of[addr]; k != nil {
		return k.failed
	}
	return time.Time{}
}
