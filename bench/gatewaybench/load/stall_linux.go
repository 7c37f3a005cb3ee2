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
	// stallsPerSecond is the rate at which stalled connections are opened. All
	// at once would overflow the backlog of the proxy, and the kernel would
	// retry after a second.
	stallsPerSecond = 5000
	// maxStallDuration bounds the measured time, so that it ends before the
	// proxy closes the first stalled connection.
	maxStallDuration = 2500 * time.Millisecond
	// closeSlack is how long after its deadline a connection may stay open
	// before it counts in the figure Left.
	closeSlack = 5 * time.Second
)

// staller opens connections that send only the first byte of a ClientHello.
type staller struct {
	*client
	conns     []*rawConn
	lifetimes samples // of the connections that the proxy has closed
	lastErr   error
}

func (s *staller) openOne(time.Time) {
	c, err := s.dial()
	if err != nil {
		s.lastErr = err
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
		_, err = s.receive(c, 0) // an alert may arrive before the end
	}
	if err != nil {
		s.lifetimes = append(s.lifetimes, time.Since(c.start))
		s.drop(c)
	}
}

// stall opens connections that never complete their ClientHello. It returns
// their memory in the proxy, and their effect on connections that do complete.
func (c *client) stall(ctx context.Context) (Figures, error) {
	if c.spec.Duration > maxStallDuration {
		c.spec.Duration = maxStallDuration
	}
	rss, files, err := c.baselineMemory(ctx)
	if err != nil {
		return nil, err
	}
	before, _, err := c.openComplete(ctx)
	if err != nil {
		return nil, fmt.Errorf("before the stalled connections: %w", err)
	}
	s := &staller{client: c, lifetimes: newSamples()}
	opening := newRateTask(stallsPerSecond, c.spec.Conns, s.openOne)
	c.pace(opening)
	for i := 0; opening.left > 0 && i < 50 && err == nil && ctx.Err() == nil; i++ {
		err = c.run(ctx, 100*time.Millisecond)
	}
	if err == nil {
		err = c.run(ctx, 100*time.Millisecond) // the last connections are still being established
	}
	if err != nil {
		return nil, err
	}
	atPeak := Figures{Held: float64(countOpen(s.conns))}
	if atPeak[Held] == 0 {
		return nil, fmt.Errorf("no stalled connection stayed open: %w", s.lastErr)
	}
	if err := atPeak.addMemory(c.spec.PIDs, rss, files); err != nil {
		return nil, err
	}
	during, sp, err := c.openComplete(ctx)
	if err != nil {
		return nil, fmt.Errorf("during the stalled connections: %w", err)
	}
	f := during.compare(before, sp)
	f[Held] = float64(countOpen(s.conns))
	f[RSSPerConn], f[FDsPerConn] = atPeak[RSSPerConn], atPeak[FDsPerConn]
	return f, s.awaitClosed(ctx, f)
}

// awaitClosed waits until the stalled connections are closed.
func (s *staller) awaitClosed(ctx context.Context, f Figures) error {
	s.onTimer = nil
	end := time.Now().Add(s.spec.HelloTimeout + closeSlack)
	for countOpen(s.conns) > 0 && time.Now().Before(end) && ctx.Err() == nil {
		if err := s.run(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	f[Left] = float64(countOpen(s.conns))
	f[GoneAfter] = s.lifetimes.quantile(1) / 1e6
	return ctx.Err()
}

// completeResult is the result of complete connections.
type completeResult struct {
	latencies    samples
	sent, failed int
	lastErr      error
}

// openComplete opens Rate complete connections per second for Duration and
// waits for their responses. It runs the other tasks at the same time.
func (c *client) openComplete(ctx context.Context, others ...task) (completeResult, span, error) {
	k := &connector{client: c, latencies: newSamples()}
	opening := newRateTask(c.spec.Rate, -1, k.openOne)
	at, err := c.spec.readClocks()
	if err != nil {
		return completeResult{}, span{}, err
	}
	c.pace(append(others, opening)...)
	if err := c.run(ctx, c.spec.Duration); err != nil {
		return completeResult{}, span{}, err
	}
	sp, err := c.spec.since(at)
	if err != nil {
		return completeResult{}, span{}, err
	}
	opening.left = 0
	for end := time.Now().Add(responseTimeout); k.inFlight > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		if err := c.run(ctx, 10*time.Millisecond); err != nil {
			return completeResult{}, span{}, err
		}
	}
	g := completeResult{latencies: k.latencies, sent: k.sent, failed: k.failed + k.inFlight, lastErr: k.lastErr}
	if g.lastErr == nil && k.inFlight > 0 {
		g.lastErr = errors.New("no response")
	}
	if len(g.latencies) == 0 {
		return g, sp, fmt.Errorf("no connection received a response: %w", g.lastErr)
	}
	return g, sp, ctx.Err()
}

// compare returns the figures of g, and its p99 as a ratio of the p99 of
// before.
func (g completeResult) compare(before completeResult, sp span) Figures {
	f := Figures{Sent: float64(g.sent), Lost: float64(g.failed + before.failed),
		BaseP99: before.latencies.quantile(.99)}
	f.addCommon(sp)
	f.addQuantiles(g.latencies)
	f[P99Ratio] = f[P99] / f[BaseP99]
	return f
}
