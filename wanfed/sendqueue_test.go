// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// packetsOf returns the packets in frames.
func packetsOf(t testing.TB, frames []byte) []string {
	t.Helper()
	var out []string
	for len(frames) > 0 {
		f, err := decodeFrame(frames)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(f.packet))
		frames = frames[f.size:]
	}
	return out
}

// A push into a full queue drops the oldest frames.
func TestSendQueue_DropsOldest(t *testing.T) {
	const now = time.Second
	q := sendQueue{max: 3 * (frameHeadLen + 1 + 1)} // three frames with a name and a packet of one byte each
	for i, want := range []frameCounts{{}, {}, {}, {PoolWAN: 1}, {PoolLAN: 1}} {
		pool := PoolWAN
		if i == 1 {
			pool = PoolLAN
		}
		if got := q.push(pool, "n", []byte{byte('a' + i)}, now); got != want {
			t.Errorf("push() of packet %d = %v, want %v", i, got, want)
		}
	}
	if q.count.total() != 3 || q.bytes() != q.max {
		t.Errorf("queue has %d frames, %d bytes, want 3 frames, %d bytes", q.count.total(), q.bytes(), q.max)
	}
	if got := q.push(PoolWAN, "n", make([]byte, 100), now); got != (frameCounts{PoolWAN: 3}) ||
		q.count != (frameCounts{PoolWAN: 1}) {
		t.Errorf("push() of a packet larger than the queue = %v, count %v; want 3 dropped, count 1", got, q.count)
	}
	b := q.take(nil)
	if b.count != (frameCounts{PoolWAN: 1}) || len(packetsOf(t, b.frames())) != 1 || q.count != (frameCounts{}) ||
		q.bytes() != 0 {
		t.Errorf("take() = %v, leaves %v, want 1 frame, leaves none", b.count, q.count)
	}
}

// modelPacket is a packet in the model of a queue, which is a slice.
type modelPacket struct {
	packet string
	at     time.Duration // time of the push
}

// The queue has the same packets as a slice after random operations.
func TestSendQueue_Model(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	q := sendQueue{max: 2000}
	var model []modelPacket
	var spare []byte
	size := func() (n int) {
		for _, p := range model {
			n += frameHeadLen + 3 + len(p.packet)
		}
		return n
	}
	var now time.Duration
	for i := range 20000 {
		now += time.Duration(rnd.IntN(400)) * time.Millisecond
		switch rnd.IntN(20) {
		case 0:
			b := q.take(spare)
			var want []string
			for _, p := range model {
				want = append(want, p.packet)
			}
			if got := packetsOf(t, b.frames()); !slices.Equal(got, want) ||
				b.count != (frameCounts{PoolWAN: len(want)}) {
				t.Fatalf("step %d: take() = %q, count %v, want %q", i, got, b.count, want)
			}
			spare, model = b.buf, nil
			continue
		case 1:
			limit := now - 2*time.Second
			dropped := q.dropBefore(limit)[PoolWAN]
			want := 0
			for want < len(model) && model[want].at < limit {
				want++
			}
			if dropped != want {
				t.Fatalf("step %d: dropBefore() = %d of %d packets, want %d", i, dropped, len(model), want)
			}
			model = model[dropped:]
			continue
		}
		p := fmt.Sprintf("%0*d", 1+rnd.IntN(400), i)
		model = append(model, modelPacket{p, now})
		drop := 0
		for len(model) > 1 && size() > q.max {
			model, drop = model[1:], drop+1
		}
		if got := q.push(PoolWAN, "abc", []byte(p), now); got[PoolWAN] != drop {
			t.Fatalf("step %d: push() dropped %d, want %d", i, got[PoolWAN], drop)
		}
		if q.count[PoolWAN] != len(model) || q.bytes() != size() || cap(q.buf) > 3*q.max {
			t.Fatalf("step %d: queue has %d packets, %d bytes, capacity %d; want %d, %d, at most %d",
				i, q.count[PoolWAN], q.bytes(), cap(q.buf), len(model), size(), 3*q.max)
		}
	}
}

// A full queue does not move its whole content for each packet.
func TestSendQueue_MovesLittle(t *testing.T) {
	q := sendQueue{max: 64 << 10}
	packet, moved, head := make([]byte, 100), 0, 0
	for range 10000 {
		kept := q.bytes()
		q.push(PoolWAN, "srv1", packet, 0)
		if q.head < head {
			moved += kept
		}
		head = q.head
	}
	if sent := 10000 * 110; moved > sent {
		t.Errorf("%d bytes moved for %d bytes pushed, want at most as many", moved, sent)
	}
}

func TestSendQueue_PushDoesNotAllocate(t *testing.T) {
	q := sendQueue{max: 64 << 10}
	packet, now := make([]byte, 1400), time.Duration(0)
	push := func() {
		now += 10 * time.Millisecond
		q.push(PoolWAN, "srv1", packet, now)
	}
	for range 1000 {
		push()
	}
	if n := testing.AllocsPerRun(1000, push); n > 0 {
		t.Errorf("push() allocates %v times, want 0", n)
	}
}
