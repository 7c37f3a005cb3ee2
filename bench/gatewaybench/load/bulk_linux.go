// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// bulkReader is the handler of connections that receive bulk data.
type bulkReader struct {
	*client
	bytes int64
}

// ready discards received data without copying it (tcp(7): MSG_TRUNC).
func (d *bulkReader) ready(c *rawConn, events uint32) {
	err := d.flushOn(c, events)
	if err == nil && events&^unix.EPOLLOUT != 0 {
		var n int
		n, err = d.receive(c, unix.MSG_TRUNC)
		d.bytes += int64(n)
	}
	if err != nil {
		d.fail(fmt.Errorf("bulk connection failed: %w", err))
	}
}

// bulk receives data over Conns connections at the same time, and returns the
// rate.
func (c *client) bulk(ctx context.Context) (Figures, error) {
	c.readBuf = make([]byte, 1<<20)
	d := &bulkReader{client: c}
	for range c.spec.Conns {
		if _, err := c.open(opSource, d); err != nil {
			return nil, err
		}
	}
	f := Figures{}
	err := c.measure(ctx, func(sp span) { f.addBulk(sp, d.bytes) }, func() { d.bytes = 0 })
	if err == nil && f[MBPerS] == 0 {
		err = errors.New("no bulk data received")
	}
	return f, err
}

func (f Figures) addBulk(sp span, bytes int64) {
	f.addCommon(sp)
	f[MBPerS] = float64(bytes) / 1e6 / sp.wall
	if bytes > 0 && sp.proxy > 0 {
		f[CPUPerGB] = sp.proxy / (float64(bytes) / 1e9)
	}
}

// measure runs the loop for Warmup, calls begin, runs it for Duration, and
// calls end with the usage in that time.
func (c *client) measure(ctx context.Context, end func(span), begin func()) error {
	if err := c.run(ctx, c.spec.Warmup); err != nil {
		return err
	}
	at, err := c.spec.readClocks()
	if err != nil {
		return err
	}
	begin()
	if err := c.run(ctx, c.spec.Duration); err != nil {
		return err
	}
	sp, err := c.spec.since(at)
	if err != nil {
		return err
	}
	end(sp)
	return ctx.Err()
}
