// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// packetsOf lists the packets of whole frames.
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

func TestSendQueue_DropsOldest(t *testing.T) {
	const now = time.Second
	q := sendQueue{max: 3 * (frameHeadLen + 1 + 1)} // three frames with a name and a packet of one byte each
	for i, want := range []frameCounts{{}, {}, {}, {PoolWAN: 1}, {PoolLAN: 1}} {
		pool := PoolWAN
		if i == 1 {
			pool = PoolLAN
		}
		if got := q.push(pool, "n", []byte{byte('a' + i)}, now); got != want {
			t.Errorf("push %d dropped %v, want %v", i, got, want)
		}
	}
	if q.count.total() != 3 || q.bytes() != q.max {
		t.Errorf("%d frames, %d bytes", q.count.total(), q.bytes())
	}
	if got := q.push(PoolWAN, "n", make([]byte, 100), now); got != (frameCounts{PoolWAN: 3}) ||
		q.count != (frameCounts{PoolWAN: 1}) {
		t.Errorf("push() of a packet larger than the queue dropped %v and left %v", got, q.count)
	}
	b := q.take(nil)
	if b.count != (frameCounts{PoolWAN: 1}) || len(packetsOf(t, b.frames())) != 1 || q.count != (frameCounts{}) ||
		q.bytes() != 0 {
		t.Errorf("take gives %v, leaves %v", b.count, q.count)
	}
}

// modelled is a packet in the model of a queue: a plain slice.
type modelled struct {
	packet string
	at     time.Duration
}

// Compare the queue with a plain slice of packets.
func TestSendQueue_Model(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	q := sendQueue{max: 2000}
	var model []modelled
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
			if got := packetsOf(t, b.frames()); !slices.Equal(got, want) || b.count != (frameCounts{PoolWAN: len(want)}) {
				t.Fatalf("step %d: take = %q (%v), want %q", i, got, b.count, want)
			}
			spare, model = b.buf, nil
			continue
		case 1:
			limit := now - 2*time.Second
			dropped := q.dropBefore(limit)[PoolWAN]
			if dropped > len(model) || dropped > 0 && model[dropped-1].at >= limit {
				t.Fatalf("step %d: dropped %d of %d, some too young", i, dropped, len(model))
			}
			if model = model[dropped:]; len(model) > 0 && model[0].at < limit {
				t.Fatalf("step %d: kept one of %v", i, now-model[0].at)
			}
			continue
		}
		p := fmt.Sprintf("%0*d", 1+rnd.IntN(400), i)
		model = append(model, modelled{p, now})
		drop := 0
		for len(model) > 1 && size() > q.max {
			model, drop = model[1:], drop+1
		}
		if got := q.push(PoolWAN, "abc", []byte(p), now); got[PoolWAN] != drop {
			t.Fatalf("step %d: dropped %d, want %d", i, got[PoolWAN], drop)
		}
		if q.count[PoolWAN] != len(model) || q.bytes() != size() || cap(q.buf) > 3*q.max {
			t.Fatalf("step %d: %v of %d bytes in %d, want %d of %d", i, q.count, q.bytes(), cap(q.buf), len(model), size())
		}
	}
}

// A full queue must not move its whole content for each packet.
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
		t.Errorf("%d bytes moved for %d pushed", moved, sent)
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
		t.Errorf("%v allocations per push", n)
	}
}
