// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// BenchmarkLink measures the throughput of one link to another datacenter, on
// loopback without a gateway. The packets have the usual size of memberlist. No
// packet is dropped.
func BenchmarkLink(b *testing.B) {
	n1, n2 := benchPair(b)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	packet := make([]byte, 1400)
	const window = 150 // packets in flight, which fit into the queue
	b.SetBytes(int64(len(packet)))
	b.ReportAllocs()
	b.ResetTimer()
	for sent, received := 0, 0; received < b.N; received++ {
		for ; sent < b.N && sent-received < window; sent++ {
			if _, err := t1.WriteToAddress(packet, to("srv1.dc2")); err != nil {
				b.Fatal(err)
			}
		}
		<-t2.PacketCh()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}

// BenchmarkWriteToAddress measures WriteToAddress alone, which runs in the
// goroutines of memberlist.
func BenchmarkWriteToAddress(b *testing.B) {
	n1, _ := benchPair(b)
	n1.book.Store(&AddressBook{}) // without a path to dc2, the queue is always full
	t1 := n1.tun.Transport(PoolWAN)
	packet, dest := make([]byte, 1400), to("srv1.dc2")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := t1.WriteToAddress(packet, dest); err != nil {
			b.Fatal(err)
		}
	}
}

func benchPair(b *testing.B) (n1, n2 *node) {
	a := newAuthority(b)
	n1, n2 = newNode(b, a, "srv1", "dc1").start(listen(b)), newNode(b, a, "srv1", "dc2").start(listen(b))
	n1.book.Store(bookOf(n2.addr))
	return n1, n2
}

func TestTransport_WriteDoesNotAllocate(t *testing.T) {
	a := newAuthority(t)
	n := newNode(t, a, "srv1", "dc1").start(listen(t),
		func(l *limits) { l.backoffMin, l.backoffMax = time.Hour, time.Hour })
	tr := n.tun.Transport(PoolWAN)
	packet, dest := make([]byte, 1400), to("srv1.dc2")
	write := func() {
		if _, err := tr.WriteToAddress(packet, dest); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		write()
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return !n.tun.Stats().Links[0].LastErrorAt.IsZero() },
		"a link in backoff")
	if got := testing.AllocsPerRun(1000, write); got > 0 {
		t.Errorf("allocations of WriteToAddress() = %v, want 0", got)
	}
}
