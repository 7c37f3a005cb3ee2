// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	linearClients = 5
	linearKeys    = 12
	// linearCall is the timeout of a call. A call that times out has an unknown
	// outcome.
	linearCall = 3 * time.Second
)

// TestLinearizable lets five clients read, write, compare-and-swap and delete
// resources at the three servers of a datacenter. Servers are killed,
// partitioned and suspended during that time. The history of all calls must be
// linearizable. Eventual reads at one server must never return an older
// version.
func TestLinearizable(t *testing.T) {
	lab.NeedNFT(t)
	seeds := 2
	if long() {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			parallelUnlessChaos(t)
			linearize(t, uint64(seed))
		})
	}
}

// linearize runs the test with the given seed of the random clients and faults.
func linearize(t *testing.T, seed uint64) {
	l := lab.New(t)
	dc := l.Add(3, 0)
	dc.Start()
	files, err := l.PKI.Issue(tlsutil.RoleOperator, dc.Name, "cli")
	if err != nil {
		t.Fatal(err)
	}
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, quiet)
	if err != nil {
		t.Fatal(err)
	}
	servers := make([]pb.ResourceServiceClient, 0, len(dc.Servers))
	for _, s := range dc.Servers {
		servers = append(servers, pb.NewResourceServiceClient(operatorAt(t, s, id)))
	}
	testutil.Await(t, 30*time.Second, "a leader", func(ctx context.Context) error {
		_, err := servers[0].Write(ctx, &pb.WriteRequest{Resource: linearRecord("started", "x", "")})
		return err
	})

	h := &history{start: time.Now()}
	ctx, stop := context.WithTimeout(t.Context(), longOrShort(6*time.Second, 20*time.Second))
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range linearClients {
		c := &linearClient{id: i, h: h, servers: servers, rng: rand.New(rand.NewPCG(seed, uint64(i))),
			seen: map[string]stored{}}
		wg.Go(func() { c.run(ctx) })
	}
	for _, s := range servers {
		wg.Go(func() { readsNeverGoBack(ctx, t, s) })
	}
	faults := injectFaults(ctx, t, dc, rand.New(rand.NewPCG(seed, 99)))
	wg.Wait()

	last := &linearClient{id: linearClients, h: h, servers: servers, seen: map[string]stored{}}
	testutil.Await(t, 30*time.Second, "all servers answer again", func(ctx context.Context) error {
		for i, s := range servers {
			if err := last.readAll(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", dc.Servers[i].Name, err)
			}
		}
		return nil
	})
	h.check(t)
	t.Logf("%d calls, %d with an unknown outcome; faults: %v", len(h.ops), h.unknowns, faults)
}

// operatorAt returns a connection to a server, with the certificate of id.
func operatorAt(t *testing.T, n *lab.Node, id *tlsutil.Identity) *grpc.ClientConn {
	t.Helper()
	dial := lab.DialIn(n.NS)
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		raw, err := dial(ctx, "tcp", n.ServerAddr())
		if err != nil {
			return nil, err
		}
		return handshake(ctx, raw, operatorConfig(id, n))
	}, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1,
			MaxDelay: 20 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// operatorConfig returns the TLS configuration for connections to n.
func operatorConfig(id *tlsutil.Identity, n *lab.Node) *tls.Config {
	return id.ClientConfig(tlsutil.ServerName(n.Name, n.DC().Name, tlsutil.DefaultDomain), "h2")
}

// stored is the state of a resource as a client last observed it.
type stored struct{ value, version string }

// linearClient makes one call after the other, each at a random server.
type linearClient struct {
	id      int
	h       *history
	servers []pb.ResourceServiceClient
	rng     *rand.Rand
	seen    map[string]stored
	writes  int
}

func (c *linearClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		key := fmt.Sprint("k", c.rng.IntN(linearKeys))
		at := c.servers[c.rng.IntN(len(c.servers))]
		var err error
		switch n := c.rng.IntN(100); {
		case n < 40:
			err = c.read(at, key)
		case n < 65:
			err = c.write(at, call{verb: verbWrite, key: key}, "")
		case n < 90 && c.seen[key].version != "":
			err = c.write(at, call{verb: verbCAS, key: key, expect: c.seen[key].value}, c.seen[key].version)
		case n < 95:
			err = c.remove(at, key)
		}
		pause := time.Millisecond * time.Duration(1+c.rng.IntN(10))
		if err != nil {
			pause *= 10 // do not fill the history with calls that no server processed
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// read makes a strong read. A failed read is not part of the history, because
// it has no result to check.
func (c *linearClient) read(at pb.ResourceServiceClient, key string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), linearCall)
	defer cancel()
	resp, err := at.Read(resource.WithConsistency(ctx, resource.Strong),
		&pb.ReadRequest{Id: resource.ID(nodeType, key)})
	got := stored{}
	switch {
	case err == nil:
		if got, err = contentOf(resp.Resource); err != nil {
			return err
		}
	case !errors.Is(resource.FromStatus(err), resource.ErrNotFound):
		return err
	}
	c.seen[key] = got
	c.h.did(c.id, call{verb: verbRead, key: key}, outcome{value: got.value}, began)
	return nil
}

