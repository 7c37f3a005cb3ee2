// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"time"
)

// frameCounts counts frames by pool.
type frameCounts [PoolLAN + 1]int

// counted returns the pool in whose counts a frame of p is.
func (p Pool) counted() Pool {
	if p == poolRelayed {
		return PoolWAN
	}
	return p
}

func (c frameCounts) total() (n int) {
	for _, k := range c {
		n += k
	}
	return n
}

// sendQueue holds encoded frames in order, ready to be written. It holds at
// most max bytes. A push into a full queue drops the oldest frames, because
// older gossip is less useful. sendQueue has no lock. The zero value with max
// set is an empty queue. The capacity of buf is at most about twice max, or one
// frame.
type sendQueue struct {
	max    int
	buf    []byte // whole frames from head on
	head   int
	count  frameCounts     // of the frames in buf
	pushed []time.Duration // time of the push of each frame, since any fixed moment
}

// push appends one frame and returns the counts of the frames that it dropped
// to free space. The queue accepts a single frame of any size.
func (q *sendQueue) push(pool Pool, name string, packet []byte, now time.Duration) (dropped frameCounts) {
	need := frameHeadLen + len(name) + len(packet)
	for q.bytes() > 0 && q.bytes()+need > q.max {
		dropped[q.popFront()]++
	}
	// Reuse the space of dropped frames only if it is at least as large as the
	// kept frames. On average a push then moves at most its own size.
	if len(q.buf)+need > cap(q.buf) && q.head >= q.bytes() {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = appendFrame(q.buf, pool, name, packet)
	q.count[pool.counted()]++
	q.pushed = append(q.pushed, now)
	return dropped
}

// popFront drops the oldest frame and returns the pool that counts it.
func (q *sendQueue) popFront() Pool {
	b := q.buf[q.head:]
	q.head += lengthLen + int(binary.BigEndian.Uint32(b))
	pool := Pool(b[lengthLen]).counted()
	q.count[pool]--
	q.pushed = q.pushed[1:]
	return pool
}

// dropBefore drops and counts the frames that were pushed before t.
func (q *sendQueue) dropBefore(t time.Duration) (dropped frameCounts) {
	for len(q.pushed) > 0 && q.pushed[0] < t {
		dropped[q.popFront()]++
	}
	return dropped
}

// batch is the former content of a sendQueue.
type batch struct {
	buf   []byte // frames are buf[head:]
	head  int
	count frameCounts
}

func (b *batch) frames() []byte { return b.buf[b.head:] }

// take returns all queued frames. The queue is then empty and uses spare as its
// buffer.
func (q *sendQueue) take(spare []byte) batch {
	b := batch{buf: q.buf, head: q.head, count: q.count}
	q.buf, q.head, q.count, q.pushed = spare[:0], 0, frameCounts{}, nil
	return b
}

func (q *sendQueue) bytes() int { return len(q.buf) - q.head }
