// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
)

// connecting is the number of clients that connect at the same time.
const connecting = 16

// fleet is the clients of all proxies.
type fleet struct {
	address string
	bytes   atomic.Int64 // of all responses, as sent
	clients []*client
	stop    context.CancelFunc // nil: not connected
	running sync.WaitGroup

	mu          sync.Mutex
	err         error  // the first one
	event       string // that is expected
	missing     int    // clients without the event
	first, last time.Time
	done        chan struct{} // closed when all clients have the event
}

// client is one client. Its goroutine owns it.
type client struct {
	fleet *fleet
	name  string
	// versions of the resources that it has, by type URL.
	versions map[string]map[string]string
}

func newFleet(l load, address string) *fleet {
	f := &fleet{address: address}
	for i := range l.proxies {
		f.clients = append(f.clients, &client{fleet: f, name: gatewayName(i), versions: map[string]map[string]string{}})
	}
	return f
}

// expect returns a function that waits until all clients have an event. It
// returns the times of the first and of the last client.
func (f *fleet) expect(event string) func(context.Context) (first, last time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.event, f.missing, f.done = event, len(f.clients), make(chan struct{})
	done := f.done
	return func(ctx context.Context) (time.Time, time.Time, error) {
		select {
		case <-done:
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.first, f.last, f.err
		case <-ctx.Done():
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.first, f.last, fmt.Errorf("%d of %d clients have no %s: %w", f.missing, len(f.clients), event, ctx.Err())
		}
	}
}

// happened records that a client has an event. An error ends the wait for all.
func (f *fleet) happened(event string, err error) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && f.err == nil && f.missing > 0 {
		f.err, f.missing = err, 0
		close(f.done)
	}
	if event != f.event || f.missing == 0 {
		return
	}
	if f.missing == len(f.clients) {
		f.first = now
	}
	if f.missing--; f.missing == 0 {
		f.last = now
		close(f.done)
	}
}

// connect connects all clients until ctx ends or close is called. It waits for an
// event, or until limited ends.
func (f *fleet) connect(ctx, limited context.Context, event string) error {
	wait := f.expect(event)
	streams, stop := context.WithCancel(ctx)
	f.stop = stop
	slots := make(chan struct{}, connecting)
	for _, c := range f.clients {
		f.running.Go(func() {
			err := c.run(streams, slots)
			if streams.Err() == nil {
				f.happened("", fmt.Errorf("client %s: %w", c.name, err))
			}
		})
	}
	_, _, err := wait(limited)
	return err
}

// close disconnects all clients.
func (f *fleet) close() {
	if f.stop != nil {
		f.stop()
	}
	f.running.Wait()
}

// run follows one stream as Envoy does. It holds a slot until it has everything.
func (c *client) run(ctx context.Context, slots chan struct{}) error {
	slots <- struct{}{}
	release := sync.OnceFunc(func() { <-slots })
	defer release()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	cc, err := grpc.NewClient("passthrough:"+c.fleet.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(counter{&c.fleet.bytes}))
	if err != nil {
		return err
	}
	defer cc.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(
		metadata.AppendToOutgoingContext(ctx, gatewayKey, c.name))
	if err != nil {
		return err
	}
	again := len(c.versions) > 0
	subscribe := func(url string, names ...string) error {
		return stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node: &corev3.Node{Id: c.name}, TypeUrl: url, ResourceNamesSubscribe: names,
			InitialResourceVersions: c.versions[url],
		})
	}
	if err := subscribe(resourcev3.ClusterType, "*"); err != nil {
		return err
	}
	if again { // the clusters are known
		err := errors.Join(subscribe(resourcev3.EndpointType, c.names()...), subscribe(resourcev3.ListenerType, "*"))
		if err != nil {
			return err
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		url := resp.TypeUrl
		isNew := c.versions[url] == nil
		if isNew {
			c.versions[url] = map[string]string{}
		}
		for _, r := range resp.Resources {
			c.versions[url][r.Name] = r.Version
		}
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: resp.Nonce})
		switch {
		case err != nil:
		case isNew && url == resourcev3.ClusterType:
			err = subscribe(resourcev3.EndpointType, c.names()...)
		case isNew && url == resourcev3.EndpointType:
			err = subscribe(resourcev3.ListenerType, "*")
		case isNew && url == resourcev3.ListenerType:
			release()
			c.fleet.happened("listeners", nil)
		case url == resourcev3.EndpointType && len(resp.Resources) == 1:
			release()
			c.fleet.happened("change", nil)
		case url == resourcev3.EndpointType:
			err = fmt.Errorf("response to a change has %d resources, want 1", len(resp.Resources))
		}
		if err != nil {
			return err
		}
	}
}

// names returns the names of the clusters.
func (c *client) names() []string {
	return slices.Sorted(maps.Keys(c.versions[resourcev3.ClusterType]))
}

// counter counts the bytes of responses.
type counter struct{ bytes *atomic.Int64 }

func (c counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (c counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		c.bytes.Add(int64(in.WireLength))
	}
}

func (c counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c counter) HandleConn(context.Context, stats.ConnStats) {}
