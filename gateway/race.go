// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxNews bounds how many addresses that come to be known during a race are added to it.
const maxNews = 16

var errTooLate = errors.New("another address answered sooner")

// race is the choice of one address among several: which is asked when, and what the outcome says about each. One is asked
// after the other, as soon as the one before fails or takes longer than it should, and all that were asked may still answer.
// It moves no bytes and starts nothing: who runs it does.
type race struct {
	d *Dialer
	// news returns addresses that may have come to be known since the race began. Nil: there are none.
	news    func() []string
	addrs   []string // in the order in which they are asked
	asked   []asked  // as many of addrs as were asked
	pending int      // how many of them may still answer
	added   int      // how many addresses came late
	failed  int      // how many gave no answer, or one too late
}

// asked is an address that was asked.
type asked struct {
	began time.Time
	err   error  // set when it has failed, or was not asked after all
	known *known // while it is being asked
}

// next takes the next address that may be asked, number n; ok is false if there is none: then the race may be over. It needs
// attention again after wait.
func (r *race) next(now time.Time) (n int, wait time.Duration, ok bool) {
	for n = len(r.asked); n < len(r.addrs); n++ {
		k, wait, err := r.d.evidence.begin(r.addrs[n], int(r.d.most.Load()), r.d.Stagger, now)
		r.asked = append(r.asked, asked{began: now, known: k, err: err})
		if err == nil {
			r.pending++
			return n, wait, true
		}
	}
	return 0, r.d.Stagger, false
}

// over says that no address is left to wait for or to ask.
func (r *race) over() bool { return r.pending == 0 && len(r.asked) == len(r.addrs) }

// look adds addresses that came to be known since the race began.
func (r *race) look() {
	if r.news == nil {
		return
	}
	for _, addr := range r.news() {
		if r.added < maxNews && !slices.Contains(r.addrs, addr) {
			r.addrs = append(slices.Clip(r.addrs), addr)
			r.added++
		}
	}
}

// lost notes that address n has failed. If none is left to wait for or to ask, the race is over.
func (r *race) lost(n int, err error, now time.Time) (over bool) {
	r.pending--
	r.bad(n, err, now)
	if len(r.asked) == len(r.addrs) {
		r.look()
	}
	return r.over()
}

// won notes that address n answered, and that those which had a head start and have not are no good now. What it returns is for
// evidence.closed, when the connection is.
func (r *race) won(n int, now time.Time) *known {
	k := r.asked[n].known
	r.asked[n].known = nil
	r.d.evidence.won(k, now.Sub(r.asked[n].began))
	for other := range n {
		if r.asked[other].err == nil {
			r.bad(other, errTooLate, now)
		}
	}
	r.release()
	return k
}

// release gives up what is still being asked. It may be called again.
func (r *race) release() {
	for n := range r.asked {
		r.gaveUp(n, false)
	}
}

func (r *race) gaveUp(n int, dead bool) {
	if k := r.asked[n].known; k != nil {
		r.asked[n].known = nil
		r.d.evidence.gaveUp(k, dead)
	}
}

func (r *race) bad(n int, err error, now time.Time) {
	r.asked[n].err = err
	r.gaveUp(n, err != errTooLate)
	r.d.evidence.noAnswer(r.addrs[n], min(now.Sub(r.asked[n].began), r.d.Stagger), now, r.d.Memory)
	r.failed++
}

// end notes the attempts that are still under way when the time is up. If it ends because someone else said so, that says
// nothing about them.
func (r *race) end(why error, now time.Time) {
	for n := range r.asked {
		if r.asked[n].err != nil {
			continue
		}
		err := fmt.Errorf("no answer from %s: %w", r.addrs[n], why)
		if errors.Is(why, context.DeadlineExceeded) {
			r.bad(n, err, now)
		} else {
			r.asked[n].err = err
			r.failed++
		}
	}
}

// errors are the faults of all addresses, in their order. It is errFull if that is the only one.
func (r *race) errors() error {
	errs, full := make([]error, len(r.asked)), 0
	for n, a := range r.asked {
		if errs[n] = a.err; errors.Is(a.err, errFull) {
			full++
		}
	}
	if err := errors.Join(errs...); full == 0 || full == len(errs) {
		return err
	} else {
		return errors.New(err.Error())
	}
}
