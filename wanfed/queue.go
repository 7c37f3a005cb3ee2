// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"time"
)

// framed counts frames by pool.
type framed [PoolLAN + 1]int

func (c framed) total() (n int) {
	for _, k := range c {
		n += k
	}
	return n
}

// frameQueue holds encoded frames in order, ready to be written. It holds at most max bytes: a push that does not fit drops
// the oldest, since old gossip is worth less than new. It has no lock; its zero value with max set is empty.
//
// Invariants: buf[head:] is a sequence of whole frames, as many as count has. The first ages[0].n of them came first, then
// ages[1].n, and so on. buf has room for at most twice max, or a single frame.
type frameQueue struct {
	max   int
	buf   []byte
	head  int
	count framed
	ages  []age
}

// age says when n frames, one after the other, were pushed, in time since any fixed moment.
type age struct {
	first, last time.Duration // less than ageStep apart
	n           int
}

const (
	// ageStep is how exactly the queue knows when a frame was pushed.
	ageStep = 250 * time.Millisecond
	// maxAges bounds what the queue remembers of ages. What is older than their span, 4 s, counts as younger than it is.
	maxAges = 16
)

// push appends one frame and returns what it dropped to make room. A frame alone always fits.
func (q *frameQueue) push(pool Pool, name string, packet []byte, now time.Duration) (dropped framed) {
	need := frameHeadLen + len(name) + len(packet)
	for q.bytes() > 0 && q.bytes()+need > q.max {
		dropped[q.popFront()]++
	}
	// Not before at least as much was dropped as is kept: a push moves no more than its own bytes, on average.
	if len(q.buf)+need > cap(q.buf) && q.head >= q.bytes() {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = appendFrame(q.buf, pool, name, packet)
	q.count[pool]++
	q.stamp(now)
	return dropped
}

// stamp remembers that one frame was pushed now.
func (q *frameQueue) stamp(now time.Duration) {
	if i := len(q.ages) - 1; i >= 0 && now-q.ages[i].first < ageStep {
		q.ages[i].n++
		q.ages[i].last = now
		return
	}
	if len(q.ages) == maxAges {
		q.ages[1].n += q.ages[0].n
		q.dropAge()
	}
	q.ages = append(q.ages, age{first: now, last: now, n: 1})
}

func (q *frameQueue) dropAge() { q.ages = q.ages[:copy(q.ages, q.ages[1:])] }

// popFront drops the oldest frame and returns its pool.
func (q *frameQueue) popFront() Pool {
	b := q.buf[q.head:]
	q.head += lengthLen + int(binary.BigEndian.Uint32(b))
	pool := Pool(b[lengthLen])
	q.count[pool]--
	if q.ages[0].n--; q.ages[0].n == 0 {
		q.dropAge()
	}
	return pool
}

// dropBefore drops the frames that were pushed before t, and counts them.
func (q *frameQueue) dropBefore(t time.Duration) (dropped framed) {
	for len(q.ages) > 0 && q.ages[0].last < t {
		dropped[q.popFront()]++
	}
	return dropped
}

// batch is what was taken out of a queue: frames in order, and how many.
type batch struct {
	buf   []byte // frames are buf[head:]
	head  int
	count framed
}

func (b *batch) frames() []byte { return b.buf[b.head:] }

// take returns all queued frames and leaves the queue empty, with spare as its buffer.
func (q *frameQueue) take(spare []byte) batch {
	b := batch{buf: q.buf, head: q.head, count: q.count}
	q.buf, q.head, q.count, q.ages = spare[:0], 0, framed{}, q.ages[:0]
	return b
}

func (q *frameQueue) bytes() int { return len(q.buf) - q.head }
