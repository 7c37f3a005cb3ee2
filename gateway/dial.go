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

// dialer reaches one of several addresses: the first at once, the next after a stagger or as soon as one fails, all in
// parallel from then on (the manner of RFC 8305, section 5). The first connection wins, the others are given up.
type dialer struct {
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	timeout  time.Duration // of one attempt; twice that for all
	stagger  time.Duration
	failures failures
	attempts sync.WaitGroup // joined by Proxy.Run
	own      []net.Addr     // listeners of this process
}

type attempt struct {
	n    int // place in the order
	conn net.Conn
	err  error
}

// target connects to one address of t and returns how many attempts failed before that. The caller closes the connection.
func (d *dialer) target(ctx context.Context, t *target) (_ net.Conn, failed int, _ error) {
	start := 0
	if n := len(t.To); !t.Ordered && n > 1 {
		start = int(t.turn.Add(1) % uint32(n))
	}
	return d.any(ctx, d.failures.order(t.To, start, time.Now()))
}

func (d *dialer) any(ctx context.Context, addrs []string) (net.Conn, int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d.timeout)
	defer cancel()
	var (
		results = make(chan attempt)
		pending = map[int]bool{}
		started = 0
		errs    []error
		stagger = time.NewTimer(d.stagger)
	)
	defer stagger.Stop()
	next := func() {
		if n := started; n < len(addrs) {
			started++
			pending[n] = true
			d.attempts.Go(func() { d.attempt(ctx, n, addrs[n], results) })
			stagger.Reset(d.stagger)
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
				return a.conn, len(errs), nil
			}
			d.failures.failed(addrs[a.n], time.Now())
			errs = append(errs, a.err)
			if next(); len(pending) == 0 {
				return nil, len(errs), errors.Join(errs...)
			}
		case <-ctx.Done():
			for n := range pending {
				errs = append(errs, fmt.Errorf("dial %s: %w", addrs[n], ctx.Err()))
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					d.failures.failed(addrs[n], time.Now())
				}
			}
			return nil, len(errs), errors.Join(errs...)
		}
	}
}

// judge notes that address won worked and that those which had a head start and still did not answer are no good now.
func (d *dialer) judge(addrs []string, won int, pending map[int]bool) {
	d.failures.worked(addrs[won])
	for n := range pending {
		if n < won {
			d.failures.failed(addrs[n], time.Now())
		}
	}
}

// attempt dials one address and reports; when nobody wants its connection any more, it closes it.
func (d *dialer) attempt(ctx context.Context, n int, addr string, results chan<- attempt) {
	one, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	conn, err := d.dial(one, "tcp", addr)
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
func (d *dialer) isOwn(c net.Conn) bool {
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
