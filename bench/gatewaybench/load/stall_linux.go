// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stallsPerSecond is how fast stalling connections are opened: all at once would overflow the proxy's backlog, and the
	// kernel would then send them again a second later.
	stallsPerSecond = 5000
	// maxStallFor bounds the measured time, so that it ends before the first of them is gone.
	maxStallFor = 2500 * time.Millisecond
	// stallSlack is how long after their deadline stalled connections may still be there before they count as left.
	stallSlack = 5 * time.Second
)

// staller opens connections that send the first byte of a hello and nothing more.
type staller struct {
	*client
	conns []*rawConn
	lived samples // of those that the proxy has closed
	last  error
}

func (s *staller) begin(time.Time) {
	c, err := s.dial()
	if err != nil {
		s.last = err
		return
	}
	c.handler, c.buf = s, []byte{recordHandshake}
	if err := s.add(c, unix.EPOLLIN|unix.EPOLLOUT); err != nil {
		s.fail(err)
		return
	}
	s.conns = append(s.conns, c)
}

func (s *staller) ready(c *rawConn, events uint32) {
	err := s.flushOn(c, events)
	if err == nil && events&^unix.EPOLLOUT != 0 {
		_, err = s.receive(c, 0) // an alert may come before the end
	}
	if err != nil {
		s.lived = append(s.lived, time.Since(c.began))
		s.drop(c)
	}
}

func (c *client) stall(ctx context.Context) (Figures, error) {
	if c.spec.For > maxStallFor {
		c.spec.For = maxStallFor
	}
	rss, files, err := c.before(ctx)
	if err != nil {
		return nil, err
	}
	before, _, err := c.good(ctx)
	if err != nil {
		return nil, fmt.Errorf("before: %w", err)
	}
	s := &staller{client: c, lived: newSamples()}
	opening := newPerSecond(stallsPerSecond, c.spec.Conns, s.begin)
	c.pace(opening)
	for i := 0; opening.left > 0 && i < 50 && err == nil && ctx.Err() == nil; i++ {
		err = c.run(ctx, 100*time.Millisecond)
	}
	if err == nil {
		err = c.run(ctx, 100*time.Millisecond) // the last are on their way
	}
	if err != nil {
		return nil, err
	}
	most := Figures{Held: float64(held(s.conns))}
	if most[Held] == 0 {
		return nil, fmt.Errorf("no stalled connection stayed open: %w", s.last)
	}
	if err := most.addMemory(c.spec.PIDs, rss, files); err != nil {
		return nil, err
	}
	during, sp, err := c.good(ctx)
	if err != nil {
		return nil, fmt.Errorf("beside stalled connections: %w", err)
	}
	f := during.compare(before, sp)
	f[Held] = float64(held(s.conns))
	f[RSSPerConn], f[FDsPerConn] = most[RSSPerConn], most[FDsPerConn]
	return f, s.gone(ctx, f)
}

// gone waits until the stalled connections are gone.
func (s *staller) gone(ctx context.Context, f Figures) error {
	s.onTimer = nil
	for end := time.Now().Add(s.spec.HelloTimeout + stallSlack); held(s.conns) > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		if err := s.run(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	f[Left] = float64(held(s.conns))
	f[GoneAfter] = s.lived.quantile(1) / 1e6
	return ctx.Err()
}

// goods is what became of good connections.
type goods struct {
	took         samples
	sent, failed int
	last         error
}

// good opens Rate connections a second for the time For and awaits their answers; pinging goes on beside them.
func (c *client) good(ctx context.Context, beside ...task) (goods, span, error) {
	k := &connector{client: c, took: newSamples()}
	opening := newPerSecond(c.spec.Rate, -1, k.begin)
	at, err := c.spec.readClocks()
	if err != nil {
		return goods{}, span{}, err
	}
	c.pace(append(beside, opening)...)
	if err := c.run(ctx, c.spec.For); err != nil {
		return goods{}, span{}, err
	}
	sp, err := c.spec.since(at)
	if err != nil {
		return goods{}, span{}, err
	}
	opening.left = 0
	for end := time.Now().Add(answerTime); k.flying > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		if err := c.run(ctx, 10*time.Millisecond); err != nil {
			return goods{}, span{}, err
		}
	}
	g := goods{took: k.took, sent: k.sent, failed: k.failed + k.flying, last: k.last}
	if g.last == nil && k.flying > 0 {
		g.last = errors.New("no answer")
	}
	if len(g.took) == 0 {
		return g, sp, fmt.Errorf("no connection got an answer: %w", g.last)
	}
	return g, sp, ctx.Err()
}

// compare returns figures of g and what they are beside those of before.
func (g goods) compare(before goods, sp span) Figures {
	f := Figures{Sent: float64(g.sent), Lost: float64(g.failed + before.failed), BaseP99: before.took.quantile(.99)}
	f.add(sp)
	f.addQuantiles(g.took)
	f[P99Ratio] = f[P99] / f[BaseP99]
	return f
}
