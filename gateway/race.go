// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// maxNews bounds how many addresses that come to be known during a race are added to it.
const maxNews = 16

// errGone ends a race for whose outcome nobody waits any more.
var errGone = errors.New("the client has gone")

// request is what a race is for.
type request struct {
	// hello is sent to each address, and the first TLS record that comes back is the answer. Nil: a connection is.
	hello []byte
	// news returns addresses that may have come to be known since the request was made. Nil: there are none.
	news func() []string
	// gone says that nobody waits for the outcome any more. Nil: somebody does.
	gone func() bool
}

// attempt is the outcome of asking one address.
type attempt struct {
	n      int // number of the address
	addr   string
	conn   net.Conn
	answer answer
	took   time.Duration
	err    error
}

// race asks one address after the other, and goes on waiting for those before, until one answers.
type race struct {
	d       *Dialer
	req     request
	addrs   []string // in the order in which they are asked
	results chan attempt
	asked   []asked // as many of addrs as there were attempts
	pending int     // how many of them may still answer
	added   int     // how many addresses came late
	failed  int     // how many gave no answer, or one too late
}

// asked is an attempt, from the race's side.
type asked struct {
	began time.Time
	err   error // set when it has failed
}

// run returns the first attempt that succeeds. It waits for no other: they end soon after it.
func (r *race) run(ctx context.Context) (attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*r.d.Timeout)
	defer cancel()
	timer := time.NewTimer(r.next(ctx))
	defer timer.Stop()
	for {
		select {
		case a := <-r.results:
			r.pending--
			if a.err == nil {
				r.judge(a)
				return a, nil
			}
			r.lost(a.n, a.err)
			if len(r.asked) == len(r.addrs) {
				r.look()
			}
			timer.Reset(r.next(ctx))
			if r.pending == 0 {
				return attempt{}, r.errors()
			}
		case <-timer.C:
			if r.req.gone != nil && r.req.gone() {
				return attempt{}, errGone
			}
			r.look()
			timer.Reset(r.next(ctx))
		case <-ctx.Done():
			r.end(ctx.Err())
			return attempt{}, r.errors()
		}
	}
}

// next asks the next address, if there is one, and returns how long to wait before the race needs attention again.
func (r *race) next(ctx context.Context) time.Duration {
	n := len(r.asked)
	if n == len(r.addrs) {
		return r.d.Stagger
	}
	addr, began := r.addrs[n], time.Now()
	r.asked = append(r.asked, asked{began: began})
	r.pending++
	r.d.attempts.Go(func() {
		conn, answer, err := r.d.ask(ctx, addr, r.req.hello)
		select {
		case r.results <- attempt{n, addr, conn, answer, time.Since(began), err}:
		case <-ctx.Done(): // nobody wants it any more
			if conn != nil {
				answer.free()
				conn.Close()
			}
		}
	})
	return r.d.evidence.patience(addr, r.d.Stagger)
}

// look adds addresses that came to be known since the race began.
func (r *race) look() {
	if r.req.news == nil {
		return
	}
	for _, addr := range r.req.news() {
		if r.added < maxNews && !slices.Contains(r.addrs, addr) {
			r.addrs = append(slices.Clip(r.addrs), addr)
			r.added++
		}
	}
}

// judge notes that one address answered, and that those which had a head start and have not are no good now.
func (r *race) judge(won attempt) {
	r.d.evidence.worked(won.addr, won.took)
	for n := range won.n {
		if r.asked[n].err == nil {
			r.lost(n, errTooLate)
		}
	}
}

var errTooLate = errors.New("another address answered sooner")

func (r *race) lost(n int, err error) {
	now := time.Now()
	r.asked[n].err = err
	r.d.evidence.noAnswer(r.addrs[n], min(now.Sub(r.asked[n].began), r.d.Stagger), now, r.d.Memory)
	r.failed++
}

// end notes the attempts that are still under way when the time is up. If it ends because someone else said so, that says
// nothing about them.
func (r *race) end(why error) {
	for n := range r.asked {
		if r.asked[n].err != nil {
			continue
		}
		err := fmt.Errorf("no answer from %s: %w", r.addrs[n], why)
		if errors.Is(why, context.DeadlineExceeded) {
			r.lost(n, err)
		} else {
			r.asked[n].err = err
			r.failed++
		}
	}
}

// errors are the faults of all addresses, in their order.
func (r *race) errors() error {
	errs := make([]error, len(r.asked))
	for n, a := range r.asked {
		errs[n] = a.err
	}
	return errors.Join(errs...)
}
