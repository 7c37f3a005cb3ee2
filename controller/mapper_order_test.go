// SPDX-License-Identifier: MPL-2.0

package controller_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// relation is a mapper from routes to targets, with the routes on which a target
// then depends.
type relation struct {
	mapper  controller.Mapper
	indexes []*controller.Index
	routes  func(env *controller.Env, target *pb.Resource) ([]*pb.Resource, error)
}

var (
	selectingTargets = controller.BySelector(targetType, "selecting", selector)
	referringTargets = controller.ByReference(targetType, "referring", routeIDs)
)

func routeIDs(r *pb.Resource, data *text) []*pb.ID {
	var ids []*pb.ID
	for _, w := range words(r, data) {
		ids = append(ids, resource.ID(routeType, w))
	}
	return ids
}

// chosen returns the routes for which keep returns true.
func chosen(keep func(route, target *pb.Resource) bool) func(*controller.Env, *pb.Resource) ([]*pb.Resource, error) {
	return func(env *controller.Env, target *pb.Resource) ([]*pb.Resource, error) {
		routes, err := env.Cache.List(routeType, nil, "")
		return slices.DeleteFunc(routes, func(r *pb.Resource) bool { return !keep(r, target) }), err
	}
}

// selects reports whether the selector in the data of r selects a name.
func selects(r *pb.Resource, name string) bool {
	return slices.ContainsFunc(strings.Fields(value(r)), func(w string) bool {
		prefix, wildcard := strings.CutSuffix(w, "*")
		return w == name || wildcard && strings.HasPrefix(name, prefix)
	})
}

func mentions(r *pb.Resource, name string) bool {
	return slices.Contains(strings.Fields(value(r)), name)
}

func isOdd(r *pb.Resource) bool { return len(value(r))%2 == 1 }

var relations = map[string]relation{
	"same name": {controller.MapSameName, nil, chosen(func(r, t *pb.Resource) bool { return r.Id.Name == t.Id.Name })},
	"owner": {controller.MapOwner, nil, func(env *controller.Env, target *pb.Resource) ([]*pb.Resource, error) {
		return env.Cache.OwnedBy(routeType, target.Id)
	}},
	"owned": {controller.MapOwned, nil, chosen(func(r, t *pb.Resource) bool { return t.Owner.GetUid() == r.Id.Uid })},
	"all":   {controller.MapAll, nil, chosen(func(_, _ *pb.Resource) bool { return true })},
	"names": {controller.MapNames(words), []*controller.Index{routesByTarget},
		func(env *controller.Env, target *pb.Resource) ([]*pb.Resource, error) {
			return env.Cache.Lookup(routesByTarget, target.Id.Name)
		}},
	"references": {controller.MapReferences(targetIDs), nil,
		chosen(func(r, t *pb.Resource) bool { return mentions(r, t.Id.Name) })},
	"selector": {controller.MapSelector(selector), nil,
		chosen(func(r, t *pb.Resource) bool { return selects(r, t.Id.Name) })},
	"selecting": {controller.MapSelecting(selectingTargets), []*controller.Index{selectingTargets},
		chosen(func(r, t *pb.Resource) bool { return selects(t, r.Id.Name) })},
	"lookup": {controller.MapLookup(referringTargets, nil), []*controller.Index{referringTargets},
		chosen(func(r, t *pb.Resource) bool { return mentions(t, r.Id.Name) })},
	"multi": {controller.MapMulti(controller.MapSameName, controller.MapNames(words)), nil,
		chosen(func(r, t *pb.Resource) bool { return r.Id.Name == t.Id.Name || mentions(r, t.Id.Name) })},
	// The target depends on the routes that mention the route of its name.
	"transform": {
		controller.MapMulti(controller.MapSameName, controller.MapTransform(
			func(env *controller.Env, r *pb.Resource) (routes []*pb.Resource, _ error) {
				for _, w := range strings.Fields(value(r)) {
					if other, err := env.Cache.Get(resource.ID(routeType, w)); err == nil {
						routes = append(routes, other)
					}
				}
				return routes, nil
			}, controller.MapSameName)), nil,
		func(env *controller.Env, target *pb.Resource) ([]*pb.Resource, error) {
			if _, err := env.Cache.Get(resource.ID(routeType, target.Id.Name)); err != nil {
				return nil, nil
			}
			return chosen(func(r, t *pb.Resource) bool { return mentions(r, t.Id.Name) })(env, target)
		},
	},
	"filter": {controller.MapFilter(isOdd, controller.MapNames(words)), nil,
		chosen(func(r, t *pb.Resource) bool { return isOdd(r) && mentions(r, t.Id.Name) })},
}

