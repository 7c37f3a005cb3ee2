// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// fakeStream is a gRPC stream without a network.
type fakeStream struct {
	grpc.ServerStream
	ctx  context.Context
	recv chan *discoveryv3.DeltaDiscoveryRequest
	sent chan *discoveryv3.DeltaDiscoveryResponse
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	select {
	case req := <-s.recv:
		return req, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

func (s *fakeStream) Send(resp *discoveryv3.DeltaDiscoveryResponse) error {
	select {
	case s.sent <- resp:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// BenchmarkDelta measures the change of one gateway of 1000 datacenters, for
// 100 proxies: from the snapshot until each proxy has answered.
func BenchmarkDelta(b *testing.B) {
	const proxies, datacenters = 100, 1000
	var dcs []*proxycfg.Datacenter
	for i := range datacenters {
		dcs = append(dcs, datacenter(fmt.Sprintf("dc%d", i+2), "198.51.100.1:8443"))
	}
	var changed broadcast.Broadcast
	var mu sync.Mutex
	snap := snapshot(three, dcs...)
	s := NewServer(Config{
		Snapshot: func(string) (*proxycfg.Snapshot, <-chan struct{}) {
			wait := changed.Wait()
			mu.Lock()
			defer mu.Unlock()
			return snap, wait
		},
		Gateway: func(context.Context) (string, error) { return "gw1", nil }, Logger: slog.New(slog.DiscardHandler),
	})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	streams := make([]*fakeStream, proxies)
	answer := func(st *fakeStream) int {
		resp := <-st.sent
		st.recv <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce}
		return len(resp.Resources)
	}
	for i := range streams {
		st := &fakeStream{ctx: ctx, recv: make(chan *discoveryv3.DeltaDiscoveryRequest),
			sent: make(chan *discoveryv3.DeltaDiscoveryResponse)}
		streams[i] = st
		wg.Go(func() { s.DeltaAggregatedResources(st) })
		for _, url := range typeURLs {
			st.recv <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: []string{everything}}
			answer(st)
		}
	}
	memory, n := heap()-before, 0
	for b.Loop() {
		n++
		next := *snap
		next.Datacenters = append([]*proxycfg.Datacenter{}, snap.Datacenters...)
		next.Datacenters[7] = datacenter("dc9", fmt.Sprintf("198.51.100.1:%d", 1+n%60000))
		mu.Lock()
		snap = &next
		mu.Unlock()
		changed.Notify()
		for _, st := range streams {
			if sent := answer(st); sent != 1 {
				b.Fatalf("response has %d resources, want 1", sent)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/proxies, "us/proxy")
	b.ReportMetric(float64(memory)/proxies/1024, "KiB/proxy")
	cancel()
	wg.Wait()
}
