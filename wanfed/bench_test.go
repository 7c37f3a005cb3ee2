// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
)

// BenchmarkLink sends packets of memberlist's usual size to another datacenter
// over one link, on loopback without a gateway, as fast as they are received.
// No packet is dropped.
func BenchmarkLink(b *testing.B) {
	n1, n2 := benchPair(b)
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	packet := make([]byte, 1400)
	const window = 150 // packets in flight; they fit into the queue
	b.SetBytes(int64(len(packet)))
	b.ReportAllocs()
	b.ResetTimer()
	for sent, got := 0, 0; got < b.N; {
		for ; sent < b.N && sent-got < window; sent++ {
			if _, err := t1.WriteToAddress(packet, to("srv1.dc2")); err != nil {
				b.Fatal(err)
			}
		}
		<-t2.PacketCh()
		got++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}

// BenchmarkWriteToAddress measures the sender alone, which runs in memberlist's
// goroutines.
func BenchmarkWriteToAddress(b *testing.B) {
	n1, _ := benchPair(b)
	n1.book.Store(&AddressBook{}) // no path to dc2: the queue is always full
	t1 := n1.tun.Transport(PoolWAN)
	packet, dest := make([]byte, 1400), memberlist.Address{Name: "srv1.dc2", Addr: "10.0.0.1:8300"}
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
		func(tm *limits) { tm.backoffMin, tm.backoffMax = time.Hour, time.Hour })
	tr := n.tun.Transport(PoolWAN)
	packet := make([]byte, 1400)
	write := func() {
		if _, err := tr.WriteToAddress(packet, memberlist.Address{Name: "srv1.dc2", Addr: "10.0.0.1:8300"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		write()
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return !n.tun.Stats().Links[0].LastErrorAt.IsZero() },
		"a link in backoff")
	if got := testing.AllocsPerRun(1000, write); got > 0 {
		t.Errorf("%v allocations per packet", got)
	}
}
