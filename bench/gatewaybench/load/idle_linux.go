// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
)

// warmupConns are opened and closed before the baseline of the memory is read.
// Memory that a proxy allocates only once then does not count.
const warmupConns = 32

// baselineMemory opens and closes some connections, waits for Warmup, and
// returns the memory and the open files of the proxy.
func (c *client) baselineMemory(ctx context.Context) (rss, files float64, _ error) {
	conns, err := c.openAll(ctx, opRespond, warmupConns)
	if err != nil {
		return 0, 0, err
	}
	for _, conn := range conns {
		c.drop(conn)
	}
	if err := c.run(ctx, c.spec.Warmup); err != nil {
		return 0, 0, err
	}
	return memoryUse(c.spec.PIDs)
}

func countOpen(conns []*rawConn) (n int) {
	for _, c := range conns {
		if c.fd >= 0 {
			n++
		}
	}
	return n
}

func (c *client) idle(ctx context.Context) (Figures, error) {
	rss, files, err := c.baselineMemory(ctx)
	if err != nil {
		return nil, err
	}
	// If the proxy does not accept all connections, Held shows how many it has.
	conns, openErr := c.openAll(ctx, opEcho, c.spec.Conns)
	if len(conns) == 0 {
		return nil, openErr
	}
	at, err := c.spec.readClocks()
	if err == nil {
		err = c.run(ctx, c.spec.Settle)
	}
	if err != nil {
		return nil, err
	}
	f := Figures{Held: float64(countOpen(conns))}
	if f[Held] == 0 {
		return nil, errors.New("no connection stayed open")
	}
	sp, err := c.spec.since(at)
	if err != nil {
		return nil, err
	}
	f.addCommon(sp)
	if err := f.addMemory(c.spec.PIDs, rss, files); err != nil {
		return nil, err
	}
	return f, c.checkAlive(ctx, conns)
}

// addMemory sets the memory and the open files that the proxy needs for each of
// Held connections, above rss and files.
func (f Figures) addMemory(pids []int, rss, files float64) error {
	rss2, files2, err := memoryUse(pids)
	f[RSSPerConn] = (rss2 - rss) / 1024 / f[Held]
	f[FDsPerConn] = (files2 - files) / f[Held]
	return err
}

// checkAlive sends a message over about a hundred of the connections and waits
// for the echoes.
func (c *client) checkAlive(ctx context.Context, conns []*rawConn) error {
	var some []*rawConn
	for i := 0; i < len(conns); i += max(1, len(conns)/100) {
		if conns[i].fd >= 0 {
			some = append(some, conns[i])
		}
	}
	p := &echoWaiter{client: c, left: len(some)}
	for _, conn := range some {
		conn.handler, conn.received, conn.buf = p, 0, request(opEcho)
		if _, err := c.flush(conn); err != nil {
			return fmt.Errorf("idle connection failed: %w", err)
		}
	}
	if err := c.run(ctx, responseTimeout); err != nil {
		return err
	}
	if p.left > 0 {
		return fmt.Errorf("%d of %d idle connections do not carry data", p.left, len(some))
	}
	return nil
}

// echoWaiter waits for one echo on each of several connections.
type echoWaiter struct {
	*client
	left int
}

func (e *echoWaiter) ready(c *rawConn, events uint32) {
	done, err := e.readResponse(c, events)
	if err != nil {
		e.fail(fmt.Errorf("idle connection failed: %w", err))
		return
	}
	if done {
		c.handler = idleHandler{e.loop}
		if e.left--; e.left == 0 {
			e.stop()
		}
	}
}
