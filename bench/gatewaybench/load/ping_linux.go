// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// pinger sends messages on open connections and measures the time until their
// echoes arrive.
type pinger struct {
	*client
	interval  time.Duration
	message   []byte
	latencies samples
	lost      int
	lastErr   error
	conns     []*rawConn // paced: in order of their next message, from conns[next] on
	next      int
}

func (c *client) newPinger(conns []*rawConn) *pinger {
	p := &pinger{client: c, interval: c.spec.Interval, message: request(opEcho), conns: conns, latencies: newSamples()}
	for _, conn := range conns {
		conn.handler = p
		conn.received = requestSize // no echo is pending
	}
	return p
}

// start sends the first message of each connection, or schedules it.
func (p *pinger) start() {
	now := time.Now()
	for i, c := range p.conns {
		if p.interval == 0 {
			p.send(c, now)
		} else { // spread over the interval
			c.start = now.Add(p.interval * time.Duration(i) / time.Duration(len(p.conns)))
		}
	}
}

// tick sends the messages that are due, and returns the time of its next call.
func (p *pinger) tick(now time.Time) (next time.Time) {
	for {
		c := p.conns[p.next]
		if c.start.After(now) {
			return c.start
		}
		p.next = (p.next + 1) % len(p.conns)
		switch {
		case c.fd < 0:
			// The connection is lost.
		case c.received < requestSize:
			// The last echo is late: skip this message. The latency of the late
			// message includes the delay.
			c.start, c.buf = c.start.Add(p.interval), nil
			c.skipped++
			continue
		default:
			p.send(c, c.start)
		}
		c.start = c.start.Add(p.interval)
	}
}

// send sends a message. Its latency is measured from due.
func (p *pinger) send(c *rawConn, due time.Time) {
	c.received, c.skipped = 0, 0
	if p.interval == 0 {
		c.start = due
	}
	if n, err := unix.Write(c.fd, p.message); err != nil || n < len(p.message) {
		p.countLost(c, fmt.Errorf("send message: %w", err))
	}
}

func (p *pinger) countLost(c *rawConn, err error) {
	p.lost++
	p.lastErr = err
	p.drop(c)
}

func (p *pinger) ready(c *rawConn, _ uint32) {
	n, err := p.receive(c, 0)
	if err != nil {
		p.countLost(c, err)
		return
	}
	if c.received += n; c.received < requestSize || n == 0 {
		return
	}
	now, sent := time.Now(), c.start
	if p.interval > 0 { // start is the time of the next message
		sent = c.start.Add(-p.interval * time.Duration(1+c.skipped))
	}
	p.latencies = append(p.latencies, now.Sub(sent))
	if p.interval == 0 {
		p.send(c, now)
	}
}

func (c *client) ping(ctx context.Context) (Figures, error) {
	conns, err := c.openAll(ctx, opEcho, c.spec.Conns)
	if err != nil {
		return nil, err
	}
	p := c.newPinger(conns)
	p.start()
	if p.interval > 0 {
		c.pace(p)
	}
	f := Figures{}
	err = c.measure(ctx, func(sp span) {
		f.addCommon(sp)
		f.addQuantiles(p.latencies)
		if n := len(p.latencies); n > 0 && sp.proxy > 0 {
			f[CPUPerMsg] = sp.proxy * 1e6 / float64(n)
		}
	}, func() { p.latencies = p.latencies[:0] })
	switch {
	case err != nil:
	case p.lost > 0:
		err = fmt.Errorf("%d connections failed: %w", p.lost, p.lastErr)
	case len(p.latencies) == 0:
		err = errors.New("no echo received")
	}
	return f, err
}
