// SPDX-License-Identifier: MPL-2.0

package wanfed

import "encoding/binary"

// framed counts frames by pool.
type framed [PoolLAN + 1]int

// frameQueue holds encoded frames in order, ready to be written. It holds at most max bytes: a push that does not fit drops
// the oldest, since old gossip is worth less than new. It has no lock; its zero value with max set is empty.
//
// Invariant: buf[head:] is a sequence of n whole frames.
type frameQueue struct {
	max  int
	buf  []byte
	head int
	n    int
}

// push appends one frame and returns what it dropped to make room. A frame alone always fits.
func (q *frameQueue) push(pool Pool, name string, packet []byte) (dropped framed) {
	need := frameHeadLen + len(name) + len(packet)
	for q.n > 0 && q.bytes()+need > q.max {
		dropped[q.popFront()]++
	}
	if q.head > 0 && (q.n == 0 || len(q.buf)+need > cap(q.buf)) {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = appendFrame(q.buf, pool, name, packet)
	q.n++
	return dropped
}

// popFront drops the oldest frame and returns its pool.
func (q *frameQueue) popFront() Pool {
	b := q.buf[q.head:]
	q.head += lengthLen + int(binary.BigEndian.Uint32(b))
	q.n--
	return Pool(b[lengthLen])
}

// take returns all queued frames in order and leaves the queue empty, with spare as its buffer.
func (q *frameQueue) take(spare []byte) (frames []byte, n int) {
	frames, n = q.buf[q.head:], q.n
	q.buf, q.head, q.n = spare[:0], 0, 0
	return frames, n
}

func (q *frameQueue) bytes() int { return len(q.buf) - q.head }

// countFrames counts whole frames by pool.
func countFrames(frames []byte) (c framed) {
	for len(frames) > 0 {
		c[frames[lengthLen]]++
		frames = frames[lengthLen+int(binary.BigEndian.Uint32(frames)):]
	}
	return c
}
