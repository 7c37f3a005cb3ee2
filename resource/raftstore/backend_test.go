// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestConformanceSingle(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a")
	resourcetest.Run(t, func(*testing.T) resourcetest.Target { return c.target(c.leader) })
}

func TestConformanceLeader(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	resourcetest.Run(t, func(*testing.T) resourcetest.Target { return c.target(c.leader) })
}

// TestConformanceFollower checks that a follower that forwards requests to its
// leader keeps the contract of a Backend.
func TestConformanceFollower(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	resourcetest.Run(t, func(*testing.T) resourcetest.Target { return c.target(c.follower) })
}

// cluster is a group of stores that run as in servers. Each store serves gRPC
// for the others, and reaps tombstones while it leads.
type cluster struct {
	t     testing.TB
	nodes []string
	nw    *network
	dirs  map[string]string // data directories by node

	stores  map[string]*Store
	clients map[string]pb.StoreServiceClient
	stop    func() // ends the gRPC servers and RunWhileLeader
}

func newCluster(t testing.TB, nodes ...string) *cluster {
	c := &cluster{t: t, nodes: nodes, nw: loopback(t), dirs: map[string]string{}}
	for _, node := range nodes {
		c.dirs[node] = t.TempDir()
	}
	c.start()
	t.Cleanup(func() { c.stop() })
	for _, node := range nodes {
		if err := c.stores[node].Bootstrap(nodes); err != nil && !errors.Is(err, ErrHasState) {
			t.Fatal(err)
		}
	}
	return c
}

// start opens the stores from their directories.
func (c *cluster) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var conns []*grpc.ClientConn
	var servers []*grpc.Server
	c.stores, c.clients = map[string]*Store{}, map[string]pb.StoreServiceClient{}
	for _, node := range c.nodes {
		s := mustOpen(c.t, c.nw.config(c.t, node, c.dirs[node]))
		c.stores[node] = s
		running.Go(func() {
			_ = s.RunWhileLeader(ctx, func(ctx context.Context) error { return reap(ctx, s) })
		})
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.t.Fatal(err)
		}
		srv := grpc.NewServer()
		pb.RegisterStoreServiceServer(srv, resource.NewStoreService(s))
		running.Go(func() { _ = srv.Serve(ln) })
		cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			c.t.Fatal(err)
		}
		c.clients[node] = pb.NewStoreServiceClient(cc)
		conns, servers = append(conns, cc), append(servers, srv)
	}
	c.stop = sync.OnceFunc(func() {
		cancel()
		for _, cc := range conns {
			cc.Close()
		}
		for _, srv := range servers {
			srv.Stop()
		}
		running.Wait()
	})
}

func (c *cluster) all() []*Store {
	var all []*Store
	for _, node := range c.nodes {
		all = append(all, c.stores[node])
	}
	return all
}

func (c *cluster) leader() *Store { return awaitLeader(c.t, c.all()...) }

// follower returns a follower that knows the leader.
func (c *cluster) follower() *Store {
	leader := c.leader()
	s := c.all()[(slices.Index(c.all(), leader)+1)%len(c.nodes)]
	until(c.t, "the follower to know the leader", func() bool {
		node, ok := s.Leader()
		return ok && node == leader.cfg.Node
	})
	return s
}

// target returns a conformance target for the store that choose returns.
func (c *cluster) target(choose func() *Store) resourcetest.Target {
	s := choose()
	b, err := resource.NewForwardingBackend(s.cfg.Node, s, func(node string) (pb.StoreServiceClient, error) {
		return c.clients[node], nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	owned := 0
	if len(c.nodes) > 1 { // fewer owned resources, because a group is three times slower
		owned = 2000
	}
	return resourcetest.Target{
		Backend: b, Owned: owned,
		Snapshot: func(context.Context) (func(context.Context) error, error) {
			m, data := saveData(c.t, c.leader())
			return func(context.Context) error {
				mustRestore(c.t, c.leader(), m, data)
				return nil
			}, nil
		},
		Restart: func(*testing.T) resourcetest.Target {
			c.stop()
			for _, s := range c.all() {
				if err := s.Close(); err != nil {
					c.t.Error(err)
				}
			}
			c.start()
			return c.target(choose)
		},
	}
}