// write makes a write, or a compare-and-swap if version is not "".
func (c *linearClient) write(at pb.ResourceServiceClient, what call, version string) error {
	c.writes++
	what.value = fmt.Sprintf("c%d-%d", c.id, c.writes)
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), linearCall)
	defer cancel()
	resp, err := at.Write(ctx, &pb.WriteRequest{Resource: linearRecord(what.key, what.value, version)})
	o := outcome{}
	switch known := resource.FromStatus(err); {
	case err == nil:
		c.seen[what.key] = stored{what.value, resp.Resource.Version}
	case errors.Is(known, resource.ErrNotLeader), neverSent(err):
		return err // nothing was written
	case errors.Is(known, resource.ErrConflict), errors.Is(known, resource.ErrNotFound):
		if what.verb == verbWrite {
			return err // the server gave up because of concurrent writes: nothing was written
		}
		o.refused = true
		delete(c.seen, what.key)
	default:
		o.unknown = true
		delete(c.seen, what.key)
	}
	c.h.did(c.id, what, o, began)
	return err
}

// remove deletes a resource in any version.
func (c *linearClient) remove(at pb.ResourceServiceClient, key string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), linearCall)
	defer cancel()
	_, err := at.Delete(ctx, &pb.DeleteRequest{Id: resource.ID(nodeType, key)})
	if known := resource.FromStatus(err); errors.Is(known, resource.ErrNotLeader) ||
		errors.Is(known, resource.ErrConflict) || neverSent(err) {
		return err
	}
	delete(c.seen, key)
	c.h.did(c.id, call{verb: verbDelete, key: key}, outcome{unknown: err != nil}, began)
	return err
}

// neverSent reports whether gRPC had no connection for a call. gRPC has no code
// for that case.
func neverSent(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "Error while dialing")
}

// readAll reads every resource at one server.
func (c *linearClient) readAll(ctx context.Context, at pb.ResourceServiceClient) error {
	for i := range linearKeys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.read(at, fmt.Sprint("k", i)); err != nil {
			return err
		}
	}
	return nil
}

// linearRecord returns a resource with the given value.
func linearRecord(key, value, version string) *pb.Resource {
	r, err := resource.New(nodeType, key, &pb.Node{Node: key, Address: value})
	if err != nil {
		panic(err) // cannot happen: key is a valid name
	}
	r.Id.Uid, r.Version = "", version
	return r
}

// contentOf returns the value and the version of a resource.
func contentOf(r *pb.Resource) (stored, error) {
	n, err := resource.Decode[*pb.Node](r)
	return stored{n.GetAddress(), r.GetVersion()}, err
}

// readsNeverGoBack makes eventual reads at one server until ctx ends. Versions
// must not decrease. A restarted server may return older versions at first, so
// a failed call resets the expectation.
func readsNeverGoBack(ctx context.Context, t *testing.T, at pb.ResourceServiceClient) {
	type place struct {
		version uint64
		gone    bool
	}
	last := map[string]place{}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		key := fmt.Sprint("k", n%linearKeys)
		resp, err := at.Read(ctx, &pb.ReadRequest{Id: resource.ID(nodeType, key)})
		before := last[key]
		switch {
		case errors.Is(resource.FromStatus(err), resource.ErrNotFound):
			last[key] = place{before.version, true}
			continue
		case err != nil:
			clear(last)
			continue
		}
		v, err := strconv.ParseUint(resp.Resource.Version, 10, 64)
		if err != nil || v < before.version || v == before.version && before.gone {
			t.Errorf("eventual read of %s = version %q, %v; want one after version %d (deleted: %t)", key,
				resp.Resource.Version, err, before.version, before.gone)
		}
		last[key] = place{v, false}
	}
}
