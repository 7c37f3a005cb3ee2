// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"sync/atomic"
	"time"
)

// Path is one direction between two ports. Its methods may be called from any goroutine.
type Path struct {
	link  atomic.Pointer[Link]
	count counters

	// The rest belongs to the switch's goroutine. Times are since the start of its clock.
	idle time.Duration // when all that was admitted has been sent at the link's rate
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

// Set changes what the path does to packets from now on. Those under way arrive when they were going to, unless it cuts.
func (p *Path) Set(l Link) error {
	if err := l.validate(); err != nil {
		return err
	}
	p.link.Store(&l)
	return nil
}

// Link is what was set last.
func (p *Path) Link() Link { return *p.link.Load() }

// Stats may be a few packets apart in its fields while packets move.
func (p *Path) Stats() Stats {
	c := &p.count
	return Stats{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		Delivered: c.delivered.Load(), DeliveredBytes: c.deliveredBytes.Load(),
		Lost: c.lost.Load(), Full: c.full.Load(), Cut: c.cut.Load(), Refused: c.refused.Load(),
		Late: time.Duration(c.late.Load()),
	}
}

// maxUnderWay bounds the packets of one path, whatever its rate and delay: 1.1 Gbit/s at 400 ms.
const maxUnderWay = 40_000

// admit decides about a packet of size bytes that was sent at now: when it is due, or that it is dropped, and counts that.
// random gives numbers from 0 up to 1.
func (p *Path) admit(now time.Duration, size int, random func() float64) (due time.Duration, ok bool) {
	l := p.link.Load()
	p.count.sent.Add(1)
	p.count.sentBytes.Add(uint64(size))
	if l.Cut {
		p.count.cut.Add(1)
		return 0, false
	}
	if p.q.len() >= maxUnderWay {
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
	if l.Loss > 0 && random() < l.Loss { // after the rate: it is lost on the way, not at the sender
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

// packet is one IP packet under way.
type packet struct {
	due time.Duration
	b   []byte
}

// queue is first in, first out. Its zero value is empty.
type queue struct {
	packets []packet
	head    int // of packets; those before it have been taken
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

// peek says when the first packet is due.
func (q *queue) peek() (due time.Duration, ok bool) {
	if q.len() == 0 {
		return 0, false
	}
	return q.packets[q.head].due, true
}

// pop takes the first packet of a queue that is not empty.
func (q *queue) pop() packet {
	p := q.packets[q.head]
	q.packets[q.head] = packet{}
	q.head++
	return p
}
