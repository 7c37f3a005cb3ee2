// SPDX-License-Identifier: MPL-2.0

package controllertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// Service is a resource service in memory. A method that fails ends the test.
// The methods that read and write may be called from the goroutine of the test.
type Service struct {
	// Client calls the service as a server of datacenter dc1, the primary. It
	// returns copies, and may be called from any goroutine.
	Client pb.ResourceServiceClient

	t     testing.TB
	store *resourcetest.Store
}

// New returns a service of the given types. The service ends with the test.
func New(t testing.TB, types ...resource.Registration) *Service {
	t.Helper()
	registry := resource.NewRegistry()
	for _, reg := range types {
		if err := registry.Register(reg); err != nil {
			t.Fatal(err)
		}
	}
	store := resourcetest.NewStore()
	t.Cleanup(store.Close)
	service, err := resource.NewService(resource.ServiceConfig{
		Backend: store, Registry: registry, DC: "dc1", Primary: func() bool { return true },
		Peer: func(context.Context) (tlsutil.Peer, error) {
			return tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "server1"}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{ResourceServiceClient: service.Client(), sent: make(map[*pb.Resource]*pb.Resource)}
	t.Cleanup(func() { c.check(t) })
	return &Service{Client: c, t: t, store: store}
}

// Write creates a resource of the default tenancy, or replaces its data. The
// changes modify the resource before the write. Write returns the stored
// resource.
func (s *Service) Write(typ *pb.Type, name string, data proto.Message, changes ...func(*pb.Resource)) *pb.Resource {
	s.t.Helper()
	a, err := anypb.New(data)
	if err != nil {
		s.t.Fatalf("encode data of %s: %v", name, err)
	}
	r := &pb.Resource{Id: resource.ID(typ, name), Data: a}
	for _, change := range changes {
		change(r)
	}
	resp, err := s.Client.Write(context.Background(), &pb.WriteRequest{Resource: r})
	if err != nil {
		s.t.Fatalf("Write(%s) = %v, want nil", resource.IDString(r.Id), err)
	}
	return resp.GetResource()
}

// Owner is a change for Write that sets the owner of a new resource.
func Owner(owner *pb.Resource) func(*pb.Resource) {
	return func(r *pb.Resource) { r.Owner = owner.GetId() }
}

// Delete deletes a resource. It is idempotent.
func (s *Service) Delete(id *pb.ID) {
	s.t.Helper()
	if _, err := s.Client.Delete(context.Background(), &pb.DeleteRequest{Id: id}); err != nil {
		s.t.Fatalf("Delete(%s) = %v, want nil", resource.IDString(id), err)
	}
}

// Get returns a stored resource, or nil if none is stored.
func (s *Service) Get(id *pb.ID) *pb.Resource {
	r, err := s.store.Read(context.Background(), resource.Strong, id)
	if err != nil {
		return nil
	}
	return proto.CloneOf(r)
}

// List returns the stored resources of a type in all tenancies.
func (s *Service) List(typ *pb.Type) []*pb.Resource {
	s.t.Helper()
	all := &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}
	resp, err := s.Client.List(context.Background(), &pb.ListRequest{Type: typ, Tenancy: all})
	if err != nil {
		s.t.Fatalf("List(%s) = %v, want nil", resource.TypeString(typ), err)
	}
	return resp.GetResources()
}

// Env returns what the functions of c use, with caches of the present state.
func (s *Service) Env(c controller.Controller) *controller.Env {
	s.t.Helper()
	env, err := controller.Load(context.Background(), s.Client, c)
	if err != nil {
		s.t.Fatalf("Load() = %v, want nil", err)
	}
	return env
}

// Reconcile calls the reconciler of c once, with caches of the present state.
func (s *Service) Reconcile(c controller.Controller, id *pb.ID) (controller.Result, error) {
	s.t.Helper()
	return c.Reconcile(context.Background(), s.Env(c), id)
}

// Start runs controllers until stop is called or the test ends. Start sets the
// client of cfg, if cfg has none. stop waits for the controllers and is
// idempotent.
func (s *Service) Start(cfg controller.Config, controllers ...controller.Controller) (
	rt *controller.Runtime, stop func(),
) {
	s.t.Helper()
	if cfg.Client == nil {
		cfg.Client = s.Client
	}
	rt, err := controller.New(cfg, controllers...)
	if err != nil {
		s.t.Fatalf("New() = %v, want nil", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run() = %v, want nil", err)
		}
	})
	s.t.Cleanup(stop)
	return rt, stop
}

// eventually is the longest time that Eventually waits.
const eventually = 20 * time.Second

// Eventually calls check until it returns nil, for at most 20 seconds.
func (s *Service) Eventually(check func() error) {
	s.t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Since(start) > eventually {
			s.t.Fatalf("after %v: %v", eventually, err)
		}
	}
}

// client returns copies, and detects changes of those that it sent to watches.
type client struct {
	pb.ResourceServiceClient
	mu   sync.Mutex
	sent map[*pb.Resource]*pb.Resource // from copies to originals
}

func (c *client) Read(ctx context.Context, in *pb.ReadRequest, opts ...grpc.CallOption) (*pb.ReadResponse, error) {
	resp, err := c.ResourceServiceClient.Read(ctx, in, opts...)
	return proto.CloneOf(resp), err
}

func (c *client) List(ctx context.Context, in *pb.ListRequest, opts ...grpc.CallOption) (*pb.ListResponse, error) {
	resp, err := c.ResourceServiceClient.List(ctx, in, opts...)
	return proto.CloneOf(resp), err
}

func (c *client) WatchList(
	ctx context.Context, in *pb.WatchListRequest, opts ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	stream, err := c.ResourceServiceClient.WatchList(ctx, in, opts...)
	return watch{stream, c}, err
}

type watch struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
	c *client
}

func (w watch) Recv() (*pb.WatchEvent, error) {
	ev, err := w.ServerStreamingClient.Recv()
	sent := proto.CloneOf(ev)
	if r := sent.GetUpsert().GetResource(); r != nil {
		w.c.mu.Lock()
		defer w.c.mu.Unlock()
		w.c.sent[r] = ev.GetUpsert().GetResource()
	}
	return sent, err
}

// check reports resources that differ from their originals.
func (c *client) check(t testing.TB) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sent, original := range c.sent {
		if !proto.Equal(sent, original) {
			t.Errorf("%s in the cache was changed: clone a resource before changing it",
				resource.IDString(original.GetId()))
		}
	}
}
