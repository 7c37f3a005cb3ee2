// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

var (
	itemType  = &pb.Type{Group: "bench", GroupVersion: "v1", Kind: "Item"}
	classType = &pb.Type{Group: "bench", GroupVersion: "v1", Kind: "Class"}

	itemsByClass = controller.By(itemType, "class", func(_ *pb.Resource, s *pb.Service) []string {
		return []string{s.Service}
	})
)

// runWanfed has services in a store in memory as items and as classes.
func runWanfed(ctx context.Context, n int, p *probe) error {
	store := resourcetest.NewStore()
	defer store.Close()
	registry := resource.NewRegistry()
	for _, t := range []*pb.Type{itemType, classType} {
		if err := registry.Register(resource.Registration{Type: t, Message: &pb.Service{}}); err != nil {
			return err
		}
	}
	service, err := resource.NewService(resource.ServiceConfig{
		Backend: store, Registry: registry, DC: "dc1", Primary: func() bool { return true },
		Peer: func(context.Context) (tlsutil.Peer, error) {
			return tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "server1"}, nil
		},
	})
	if err != nil {
		return err
	}
	put := func(t *pb.Type, name string, s *pb.Service) error {
		r, err := resource.New(t, name, s)
		if err == nil {
			_, err = store.Commit(ctx, resource.OverwriteOp(r, false))
		}
		return err
	}
	for i := range n / fanout {
		if err := put(classType, fmt.Sprintf("class-%d", i), &pb.Service{}); err != nil {
			return err
		}
	}
	for i := range n {
		s := &pb.Service{Service: classOf(i, n), Meta: map[string]string{"value": payload}}
		if err := put(itemType, fmt.Sprintf("item-%d", i), s); err != nil {
			return err
		}
	}

	var cache *controller.Cache
	rt, err := controller.New(controller.Config{Client: copies{service.Client()}, Logger: slog.New(slog.DiscardHandler)},
		controller.Controller{
			Name: "bench", Managed: itemType, Workers: workers, Indexes: []*controller.Index{itemsByClass},
			Watches: []controller.Watch{{Type: classType, Map: controller.MapLookup(itemsByClass,
				func(r *pb.Resource) []string { return []string{r.Id.Name} })}},
			Initialize: func(_ context.Context, env *controller.Env) error {
				cache = env.Cache
				return nil
			},
			Reconcile: func(_ context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
				p.reconciled()
				item, err := env.Cache.Get(id)
				if err != nil {
					return controller.Result{}, err
				}
				s, err := resource.Decode[*pb.Service](item)
				if err == nil {
					_, err = env.Cache.Get(resource.ID(classType, s.Service))
				}
				return controller.Result{}, err
			},
		})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	err = p.measure(ctx,
		// start
		func() { go func() { done <- rt.Run(ctx) }() },
		// change
		func(i int) error {
			return put(classType, classOf(i, n), &pb.Service{Meta: map[string]string{"change": fmt.Sprint(i)}})
		},
		// lookup
		func() (int, error) {
			found, err := cache.Lookup(itemsByClass, "class-0")
			return len(found), err
		},
		// scan
		func() (int, error) {
			found := 0
			all, err := cache.List(itemType, nil, "")
			for _, r := range all {
				if s, err := resource.Decode[*pb.Service](r); err == nil && s.Service == "class-0" {
					found++
				}
			}
			return found, err
		})
	cancel()
	if err != nil {
		return err
	}
	return <-done
}

// copies is a client whose watches return copies, as over a connection.
type copies struct{ pb.ResourceServiceClient }

func (c copies) WatchList(ctx context.Context, in *pb.WatchListRequest, opts ...grpc.CallOption) (
	grpc.ServerStreamingClient[pb.WatchEvent], error,
) {
	stream, err := c.ResourceServiceClient.WatchList(ctx, in, opts...)
	return copyStream{stream}, err
}

type copyStream struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
}

func (s copyStream) Recv() (*pb.WatchEvent, error) {
	ev, err := s.ServerStreamingClient.Recv()
	return proto.CloneOf(ev), err
}
