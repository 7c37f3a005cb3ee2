// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
)

// churnRig is a Server with a Manager, as in a server of wanfed.
type churnRig struct {
	*Server
	t       *testing.T
	manager *proxycfg.Manager
	client  discoveryv3.AggregatedDiscoveryServiceClient

	changes atomic.Int64
	changed broadcast.Broadcast
	mu      sync.Mutex
	message *pb.GatewaySnapshot
}

func newChurnRig(t *testing.T) *churnRig {
	logger := slog.New(slog.DiscardHandler)
	inputs := &proxycfg.Inputs{}
	r := &churnRig{t: t, manager: proxycfg.NewManager("dc1", "wanfed", inputs)}
	r.change()
	r.Server = NewServer(Config{
		Snapshot: r.manager.Snapshot, Logger: logger,
		Gateway: func(ctx context.Context) (string, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			return md.Get("gateway")[0], nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.manager.Run(ctx) })
	running.Go(func() {
		inputs.Follow(ctx, "test", func() (*pb.GatewaySnapshot, <-chan struct{}) {
			changed := r.changed.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.message, changed
		}, logger)
	})
	ln := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, r.Server)
	running.Go(func() { srv.Serve(ln) })
	cc, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	r.client = discoveryv3.NewAggregatedDiscoveryServiceClient(cc)
	t.Cleanup(func() { cc.Close(); srv.Stop(); cancel(); running.Wait() })
	return r
}

// change changes the data of 50 datacenters.
func (r *churnRig) change() {
	port := int(r.changes.Add(1))
	m := &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed",
		Servers: []*pb.SnapshotServer{{Node: "srv1", Address: fmt.Sprintf("10.0.0.%d:8300", 1+port%3)}}}
	for i := range 50 {
		if i%7 != port%7 {
			m.Datacenters = append(m.Datacenters, &pb.SnapshotDatacenter{Name: fmt.Sprintf("dc%d", i+2),
				Gateways: []string{fmt.Sprintf("198.51.100.1:%d", 1+(i*port)%60000)}})
		}
	}
	r.mu.Lock()
	r.message = m
	r.mu.Unlock()
	r.changed.Notify()
}

// proxy registers a gateway, connects as its proxy, answers some responses, and
// disconnects. In between, data and registration change.
func (r *churnRig) proxy(worker, round int) error {
	name := fmt.Sprintf("gw%d", worker)
	reg := proxycfg.Registration{Name: name, LAN: "10.0.0.5:8444", WAN: fmt.Sprintf("198.51.100.1:%d", 1+round%1000)}
	if err := r.manager.Register(reg); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "gateway", name),
		time.Minute)
	defer cancel()
	stream, err := r.client.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	for _, url := range typeURLs {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url,
			ResourceNamesSubscribe: []string{everything, fmt.Sprintf("server.dc%d.wanfed", round%60)}}); err != nil {
			return err
		}
	}
	for i := range 3 + rand.N(4) {
		switch {
		case i == 3:
			r.change()
		case i == 4:
			reg.LAN = fmt.Sprintf("10.0.0.5:%d", 1+round%1000)
			if err := r.manager.Register(reg); err != nil {
				return err
			}
		case i == 5:
			r.manager.Drop(name)
			return nil
		}
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if i >= 3 && rand.N(4) == 0 {
			break // it disconnects without an answer
		}
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce})
		if err != nil {
			return err
		}
	}
	if rand.N(2) == 0 {
		r.manager.Drop(name)
	}
	return nil
}

// churn runs rounds of several proxies at once. Then it drops all gateways, and
// returns the goroutines and the bytes of the heap that remain.
func (r *churnRig) churn(rounds int) (goroutines int, heap uint64) {
	r.t.Helper()
	const workers = 4
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for round := range rounds {
				if err := r.proxy(w, round); err != nil {
					r.t.Errorf("round %d of proxy %d: %v", round, w, err)
					return
				}
			}
		})
	}
	running.Wait()
	for _, name := range r.manager.Names() {
		r.manager.Drop(name)
	}
	testutil.Eventually(r.t, time.Minute, func() bool { return len(r.Proxies()) == 0 }, "no stream is left")
	last := runtime.NumGoroutine()
	// Streams end after they have left Proxies. The runtime does not report the
	// end of a goroutine, so the loop waits until their number is stable.
	// Eventually needs a condition that it can evaluate once.
	for calm := 0; calm < 20; calm++ {
		time.Sleep(5 * time.Millisecond)
		if n := runtime.NumGoroutine(); n != last {
			last, calm = n, 0
		}
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return last, m.HeapAlloc
}

// Proxies that come and go leave neither goroutines nor memory. WANFED_CHURN is
// the duration of a long run, such as 10m.
func TestChurn_LeaksNothing(t *testing.T) {
	var long time.Duration
	if text := os.Getenv("WANFED_CHURN"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	r := newChurnRig(t)
	const rounds = 10
	goroutines, heap := r.churn(rounds)
	began, total, mostG, mostH := time.Now(), 0, 0, uint64(0)
	for ok := true; ok; ok = time.Since(began) < long && !t.Failed() {
		g, h := r.churn(rounds)
		total, mostG, mostH = total+rounds, max(mostG, g), max(mostH, h)
		if limit := heap + 1<<20; g > goroutines || h > limit {
			t.Errorf("after %d rounds: %d goroutines and %d bytes, want at most %d and %d", total, g, h, goroutines, limit)
		}
	}
	t.Logf("%d rounds of 4 proxies: %d goroutines and %d bytes before, at most %d and %d after", total, goroutines, heap,
		mostG, mostH)
}
