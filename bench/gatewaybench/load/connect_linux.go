// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// connector opens connections, receives one response on each, and closes them.
// It keeps a constant number of connections in progress (closed loop), or opens
// them at a constant rate (open loop).
type connector struct {
	*client
	closedLoop bool
	latencies  samples
	sent       int
	failed     int
	refused    int // failures with connection refused
	lastErr    error
	inFlight   int
}

// openOne opens one connection. Its latency is measured from start.
func (k *connector) openOne(start time.Time) {
	k.sent++
	c, err := k.open(opRespond, k)
	if err != nil {
		k.countFailure(err)
		return
	}
	k.inFlight++
	c.start = start
}

func (k *connector) countFailure(err error) {
	k.failed++
	if k.lastErr = err; errors.Is(err, unix.ECONNREFUSED) {
		k.refused++
	}
}

func (k *connector) ready(c *rawConn, events uint32) {
	done, err := k.readResponse(c, events)
	switch {
	case err != nil:
		k.countFailure(err)
	case !done:
		return
	default:
		k.latencies = append(k.latencies, time.Since(c.start))
	}
	k.inFlight--
	k.drop(c)
	if k.closedLoop && k.failed < maxFailures {
		k.openOne(time.Now())
	}
}

// maxFailures is the number of failures after which no further connections are
// opened.
const maxFailures = 1000

func (c *client) connect(ctx context.Context) (Figures, error) {
	k := &connector{client: c, closedLoop: true}
	for range c.spec.Conns {
		k.openOne(time.Now())
	}
	f := Figures{}
	begin := func() { k.latencies, k.failed = newSamples(), 0 }
	err := c.measure(ctx, func(sp span) { f.addConnect(sp, k.latencies) }, begin)
	if err == nil {
		err = f.checkConnect(len(k.latencies), k.failed, k.lastErr)
	}
	return f, err
}

func (f Figures) addConnect(sp span, latencies samples) {
	f.addCommon(sp)
	f.addQuantiles(latencies)
	f[ConnPerS] = float64(len(latencies)) / sp.wall
	if n := len(latencies); n > 0 && sp.proxy > 0 {
		f[CPUPerConn] = sp.proxy * 1e6 / float64(n)
	}
}

func (f Figures) checkConnect(succeeded, failed int, lastErr error) error {
	f[Lost] = float64(failed)
	switch {
	case succeeded == 0 && lastErr == nil:
		return errors.New("no connection received a response in time")
	case succeeded == 0:
		return fmt.Errorf("no connection received a response: %w", lastErr)
	case failed*100 > succeeded:
		return fmt.Errorf("%d connections failed and %d succeeded: %w", failed, succeeded, lastErr)
	}
	return nil
}
