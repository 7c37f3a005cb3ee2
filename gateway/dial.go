// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errLoop says that a route leads to a listener of this very process. Forwarding there would go round until the limit.
var errLoop = errors.New("leads back to this gateway; take the address out of the route")

// Dialer reaches one of several addresses: the first at once, the next after a stagger or as soon as one fails, all in
// parallel from then on (the manner of RFC 8305, section 5). The first connection wins, the others are given up. The fields are
// not changed after the first use; methods may be called by anyone at any time.
type Dialer struct {
	// Dial connects to one address. It must return soon when ctx ends. Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Timeout bounds one attempt; twice that bounds First. Required.
	Timeout time.Duration
	// Stagger is after how long without an answer the next address is tried too. Required.
	Stagger time.Duration
	// Memory is how long an address that failed is tried last. Zero: not at all.
	Memory time.Duration

	failures failures
	attempts sync.WaitGroup
	own      []net.Addr // listeners of this process: connections to them are refused
}

// First connects to one of addrs (host:port; at least one), in this order but for those that failed lately, and returns its
// address too. The caller closes the connection. An error names every address with its fault.
func (d *Dialer) First(ctx context.Context, addrs []string) (net.Conn, string, error) {
	addrs = d.failures.order(addrs, 0, time.Now(), d.Memory)
	conn, won, _, err := d.race(ctx, addrs)
	if err != nil {
		return nil, "", err
	}
	return conn, addrs[won], nil
}

// Wait returns when attempts that were given up have ended too. No First may begin while it waits.
func (d *Dialer) Wait() { d.attempts.Wait() }

// target connects to one address of t and returns how many attempts failed before that.
func (d *Dialer) target(ctx context.Context, t *target) (_ net.Conn, failed int, _ error) {
	start := 0
	if n := len(t.To); !t.Ordered && n > 1 {
		start = int(t.turn.Add(1) % uint32(n))
	}
	conn, _, failed, err := d.race(ctx, d.failures.order(t.To, start, time.Now(), d.Memory))
	return conn, failed, err
}

type attempt struct {
	n    int // place in the order
	conn net.Conn
	err  error
}

// race returns the first connection, the place of its address, and how many attempts had failed by then.
func (d *Dialer) race(ctx context.Context, addrs []string) (_ net.Conn, won, failed int, _ error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d.Timeout)
	defer cancel()
	var (
		results = make(chan attempt)
		pending = map[int]bool{}
		started = 0
		errs    = make([]error, len(addrs)) // in the order of addrs
		stagger = time.NewTimer(d.Stagger)
	)
	defer stagger.Stop()
	next := func() {
		if n := started; n < len(addrs) {
			started++
			pending[n] = true
			d.attempts.Go(func() { d.attempt(ctx, n, addrs[n], results) })
			stagger.Reset(d.Stagger)
		}
	}
	for next(); ; {
		select {
		case <-stagger.C:
			next()
		case a := <-results:
			delete(pending, a.n)
			if a.err == nil {
				d.judge(addrs, a.n, pending)
				return a.conn, a.n, failed, nil
			}
			d.failures.failed(addrs[a.n], time.Now())
			errs[a.n] = a.err
			failed++
			if next(); len(pending) == 0 {
				return nil, 0, failed, errors.Join(errs...)
			}
		case <-ctx.Done():
			for n := range pending {
				errs[n] = fmt.Errorf("dial %s: %w", addrs[n], ctx.Err())
				failed++
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					d.failures.failed(addrs[n], time.Now())
				}
			}
			return nil, 0, failed, errors.Join(errs...)
		}
	}
}

// judge notes that address won worked and that those which had a head start and still did not answer are no good now.
func (d *Dialer) judge(addrs []string, won int, pending map[int]bool) {
	d.failures.worked(addrs[won])
	for n := range pending {
		if n < won {
			d.failures.failed(addrs[n], time.Now())
		}
	}
}

// attempt dials one address and reports; when nobody wants its connection any more, it closes it.
func (d *Dialer) attempt(ctx context.Context, n int, addr string, results chan<- attempt) {
	one, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	conn, err := d.Dial(one, "tcp", addr)
	if err == nil && d.isOwn(conn) {
		conn.Close()
		conn, err = nil, errLoop
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // the rest of its text repeats the address
	}
	if err != nil {
		err = fmt.Errorf("dial %s: %w", addr, err)
	}
	select {
	case results <- attempt{n, conn, err}:
	case <-ctx.Done():
		if conn != nil {
			conn.Close()
		}
	}
}

// isOwn says whether the other end of a connection is a listener of this process.
func (d *Dialer) isOwn(c net.Conn) bool {
	remote, ok1 := c.RemoteAddr().(*net.TCPAddr)
	local, ok2 := c.LocalAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return false
	}
	for _, a := range d.own {
		ln, ok := a.(*net.TCPAddr)
		if ok && ln.Port == remote.Port && (ln.IP.Equal(remote.IP) || ln.IP.IsUnspecified() && local.IP.Equal(remote.IP)) {
			return true
		}
	}
	return false
}
