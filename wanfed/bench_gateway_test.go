// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/wanfed"
)

// BenchmarkThroughGateway sends packets from one server to another through a
// gateway. It alternates between three senders: the tunnel, plainPool and
// rawBulk. rawBulk sends the same number of bytes without packets. Its result
// is the upper bound of encryption, forwarding and decryption on this machine.
// An operation is one packet of the tunnel and one of plainPool. No packet is
// lost.
func BenchmarkThroughGateway(b *testing.B) {
	w := newBenchWorld(b, 4<<20)            // bytes per queue, enough for the bursts of the senders
	for _, size := range []int{100, 1400} { // bytes: a ping or an ack; a full packet of memberlist
		for _, senders := range []int{1, 8} {
			b.Run(fmt.Sprintf("bytes=%d/senders=%d", size, senders), func(b *testing.B) { w.compare(b, size, senders) })
		}
	}
}

// Bounds of the packets in flight. Below these bounds neither the queue of the
// link nor the receiver drops a packet. The receiver queues 4096 packets for
// memberlist.
const (
	maxInFlight        = 3 << 20 // bytes
	maxPacketsInFlight = 4000
)

func (w *benchWorld) compare(b *testing.B, size, senders int) {
	packet, to := make([]byte, size), srv1(dcTunnel)
	defer time.AfterFunc(5*time.Minute, func() { panic("a packet was lost") }).Stop()
	tunnel := func(n int) time.Duration {
		return transfer(n, senders, min(maxInFlight/(size+16), maxPacketsInFlight),
			func() { w.write(b, packet, to) }, func() { <-w.receive.PacketCh() })
	}
	plain := func(n int) time.Duration {
		send := func() {
			if err := w.plain.send("srv1", dcPlain, packet); err != nil {
				b.Error(err)
			}
		}
		return transfer(n, senders, 1<<30, send, func() { <-w.plainCh })
	}
	tunnel(1000) // connect
	plain(1000)
	b.ResetTimer()
	const rounds = 10
	var tunnelTime, plainTime, rawTime, tunnelCPU, plainCPU, rawCPU time.Duration
	for i := range rounds {
		n := b.N*(i+1)/rounds - b.N*i/rounds
		begin := w.gateway.cpuTime(b)
		tunnelTime += tunnel(n)
		afterTunnel := w.gateway.cpuTime(b)
		plainTime += plain(n)
		afterPlain := w.gateway.cpuTime(b)
		rawTime += w.raw.transfer(b, n*size)
		tunnelCPU += afterTunnel - begin
		plainCPU += afterPlain - afterTunnel
		rawCPU += w.gateway.cpuTime(b) - afterPlain
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(b.N)/tunnelTime.Seconds(), "packets/s")
	b.ReportMetric(float64(b.N)/plainTime.Seconds(), "plain-packets/s")
	b.ReportMetric(plainTime.Seconds()/tunnelTime.Seconds(), "x-plain")
	b.ReportMetric(float64(b.N*size)/rawTime.Seconds()/1e6, "raw-MB/s")
	b.ReportMetric(plainTime.Seconds()/rawTime.Seconds(), "x-plain-bound")
	b.ReportMetric(float64(w.plain.dialed()), "plain-conns") // since the start; the tunnel has one connection
	// The CPU time of sender, gateway and receiver. Other programs hardly
	// change it.
	if tunnelCPU > 0 && rawCPU > 0 {
		b.ReportMetric(float64(tunnelCPU)/float64(b.N), "cpu-ns/packet")
		b.ReportMetric(float64(plainCPU)/float64(tunnelCPU), "x-plain-cpu")
		b.ReportMetric(float64(plainCPU)/float64(rawCPU), "x-plain-cpu-bound")
	}
}

// transfer sends n packets, waits until all are received, and returns the time
// taken. At most window packets are in flight.
func transfer(n, senders, window int, send, receive func()) time.Duration {
	const batch = 16
	begin := time.Now()
	credit := make(chan struct{}, max(1, min(window, n+batch)/batch)) // one value per batch in flight
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for {
				first := taken.Add(batch) - batch
				if first >= int64(n) {
					return
				}
				credit <- struct{}{}
				for range min(batch, int64(n)-first) {
					send()
				}
			}
		})
	}
	for i := range n {
		receive()
		if i%batch == batch-1 {
			<-credit
		}
	}
	wg.Wait()
	return time.Since(begin)
}

