// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// pinger sends messages on open connections and awaits their echoes.
type pinger struct {
	*client
	interval time.Duration
	message  []byte
	took     samples
	lost     int
	last     error
	due      []*rawConn // paced: the next at due[turn], since all wait equally long
	turn     int
}

func (c *client) newPinger(conns []*rawConn) *pinger {
	p := &pinger{client: c, interval: c.spec.Interval, message: request(opEcho), due: conns, took: newSamples()}
	for _, conn := range conns {
		conn.handler = p
		conn.got = requestSize // nothing is awaited
	}
	return p
}

// start sends the first message of each connection, or says when it is due.
func (p *pinger) start() {
	now := time.Now()
	for i, c := range p.due {
		if p.interval == 0 {
			p.send(c, now)
		} else { // spread over the interval
			c.began = now.Add(p.interval * time.Duration(i) / time.Duration(len(p.due)))
		}
	}
}

// tick sends what is due, and returns when it wants to be called again.
func (p *pinger) tick(now time.Time) (next time.Time) {
	for {
		c := p.due[p.turn]
		if c.began.After(now) {
			return c.began
		}
		p.turn = (p.turn + 1) % len(p.due)
		switch {
		case c.fd < 0: // lost
		case c.got < requestSize: // the last echo is late: this turn is skipped, and the lateness shows in the last
			c.began, c.buf = c.began.Add(p.interval), nil
			c.slot++
			continue
		default:
			p.send(c, c.began)
		}
		c.began = c.began.Add(p.interval)
	}
}

// send sends a message that counts from due.
func (p *pinger) send(c *rawConn, due time.Time) {
	c.got, c.slot = 0, 0
	if p.interval == 0 {
		c.began = due
	}
	if n, err := unix.Write(c.fd, p.message); err != nil || n < len(p.message) {
		p.lose(c, fmt.Errorf("send a message: %w", err))
	}
}

func (p *pinger) lose(c *rawConn, err error) {
	p.lost++
	p.last = err
	p.drop(c)
}

func (p *pinger) ready(c *rawConn, _ uint32) {
	n, err := p.receive(c, 0)
	if err != nil {
		p.lose(c, err)
		return
	}
	if c.got += n; c.got < requestSize || n == 0 {
		return
	}
	now, sent := time.Now(), c.began
	if p.interval > 0 { // began is when the next is due
		sent = c.began.Add(-p.interval * time.Duration(1+c.slot))
	}
	p.took = append(p.took, now.Sub(sent))
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
		f.add(sp)
		f.addQuantiles(p.took)
		if n := len(p.took); n > 0 && sp.proxy > 0 {
			f[CPUPerMsg] = sp.proxy * 1e6 / float64(n)
		}
	}, func() { p.took = p.took[:0] })
	switch {
	case err != nil:
	case p.lost > 0:
		err = fmt.Errorf("%d connections broke: %w", p.lost, p.last)
	case len(p.took) == 0:
		err = errors.New("no message came back")
	}
	return f, err
}
