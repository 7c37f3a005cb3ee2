// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
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

func TestFrameQueueDropsOldest(t *testing.T) {
	q := frameQueue{max: 3 * (frameHeadLen + 1 + 1)} // three frames with a name and a packet of one byte each
	for i, want := range []framed{{}, {}, {}, {PoolWAN: 1}, {PoolLAN: 1}} {
		pool := PoolWAN
		if i == 1 {
			pool = PoolLAN
		}
		if got := q.push(pool, "n", []byte{byte('a' + i)}); got != want {
			t.Errorf("push %d dropped %v, want %v", i, got, want)
		}
	}
	if q.n != 3 || q.bytes() != q.max {
		t.Errorf("%d frames, %d bytes", q.n, q.bytes())
	}
	if got := q.push(PoolWAN, "n", make([]byte, 100)); got != (framed{PoolWAN: 3}) || q.n != 1 {
		t.Errorf("a packet larger than the queue dropped %v and left %d", got, q.n)
	}
	frames, n := q.take(nil)
	if n != 1 || len(packetsOf(t, frames)) != 1 || q.n != 0 || q.bytes() != 0 {
		t.Errorf("take gives %d frames, leaves %d", n, q.n)
	}
}

// The queue against a plain slice of packets.
func TestFrameQueueModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	q := frameQueue{max: 2000}
	var model []string
	var spare []byte
	size := func() (n int) {
		for _, p := range model {
			n += frameHeadLen + 3 + len(p)
		}
		return n
	}
	for i := range 5000 {
		if rnd.IntN(20) == 0 {
			frames, n := q.take(spare)
			if got := packetsOf(t, frames); !slices.Equal(got, model) || n != len(model) {
				t.Fatalf("step %d: take = %q, want %q", i, got, model)
			}
			if c := countFrames(frames); c[PoolWAN] != n {
				t.Fatalf("countFrames = %v, want %d", c, n)
			}
			spare, model = frames, nil
			continue
		}
		p := fmt.Sprintf("%0*d", 1+rnd.IntN(400), i)
		model = append(model, p)
		drop := 0
		for len(model) > 1 && size() > q.max {
			model, drop = model[1:], drop+1
		}
		if got := q.push(PoolWAN, "abc", []byte(p)); got[PoolWAN] != drop {
			t.Fatalf("step %d: dropped %d, want %d", i, got[PoolWAN], drop)
		}
		if q.n != len(model) || q.bytes() != size() {
			t.Fatalf("step %d: %d frames of %d bytes, want %d of %d", i, q.n, q.bytes(), len(model), size())
		}
	}
}

func TestFrameQueuePushDoesNotAllocate(t *testing.T) {
	q := frameQueue{max: 64 << 10}
	packet := make([]byte, 1400)
	for range 1000 {
		q.push(PoolWAN, "srv1", packet)
	}
	if n := testing.AllocsPerRun(1000, func() { q.push(PoolWAN, "srv1", packet) }); n > 0 {
		t.Errorf("%v allocations per push", n)
	}
}