// BenchmarkSend measures the time of a send in memberlist's goroutines, for the
// tunnel and for plainPool. In the tunnel, the goroutine of the link writes.
// The packets pass through a gateway to a peer that reads. The allocations
// include the peer.
func BenchmarkSend(b *testing.B) {
	w := newBenchWorld(b, 0)
	packet, to := make([]byte, 1400), srv1(dcSink)
	w.write(b, packet, to)
	w.awaitLink(b, dcSink)
	b.Run("tunnel", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.write(b, packet, to)
		}
	})
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := w.plain.send("srv1", dcSink, packet); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkSendBlackHole measures WriteToAddress to a peer that accepts the
// connection and never reads.
func BenchmarkSendBlackHole(b *testing.B) {
	w := newBenchWorld(b, 0)
	packet, to := make([]byte, 1400), srv1(dcHole)
	w.write(b, packet, to)
	w.awaitLink(b, dcHole)
	for _, senders := range []int{1, 8} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			b.ReportAllocs()
			latencies(b, senders, func() { w.write(b, packet, to) })
		})
	}
	b.Run("nothing", func(b *testing.B) { latencies(b, 1, func() {}) }) // pauses of the machine itself
	b.Run("plain", w.plainBlackHole)
}

// latencies calls f b.N times from several goroutines and reports percentiles
// of the durations.
func latencies(b *testing.B, goroutines int, f func()) {
	took := make([]time.Duration, b.N)
	clear(took) // causes the page faults before the measurement
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				begin := time.Now()
				f()
				took[i] = time.Since(begin)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	for name, i := range map[string]int{"p50-ns": b.N / 2, "p99-ns": b.N * 99 / 100, "max-ns": b.N - 1} {
		b.ReportMetric(float64(took[i]), name)
	}
}

// plainBlackHole counts the packets that plainPool sends to a peer that never
// reads, until the sender has blocked for a second.
func (w *benchWorld) plainBlackHole(b *testing.B) {
	for range b.N {
		sent, failed := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(failed)
			for packet := make([]byte, 1400); w.plain.send("srv1", dcHole, packet) == nil; {
				sent <- struct{}{}
			}
		}()
		n := 0
		for blocked := false; !blocked; {
			select {
			case <-sent:
				n++
			case <-time.After(time.Second):
				blocked = true
			}
		}
		w.plain.close() // ends the blocked write
		<-failed
		b.ReportMetric(float64(n), "packets-until-blocked")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStreams opens and closes streams, as memberlist does for each
// exchange of state. It alternates between the tunnel and plainPool, and counts
// TLS handshakes. An operation is one stream of each.
func BenchmarkStreams(b *testing.B) {
	w := newBenchWorld(b, 0)
	background(b, func(ctx context.Context) error {
		for {
			select {
			case c := <-w.receive.StreamCh():
				c.Close()
			case <-ctx.Done():
				return nil
			}
		}
	})
	handshakes := func() uint64 { return w.muxes[dcTunnel].Stats().Accepted }
	handshakesBefore, dialedBefore := handshakes(), w.plain.dialed()
	var tunnelTime, plainTime time.Duration
	b.ResetTimer()
	for range b.N {
		begin := time.Now()
		c, err := w.send.DialAddressTimeout(srv1(dcTunnel), 10*time.Second)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
		tunnelTime += time.Since(begin)
		begin = time.Now()
		pc, err := w.plain.dial("srv1", dcPlain, wanfed.ProtoConsulStream)
		if err != nil {
			b.Fatal(err)
		}
		pc.Close()
		plainTime += time.Since(begin)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(handshakes()-handshakesBefore), "handshakes")
	b.ReportMetric(float64(w.plain.dialed()-dialedBefore), "plain-handshakes")
	b.ReportMetric(float64(tunnelTime.Microseconds())/float64(b.N), "us/stream")
	b.ReportMetric(float64(plainTime.Microseconds())/float64(b.N), "plain-us/stream")
}
