// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"sync/atomic"
	"time"
)

// Path is one direction between two ports. Its methods may be called from any
// goroutine.
type Path struct {
	link  atomic.Pointer[Link]
	count counters

	// The following fields are used by the goroutine of the switch only. Times
	// are measured since the start of its clock.
	idle time.Duration // when the last admitted packet has been sent at Link.Rate
	last time.Duration // when the newest packet is due
	q    queue
}

type counters struct {
	sent, sentBytes, delivered, deliveredBytes atomic.Uint64
	lost, full, cut, refused                   atomic.Uint64
	late                                       atomic.Int64
}

func newPath(l Link) *Path {
	p := &Path{}
	p.link.Store(&l)
	return p
}

// Set changes how the path treats packets that are sent from now on. Packets in
// flight keep their due time. They are dropped if l.Cut is set.
func (p *Path) Set(l Link) error {
	if err := l.validate(); err != nil {
		return err
	}
	p.link.Store(&l)
	return nil
}

// Link returns the link that was set last.
func (p *Path) Link() Link { return *p.link.Load() }

// Stats returns the counters. While packets flow, they can differ from each
// other by a few packets.
func (p *Path) Stats() Stats {
	c := &p.count
	return Stats{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		Delivered: c.delivered.Load(), DeliveredBytes: c.deliveredBytes.Load(),
		Lost: c.lost.Load(), Full: c.full.Load(), Cut: c.cut.Load(), Refused: c.refused.Load(),
		Late: time.Duration(c.late.Load()),
	}
}

// maxInFlight limits the packets of one path, independent of its rate and
// delay. It is enough for 1.1 Gbit/s at 400 ms.
const maxInFlight = 40_000

// admit returns when a packet of size bytes that was sent at now is due. It
// returns false, and counts the reason, if the packet is dropped. random
// returns numbers in [0, 1).
func (p *Path) admit(now time.Duration, size int, random func() float64) (due time.Duration, ok bool) {
	l := p.link.Load()
	p.count.sent.Add(1)
	p.count.sentBytes.Add(uint64(size))
	if l.Cut {
		p.count.cut.Add(1)
		return 0, false
	}
	if p.q.len() >= maxInFlight {
		p.count.full.Add(1)
		return 0, false
	}
	due = now
	if l.Rate > 0 {
		start := max(now, p.idle)
		perByte := 8 * float64(time.Second) / float64(l.Rate)
		if waiting := float64(start-now) / perByte; waiting+float64(size) > float64(l.queue()) {
			p.count.full.Add(1)
			return 0, false
		}
		p.idle = start + time.Duration(float64(size)*perByte)
		due = p.idle
	}
	if l.Loss > 0 && random() < l.Loss { // a lost packet has used its share of the rate
		p.count.lost.Add(1)
		return 0, false
	}
	due += l.Delay
	if l.Jitter > 0 {
		due += time.Duration(random() * float64(l.Jitter))
	}
	p.last = max(due, p.last)
	return p.last, true
}

// packet is one IP packet in flight.
type packet struct {
	due time.Duration
	b   []byte
}

// queue is a FIFO queue. Its zero value is empty.
type queue struct {
	packets []packet
	head    int // index of the first packet; those before it were popped
}

func (q *queue) len() int { return len(q.packets) - q.head }

func (q *queue) push(p packet) {
	if q.head > 64 && q.head > len(q.packets)/2 {
		n := copy(q.packets, q.packets[q.head:])
		clear(q.packets[n:])
		q.packets, q.head = q.packets[:n], 0
	}
	q.packets = append(q.packets, p)
}

// peek returns when the first packet is due, and false if the queue is empty.
func (q *queue) peek() (due time.Duration, ok bool) {
	if q.len() == 0 {
		return 0, false
	}
	return q.packets[q.head].due, true
}

// pop removes and returns the first packet. The queue must not be empty.
func (q *queue) pop() packet {
	p := q.packets[q.head]
	q.packets[q.head] = packet{}
	q.head++
	return p
}
