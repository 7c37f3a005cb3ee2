// SPDX-License-Identifier: MPL-2.0

package controller_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// perRoute manages routes: it computes a resource for each target of a route,
// with the names of all routes to the target. record stores bound references.
func perRoute(record bool) controller.Controller {
	c := noop("per-route")
	c.Managed = routeType
	c.Indexes = []*controller.Index{routesByTarget}
	c.Watches = []controller.Watch{{Type: computedType, Map: func(_ *controller.Env, r *pb.Resource) ([]*pb.ID, error) {
		return controller.BoundReferences(r), nil
	}}}
	c.Reconcile = func(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
		var targets []string
		if route, err := env.Cache.Get(id); err == nil {
			targets = strings.Fields(value(route))
		}
		stale, err := env.Cache.BoundTo(computedType, id)
		if err != nil {
			return controller.Result{}, err
		}
		for _, r := range stale {
			targets = append(targets, r.Id.Name)
		}
		for _, target := range targets {
			routes, err := env.Cache.Lookup(routesByTarget, target)
			if err != nil {
				return controller.Result{}, err
			}
			var used controller.References
			var names []string
			for _, r := range routes {
				names = append(names, r.Id.Name)
			}
			if record {
				used.Add(routes...)
			}
			if err := write(ctx, env, resource.ID(computedType, target), strings.Join(names, " "), &used); err != nil {
				return controller.Result{}, err
			}
		}
		return controller.Result{}, nil
	}
	return c
}

// TestBoundReferences_MovedWhileStopped moves a reference while no controller
// runs. Without bound references, what the old target produced is orphaned.
func TestBoundReferences_MovedWhileStopped(t *testing.T) {
	for record, want := range map[bool]string{true: "a: b:x", false: "a:x b:x"} {
		testutil.Bubble(t, func(t *testing.T) {
			s := newService(t)
			s.Write(routeType, "x", wrapperspb.String("a"))
			_, stop := s.Start(quiet, perRoute(record))
			synctest.Wait()
			if got, want := state(s, computedType), "a:x"; got != want {
				t.Fatalf("computed = %q, want %q", got, want)
			}
			stop()
			s.Write(routeType, "x", wrapperspb.String("b"))
			s.Start(quiet, perRoute(record))
			synctest.Wait()
			if got := state(s, computedType); got != want {
				t.Errorf("computed with bound references %t = %q, want %q", record, got, want)
			}
		})
	}
}

// strongAggregate reads routes with strong reads. Its mapper of routes does not
// see every state that the reconciler has used.
func strongAggregate(record bool) controller.Controller {
	c := aggregate()
	c.Reconcile = func(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
		routes, err := env.List(ctx, routeType, nil, "")
		if err != nil {
			return controller.Result{}, err
		}
		var used controller.References
		var names []string
		for _, r := range routes {
			if slices.Contains(strings.Fields(value(r)), id.Name) {
				names = append(names, r.Id.Name)
				if record {
					used.Add(r)
				}
			}
		}
		return controller.Result{}, write(ctx, env, resource.ID(computedType, id.Name), strings.Join(names, " "), &used)
	}
	return c
}

// TestBoundReferences_WidenMappers moves a reference from a to b and on to c.
// The watch misses the state in which it refers to b.
func TestBoundReferences_WidenMappers(t *testing.T) {
	for record, want := range map[bool]string{true: "a: b: c:x", false: "a: b:x c:x"} {
		testutil.Bubble(t, func(t *testing.T) {
			s := newService(t)
			for _, name := range []string{"a", "b", "c"} {
				s.Write(targetType, name, wrapperspb.String(""))
			}
			s.Write(routeType, "x", wrapperspb.String("a"))
			cfg, w := quiet, &watches{ResourceServiceClient: s.Client}
			cfg.Client = w
			s.Start(cfg, strongAggregate(record))
			synctest.Wait()
			release := w.hold(routeType)
			s.Write(routeType, "x", wrapperspb.String("b"))
			s.Write(targetType, "b", wrapperspb.String("changed"))
			synctest.Wait()
			if got, want := state(s, computedType), "a:x b:x c:"; got != want {
				t.Fatalf("computed = %q, want %q", got, want)
			}
			w.end()
			s.Write(routeType, "x", wrapperspb.String("c"))
			time.Sleep(time.Second) // the watches begin again
			release()
			synctest.Wait()
			if got := state(s, computedType); got != want {
				t.Errorf("computed with bound references %t = %q, want %q", record, got, want)
			}
		})
	}
}

func TestReferences_StoreAndRead(t *testing.T) {
	var b controller.References
	odd := resource.ID(routeType, "a b/%\n/é")
	b.AddID(odd)
	b.Add(&pb.Resource{Id: resource.ID(targetType, "x")}, nil, &pb.Resource{Id: resource.ID(targetType, "x")})
	r := &pb.Resource{}
	b.Store(r)
	got := controller.BoundReferences(r)
	want := []*pb.ID{odd, resource.ID(targetType, "x")}
	if !slices.EqualFunc(got, want, func(a, b *pb.ID) bool { return proto.Equal(a, b) }) {
		t.Errorf("BoundReferences() = %v, want %v", got, want)
	}
	(&controller.References{}).Store(r)
	if v, ok := r.Metadata[controller.ReferencesKey]; ok {
		t.Errorf("metadata after Store() of an empty collection = %q, want none", v)
	}
}

func FuzzBoundReferences(f *testing.F) {
	f.Add("test/v1/Route/default/default/x test/v1/Route/p/n/a%20b")
	f.Add("a/b//c %zz/1/2/3/4/5 1/2/3/4/5/%00")
	f.Fuzz(func(t *testing.T, v string) {
		ids := controller.BoundReferences(&pb.Resource{Metadata: map[string]string{controller.ReferencesKey: v}})
		var b controller.References
		for _, id := range ids {
			if err := resource.CheckResource(&pb.Resource{Id: &pb.ID{
				Type: id.Type, Tenancy: &pb.Tenancy{}, Name: id.Name, Uid: "u",
			}}); err != nil && id.Name == "" {
				t.Errorf("BoundReferences(%q) = %v, want valid ids", v, id)
			}
			b.AddID(id)
		}
		r := &pb.Resource{}
		b.Store(r)
		if again := controller.BoundReferences(r); len(again) > len(ids) {
			t.Errorf("BoundReferences() of %d stored ids = %d ids, want at most as many", len(ids), len(again))
		}
	})
}
