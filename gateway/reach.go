// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"net"
	"time"
)

// errGone ends a race for whose outcome nobody waits any more.
var errGone = errors.New("the client has gone")

// request is what an address is wanted for.
type request struct {
	// hello is sent to each address, and the first TLS record that comes back is the answer. Nil: a connection is.
	hello []byte
	// news: see race.
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
	err    error
	known  *known // for evidence.closed
}

// target reaches one address of t and returns how many attempts failed before that.
func (d *Dialer) target(ctx context.Context, t *target, req request) (_ attempt, failed int, _ error) {
	return d.reach(ctx, t.To, t.start(), req)
}

// reach runs a race, with a goroutine for each address that is asked. Those that did not win end soon after it.
func (d *Dialer) reach(ctx context.Context, addrs []string, start int, req request) (_ attempt, failed int, _ error) {
	sorted, due := d.evidence.order(addrs, start, time.Now(), d.Memory)
	if due != "" {
		d.attempts.Go(func() { d.retry(ctx, due, req.hello) })
	}
	racing, cancel := context.WithTimeout(ctx, 2*d.Timeout)
	defer cancel()
	var (
		r       = race{d: d, news: req.news, addrs: sorted}
		results = make(chan attempt)
	)
	next := func() time.Duration {
		n, wait, ok := r.next(time.Now())
		if ok {
			addr := r.addrs[n]
			d.attempts.Go(func() { d.attempt(racing, n, addr, req.hello, results) })
		}
		return wait
	}
	timer := time.NewTimer(next())
	defer timer.Stop()
	defer r.release()
	for {
		if r.over() {
			return attempt{}, r.failed, r.errors()
		}
		select {
		case a := <-results:
			if a.err == nil {
				a.known = r.won(a.n, time.Now())
				return a, r.failed, nil
			}
			if r.lost(a.n, a.err, time.Now()) {
				continue
			}
		case <-timer.C:
			if req.gone != nil && req.gone() {
				return attempt{}, r.failed, errGone
			}
			r.look()
		case <-racing.Done():
			r.end(racing.Err(), time.Now())
			return attempt{}, r.failed, r.errors()
		}
		timer.Reset(next())
	}
}

// attempt asks one address and reports; when nobody wants its answer any more, it closes the connection.
func (d *Dialer) attempt(ctx context.Context, n int, addr string, hello []byte, results chan<- attempt) {
	conn, answer, err := d.ask(ctx, addr, hello)
	select {
	case results <- attempt{n: n, addr: addr, conn: conn, answer: answer, err: err}:
	case <-ctx.Done():
		if conn != nil {
			answer.free()
			conn.Close()
		}
	}
}
