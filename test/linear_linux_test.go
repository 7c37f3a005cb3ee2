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
	// linearCall bounds a call: what takes longer has an unknown outcome.
	linearCall = 3 * time.Second
)

// TestLinearizable has five clients read, write, compare-and-swap and delete
// records at the three servers of a datacenter, while servers are killed (-9),
// cut off and suspended. One order must explain all that they saw; what one
// server shows by eventual reads never goes back.
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
		c := &linearClient{id: i, h: h, servers: servers, rng: rand.New(rand.NewPCG(seed, uint64(i))), seen: map[string]stored{}}
		wg.Go(func() { c.run(ctx) })
	}
	for _, s := range servers {
		wg.Go(func() { readsNeverGoBack(ctx, t, s) })
	}
	faults := torment(ctx, t, dc, rand.New(rand.NewPCG(seed, 99)))
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
	t.Logf("%d calls, %d with an unknown outcome, beside %v", len(h.ops), h.unknowns, faults)
}

// operatorAt connects to a server with an operator's certificate.
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
		Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: time.Second,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func operatorConfig(id *tlsutil.Identity, n *lab.Node) *tls.Config {
	return id.ClientConfig(tlsutil.ServerName(n.Name, n.DC().Name, tlsutil.DefaultDomain), "h2")
}

// stored is what a client has seen of a record last.
type stored struct{ value, version string }

// linearClient does one call after the other, each at a server by chance.
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
			pause *= 10 // not to fill the history with calls that found nobody
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// read makes a strong read. One that fails says nothing of any order.
func (c *linearClient) read(at pb.ResourceServiceClient, key string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), linearCall)
	defer cancel()
	resp, err := at.Read(resource.WithConsistency(ctx, resource.Strong), &pb.ReadRequest{Id: resource.ID(nodeType, key)})
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
			return err // others wrote all the time: it gave up
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

func (c *linearClient) remove(at pb.ResourceServiceClient, key string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), linearCall)
	defer cancel()
	_, err := at.Delete(ctx, &pb.DeleteRequest{Id: resource.ID(nodeType, key)})
	if known := resource.FromStatus(err); errors.Is(known, resource.ErrNotLeader) || errors.Is(known, resource.ErrConflict) || neverSent(err) {
		return err
	}
	delete(c.seen, key)
	c.h.did(c.id, call{verb: verbDelete, key: key}, outcome{unknown: err != nil}, began)
	return err
}

// neverSent says that gRPC found no connection for a call. It has no code of
// its own for that.
func neverSent(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "Error while dialing")
}

// readAll reads every record at one server.
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

func linearRecord(key, value, version string) *pb.Resource {
	r, err := resource.New(nodeType, key, &pb.Node{Node: key, Address: value})
	if err != nil {
		panic(err) // key is a name
	}
	r.Id.Uid, r.Version = "", version
	return r
}

func contentOf(r *pb.Resource) (stored, error) {
	n, err := resource.Decode[*pb.Node](r)
	return stored{n.GetAddress(), r.GetVersion()}, err
}

// readsNeverGoBack makes eventual reads at one server until ctx ends. A server
// that was started again may have forgotten, and shows itself by a call that
// fails.
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
			t.Errorf("eventual reads of %s went from version %d (gone: %t) back to %q: %v", key, before.version, before.gone, resp.Resource.Version, err)
		}
		last[key] = place{v, false}
	}
}
