// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// drain stops the proxy while it is in use. From then on the proxy may refuse
// new connections, but each accepted connection must receive its response. Open
// connections continue: the client closes half of them within half of the drain
// time. The others stay open until the proxy closes them.
func (c *client) drain(ctx context.Context) (Figures, error) {
	conns, err := c.openAll(ctx, opEcho, c.spec.Conns)
	if err != nil {
		return nil, err
	}
	p := c.newPinger(conns)
	p.start()
	k := &connector{client: c, latencies: newSamples()}
	opening := newRateTask(c.spec.Rate, -1, k.openOne)
	at, err := c.spec.readClocks()
	if err != nil {
		return nil, err
	}
	c.pace(p, opening)
	if err := c.run(ctx, c.spec.Duration); err != nil {
		return nil, err
	}
	sp, err := c.spec.since(at)
	if err == nil {
		err = syscall.Kill(c.spec.Routes.PID, syscall.SIGTERM)
	}
	if err != nil {
		return nil, err
	}
	stopped := time.Now()
	if err := c.run(ctx, c.spec.DrainTime/2); err != nil {
		return nil, err
	}
	opening.left = 0
	for _, conn := range conns[:len(conns)/2] {
		c.drop(conn)
	}
	if err := c.run(ctx, c.spec.DrainTime/4); err != nil {
		return nil, err
	}
	f := Figures{
		Sent: float64(k.sent), Refused: float64(k.refused), Lost: float64(p.lost + k.failed - k.refused + k.inFlight),
	}
	f.addCommon(sp)
	f.addQuantiles(k.latencies)
	lostErr := errors.Join(k.lastErr, p.lastErr)
	end := stopped.Add(c.spec.DrainTime + closeSlack)
	for countOpen(conns) > 0 && time.Now().Before(end) && ctx.Err() == nil {
		if err := c.run(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	f[GoneAfter], f[Left] = time.Since(stopped).Seconds(), float64(countOpen(conns))
	if f[Lost] > 0 {
		return f, fmt.Errorf("%v connections lost: %w", f[Lost], lostErr)
	}
	return f, ctx.Err()
}