// controller returns a controller that writes the names and the words of the
// routes of each target.
func (rel relation) controller() controller.Controller {
	c := noop("relation")
	c.Indexes = rel.indexes
	c.Watches = []controller.Watch{
		{Type: routeType, Map: rel.mapper},
		{Type: computedType, Map: controller.MapSameName}, // of targets that were deleted while the runtime was stopped
	}
	c.Reconcile = func(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
		computed := resource.ID(computedType, id.Name)
		target, err := env.Cache.Get(id)
		if errors.Is(err, resource.ErrNotFound) {
			_, err := env.Client.Delete(ctx, &pb.DeleteRequest{Id: computed})
			return controller.Result{}, err
		}
		routes, err := rel.routes(env, target)
		if err != nil {
			return controller.Result{}, err
		}
		var parts []string
		for _, r := range routes {
			parts = append(parts, fmt.Sprintf("%s=%s", r.Id.Name, value(r)))
		}
		return controller.Result{}, write(ctx, env, computed, strings.Join(parts, ";"), nil)
	}
	return c
}

// ownedHistory is a history with selectors and owners.
func ownedHistory(rnd *rand.Rand) []func(*controllertest.Service) {
	var steps []func(*controllertest.Service)
	for range 80 {
		types := []*pb.Type{targetType, routeType}
		rnd.Shuffle(2, func(i, j int) { types[i], types[j] = types[j], types[i] })
		id, owner := resource.ID(types[0], fmt.Sprintf("n%d", rnd.IntN(4))), resource.ID(types[1], fmt.Sprintf("n%d", rnd.IntN(4)))
		data := wrapperspb.String(strings.Repeat(" ", rnd.IntN(2)) +
			fmt.Sprintf("n%d %s", rnd.IntN(4), []string{"n1", "n*", "n2*", ""}[rnd.IntN(4)]))
		switch rnd.IntN(5) {
		case 0:
			steps = append(steps, func(s *controllertest.Service) { s.Delete(id) })
		case 1, 2:
			steps = append(steps, func(s *controllertest.Service) {
				if o := s.Get(owner); o != nil && s.Get(id) == nil {
					s.Write(id.Type, id.Name, data, controllertest.Owner(o))
				}
			})
		default:
			steps = append(steps, func(s *controllertest.Service) { s.Write(id.Type, id.Name, data) })
		}
	}
	return steps
}

// TestMappers_AnyOrderEndsInTheSameState compares, for each mapper, a runtime
// that processes changes at random times, with restarts and ended watches, with
// the reconcile of each target after all changes.
func TestMappers_AnyOrderEndsInTheSameState(t *testing.T) {
	for name, rel := range relations {
		t.Run(name, func(t *testing.T) {
			var all strings.Builder // all final states
			for seed := range uint64(12) {
				testutil.Bubble(t, func(t *testing.T) {
					rnd := rand.New(rand.NewPCG(seed, 3))
					steps := ownedHistory(rnd)
					ordered, s := newService(t), newService(t)
					for _, step := range steps {
						step(ordered)
					}
					for i := range 4 {
						if _, err := ordered.Reconcile(rel.controller(), resource.ID(targetType, fmt.Sprintf("n%d", i))); err != nil {
							t.Fatalf("Reconcile() = %v, want nil", err)
						}
					}
					w := &watches{ResourceServiceClient: s.Client}
					cfg := quiet
					cfg.Client = w
					_, stop := s.Start(cfg, rel.controller())
					for _, step := range steps {
						time.Sleep(time.Duration(rnd.IntN(3)) * 10 * time.Millisecond)
						switch rnd.IntN(12) {
						case 0:
							w.end()
						case 1:
							stop()
							_, stop = s.Start(cfg, rel.controller())
						}
						step(s)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					got, want := state(s, computedType), state(ordered, computedType)
					if got != want {
						t.Errorf("seed %d: computed = %q, want %q", seed, got, want)
					}
					all.WriteString(got)
				})
			}
			if n := strings.Count(all.String(), "="); n < 5 {
				t.Errorf("routes in the final states = %d, want at least 5", n)
			}
		})
	}
}
