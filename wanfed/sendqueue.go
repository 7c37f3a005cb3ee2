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
// gossip is less useful. sendQueue has no lock. The zero value with max set is
// empty.
//
// Invariants: buf[head:] is a sequence of whole frames, count of them, and
// pushed[i] is the time at which frame i was pushed. The capacity of buf is at
// most about twice max, or one frame.
type sendQueue struct {
	max    int
	buf    []byte
	head   int
	count  frameCounts
	pushed []time.Duration // since any fixed moment
}

// push appends one frame. It returns the counts of the frames that it dropped
// to free space. A single frame always fits.
func (q *sendQueue) push(pool Pool, name string, packet []byte, now time.Duration) (dropped frameCounts) {
	need := frameHeadLen + len(name) + len(packet)
	for q.bytes() > 0 && q.bytes()+need > q.max {
		dropped[q.popFront()]++
	}
	// Compact only if the dropped frames have at least as many bytes as the
	// kept frames. A push then moves at most its own number of bytes on
	// average.
	if len(q.buf)+need > cap(q.buf) && q.head >= q.bytes() {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = appendFrame(q.buf, pool, name, packet)
	q.count[pool]++
	q.pushed = append(q.pushed, now)
	return dropped
}

// popFront drops the oldest frame and returns its pool.
func (q *sendQueue) popFront() Pool {
	b := q.buf[q.head:]
	q.head += lengthLen + int(binary.BigEndian.Uint32(b))
	pool := Pool(b[lengthLen])
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
	q.buf, q.head, q.count, q.pushed = spare[:0], 0, frameCounts{}, nil
	return b
}

func (q *sendQueue) bytes() int { return len(q.buf) - q.head }
