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
// gateway, by the tunnel and by plainPool alternately, and counts those that
// arrive. No packet is lost. An operation is one packet by each. rawBulk sends
// as many bytes, which shows how many packets of that size the machine could
// encrypt, forward and decrypt at most.
func BenchmarkThroughGateway(b *testing.B) {
	w := newBenchWorld(b, 4<<20)            // room for the bursts of the senders
	for _, size := range []int{100, 1400} { // a ping or an ack; memberlist's full packet
		for _, senders := range []int{1, 8} {
			b.Run(fmt.Sprintf("bytes=%d/senders=%d", size, senders), func(b *testing.B) { w.compare(b, size, senders) })
		}
	}
}

// Bounds of what is in flight, so that neither the link's queue nor the
// receiver, where 4096 packets may wait for memberlist, drops a packet.
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
	var t, p, raw, tCPU, pCPU, rawCPU time.Duration
	for i := range rounds {
		n := b.N*(i+1)/rounds - b.N*i/rounds
		begin := w.gateway.cpuTime(b)
		t += tunnel(n)
		afterTunnel := w.gateway.cpuTime(b)
		p += plain(n)
		afterPlain := w.gateway.cpuTime(b)
		raw += w.raw.transfer(b, n*size)
		tCPU, pCPU, rawCPU = tCPU+afterTunnel-begin, pCPU+afterPlain-afterTunnel, rawCPU+w.gateway.cpuTime(b)-afterPlain
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(b.N)/t.Seconds(), "packets/s")
	b.ReportMetric(float64(b.N)/p.Seconds(), "plain-packets/s")
	b.ReportMetric(p.Seconds()/t.Seconds(), "x-plain")
	b.ReportMetric(float64(b.N*size)/raw.Seconds()/1e6, "raw-MB/s")
	b.ReportMetric(p.Seconds()/raw.Seconds(), "x-plain-bound")
	b.ReportMetric(float64(w.plain.dialed()), "plain-conns") // so far; the tunnel has one
	// work per packet, of sender, gateway and receiver: other programs do not change it much
	if tCPU > 0 && rawCPU > 0 {
		b.ReportMetric(float64(tCPU)/float64(b.N), "cpu-ns/packet")
		b.ReportMetric(float64(pCPU)/float64(tCPU), "x-plain-cpu")
		b.ReportMetric(float64(pCPU)/float64(rawCPU), "x-plain-cpu-bound")
	}
}

// transfer sends n packets and returns when all were received. At most window
// are in flight.
func transfer(n, senders, window int, send, receive func()) time.Duration {
	const batch = 16
	begin := time.Now()
	credit := make(chan struct{}, max(1, min(window, n+batch)/batch)) // one batch in flight each
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

// BenchmarkSend measures the time of a send in memberlist's goroutines, through
// a gateway to a peer that reads: by the tunnel, where the link's goroutine
// writes, and by plainPool. The allocations of sender, gateway and peer count.
func BenchmarkSend(b *testing.B) {
	w := newBenchWorld(b, 0)
	packet, to := make([]byte, 1400), srv1(dcSink)
	w.write(b, packet, to)
	w.connected(b, dcSink)
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
	w.connected(b, dcHole)
	for _, senders := range []int{1, 8} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			b.ReportAllocs()
			latencies(b, senders, func() { w.write(b, packet, to) })
		})
	}
	b.Run("nothing", func(b *testing.B) { latencies(b, 1, func() {}) }) // what the machine alone does
	b.Run("plain", w.plainBlackHole)
}

// latencies calls f b.N times from several goroutines and reports the
// latencies.
func latencies(b *testing.B, goroutines int, f func()) {
	took := make([]time.Duration, b.N)
	clear(took) // page faults now, not later
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

// plainBlackHole returns how many packets plainPool sends to such a peer until
// a sender blocks.
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
		for still := time.After(time.Second); ; still = time.After(time.Second) {
			select {
			case <-sent:
				n++
				continue
			case <-still:
			}
			break
		}
		w.plain.close() // ends the write that stands still
		<-failed
		b.ReportMetric(float64(n), "packets-until-blocked")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStreams opens and closes streams, as memberlist does for each
// exchange of state, by the tunnel and by plainPool. It counts TLS handshakes.
// An operation is one stream by each.
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
	before, dialed := handshakes(), w.plain.dialed()
	var t, p time.Duration
	b.ResetTimer()
	for range b.N {
		begin := time.Now()
		c, err := w.send.DialAddressTimeout(srv1(dcTunnel), 10*time.Second)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
		t += time.Since(begin)
		begin = time.Now()
		pc, err := w.plain.dial("srv1", dcPlain, wanfed.ProtoConsulStream)
		if err != nil {
			b.Fatal(err)
		}
		pc.Close()
		p += time.Since(begin)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(handshakes()-before), "handshakes")
	b.ReportMetric(float64(w.plain.dialed()-dialed), "plain-handshakes")
	b.ReportMetric(float64(t.Microseconds())/float64(b.N), "us/stream")
	b.ReportMetric(float64(p.Microseconds())/float64(b.N), "plain-us/stream")
}
