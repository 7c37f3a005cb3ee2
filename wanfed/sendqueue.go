// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"time"
)

// frameCounts counts frames by pool.
type frameCounts [PoolLAN + 1]int

func (c frameCounts) total() (n int) {
	for _, k := range c {
		n += k
	}
	return n
}

// sendQueue holds encoded frames in order, ready to be written. It holds at
// most max bytes. A push that does not fit drops the oldest frames, since older
// gossip is worth less. It has no lock. The zero value with max set is empty.
//
// Invariants: buf[head:] is a sequence of whole frames, count of them.
// The first ages[0].n of them were pushed first, then ages[1].n, and so on. The
// capacity of buf is at most about twice max, or one frame.
type sendQueue struct {
	max   int
	buf   []byte
	head  int
	count frameCounts
	ages  []ageGroup
}

// ageGroup records when n consecutive frames were pushed, as the time since a
// fixed moment.
type ageGroup struct {
	first, last time.Duration // less than ageStep apart
	n           int
}

const (
	// ageStep is the precision of the recorded ages.
	ageStep = 250 * time.Millisecond
	// maxAges bounds the groups. Frames older than their span, 4 s, count as
	// younger than they are.
	maxAges = 16
)

// push appends one frame and returns what it dropped to make room. A single
// frame always fits.
func (q *sendQueue) push(pool Pool, name string, packet []byte, now time.Duration) (dropped frameCounts) {
	need := frameHeadLen + len(name) + len(packet)
	for q.bytes() > 0 && q.bytes()+need > q.max {
		dropped[q.popFront()]++
	}
	// Compact only when at least as much was dropped as is kept. So a push
	// moves no more than its own bytes on average.
	if len(q.buf)+need > cap(q.buf) && q.head >= q.bytes() {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = appendFrame(q.buf, pool, name, packet)
	q.count[pool]++
	q.stamp(now)
	return dropped
}

// stamp records that one frame was pushed now.
func (q *sendQueue) stamp(now time.Duration) {
	if i := len(q.ages) - 1; i >= 0 && now-q.ages[i].first < ageStep {
		q.ages[i].n++
		q.ages[i].last = now
		return
	}
	if len(q.ages) == maxAges {
		q.ages[1].n += q.ages[0].n
		q.dropAge()
	}
	q.ages = append(q.ages, ageGroup{first: now, last: now, n: 1})
}

func (q *sendQueue) dropAge() { q.ages = q.ages[:copy(q.ages, q.ages[1:])] }

// popFront drops the oldest frame and returns its pool.
func (q *sendQueue) popFront() Pool {
	b := q.buf[q.head:]
	q.head += lengthLen + int(binary.BigEndian.Uint32(b))
	pool := Pool(b[lengthLen])
	q.count[pool]--
	if q.ages[0].n--; q.ages[0].n == 0 {
		q.dropAge()
	}
	return pool
}

// dropBefore drops and counts the frames that were pushed before t.
func (q *sendQueue) dropBefore(t time.Duration) (dropped frameCounts) {
	for len(q.ages) > 0 && q.ages[0].last < t {
		dropped[q.popFront()]++
	}
	return dropped
}

// batch is the content of a queue: frames in order, and their count.
type batch struct {
	buf   []byte // frames are buf[head:]
	head  int
	count frameCounts
}

func (b *batch) frames() []byte { return b.buf[b.head:] }

// take returns all queued frames and leaves the queue empty, with spare as its
// buffer.
func (q *sendQueue) take(spare []byte) batch {
	b := batch{buf: q.buf, head: q.head, count: q.count}
	q.buf, q.head, q.count, q.ages = spare[:0], 0, frameCounts{}, q.ages[:0]
	return b
}

func (q *sendQueue) bytes() int { return len(q.buf) - q.head }
