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

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// selector selects "web" by name and "web*" by prefix.
func selector(_ *pb.Resource, data *text) controller.Selector {
	var s controller.Selector
	for _, w := range strings.Fields(data.Value) {
		if p, ok := strings.CutSuffix(w, "*"); ok {
			s.Prefixes = append(s.Prefixes, p)
		} else {
			s.Names = append(s.Names, w)
		}
	}
	return s
}

func targetIDs(r *pb.Resource, data *text) []*pb.ID {
	ids := []*pb.ID{resource.ID(computedType, "other-type")}
	for _, w := range words(r, data) {
		ids = append(ids, resource.ID(targetType, w))
	}
	return ids
}

func TestMappers(t *testing.T) {
	bySelector := controller.BySelector(targetType, "selector", selector)
	byReference := controller.ByReference(targetType, "reference", func(_ *pb.Resource, data *text) []*pb.ID {
		var ids []*pb.ID
		for _, w := range strings.Fields(data.Value) {
			ids = append(ids, resource.ID(routeType, w))
		}
		return ids
	})
	c := noop("c")
	c.Watches = []controller.Watch{{Type: routeType, Map: controller.MapAll}}
	c.Indexes = []*controller.Index{bySelector, byReference}

	s := newService(t)
	route := s.Write(routeType, "web1", wrapperspb.String("web1 db*"))
	s.Write(targetType, "web1", wrapperspb.String("web1 other"))
	s.Write(targetType, "web", wrapperspb.String("web*"))
	s.Write(targetType, "db1", wrapperspb.String("w* web1"), controllertest.Owner(route))
	owner := s.Write(targetType, "db2", wrapperspb.String("*"))
	owned := s.Write(routeType, "owned", wrapperspb.String(""), controllertest.Owner(owner))
	env := s.Env(c)
	names := func(r *pb.Resource, data *text) []string { return words(r, data) }
	named := controller.MapNames(names)

	for _, test := range []struct {
		name string
		m    controller.Mapper
		r    *pb.Resource
		want string
	}{
		{"same name", controller.MapSameName, route, "web1"},
		{"owner", controller.MapOwner, owned, "db2"},
		{"no owner", controller.MapOwner, route, ""},
		{"owned", controller.MapOwned, route, "db1"},
		{"owned by none", controller.MapOwned, owned, ""},
		{"all", controller.MapAll, route, "db1 db2 web web1"},
		{"names", named, route, "web1 db*"},
		{"references", controller.MapReferences(targetIDs), route, "web1 db*"},
		{"selector", controller.MapSelector(selector), route, "web1 db1 db2"},
		{"selecting", controller.MapSelecting(bySelector), route, "db1 web1 db2 db1 web"},
		{"lookup of references", controller.MapLookup(byReference, nil), route, "db1 web1"},
		{"multi", controller.MapMulti(controller.MapOwned, controller.MapSameName), route, "db1 web1"},
		{"transform", controller.MapTransform(func(env *controller.Env, _ *pb.Resource) ([]*pb.Resource, error) {
			return env.Cache.List(routeType, nil, "")
		}, controller.MapSameName), route, "owned web1"},
		{"filter", controller.MapFilter(func(r *pb.Resource) bool { return r.Id.Name == "x" }, named), route, ""},
		{"other data", named, &pb.Resource{Id: route.Id}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			ids, err := test.m(env, test.r)
			if got := idNames(ids); got != test.want || err != nil {
				t.Errorf("mapper(%s) = %q, %v, want %q, nil", test.r.Id.Name, got, err, test.want)
			}
		})
	}
	unknown := controller.By(routeType, "unknown", words)
	failing := controller.MapLookup(unknown, nil)
	for name, m := range map[string]controller.Mapper{
		"lookup": failing, "multi": controller.MapMulti(failing),
		"transform": controller.MapTransform(func(*controller.Env, *pb.Resource) ([]*pb.Resource, error) {
			return []*pb.Resource{route}, nil
		}, failing),
	} {
		if _, err := m(env, route); err == nil || !strings.Contains(err.Error(), "Controller.Indexes") {
			t.Errorf("%s of an index that is not maintained = %v, want an error with the remedy", name, err)
		}
	}
}

func idNames(ids []*pb.ID) string {
	var names []string
	for _, id := range ids {
		names = append(names, id.Name)
	}
	return strings.Join(names, " ")
}

func resourceNames(rs []*pb.Resource, err error) string {
	var names []string
	for _, r := range rs {
		names = append(names, r.Id.Name)
	}
	if err != nil {
		names = append(names, err.Error())
	}
	return strings.Join(names, " ")
}

func TestCache_Queries(t *testing.T) {
	single := controller.By(routeType, "single", func(_ *pb.Resource, data *text) []string { return []string{data.Value} })
	bytes := &controller.Index{Type: routeType, Name: "bytes", Keys: func(r *pb.Resource) []string {
		return []string{"\x00\xff" + r.Id.Name[:1]}
	}}
	broken := &controller.Index{Type: routeType, Name: "broken", Keys: func(*pb.Resource) []string { panic("broken") }}
	c := noop("c")
	c.Watches = []controller.Watch{{Type: routeType, Map: controller.MapAll}}
	c.Indexes = []*controller.Index{single, routesByTarget, bytes, broken}
	s := newService(t)
	owner := s.Write(targetType, "owner", wrapperspb.String(""))
	a1 := s.Write(routeType, "a1", wrapperspb.String("x y"), controllertest.Owner(owner))
	s.Write(routeType, "a2", wrapperspb.String("y"))
	s.Write(routeType, "b", wrapperspb.String("yes"), func(r *pb.Resource) {
		var refs controller.References
		refs.Add(a1)
		refs.Store(r)
	})
	s.Write(routeType, "a2", wrapperspb.String("y z"), func(r *pb.Resource) { r.Id.Tenancy.Namespace = "other" })
	cache := s.Env(c).Cache
	for name, test := range map[string]struct{ got, want string }{
		"single":       {resourceNames(cache.Lookup(single, "x y")), "a1"},
		"multi":        {resourceNames(cache.Lookup(routesByTarget, "y")), "a1 a2 a2"},
		"absent":       {resourceNames(cache.Lookup(routesByTarget, "ye")), ""},
		"key prefix":   {resourceNames(cache.LookupPrefix(routesByTarget, "y")), "a1 a2 a2 b"},
		"bytes":        {resourceNames(cache.Lookup(bytes, "\x00\xffa")), "a1 a2 a2"},
		"broken":       {resourceNames(cache.Lookup(broken, "")), ""},
		"owner by uid": {resourceNames(cache.OwnedBy(routeType, owner.Id)), "a1"},
		"owner":        {resourceNames(cache.OwnedBy(routeType, resource.ID(targetType, "owner"))), "a1"},
		"bound":        {resourceNames(cache.BoundTo(routeType, a1.Id)), "b"},
		"all":          {resourceNames(cache.List(routeType, nil, "")), "a1 a2 b a2"},
		"all prefix":   {resourceNames(cache.List(routeType, nil, "a")), "a1 a2 a2"},
		"namespace":    {resourceNames(cache.List(routeType, &pb.Tenancy{}, "")), "a1 a2 b"},
		"name prefix":  {resourceNames(cache.List(routeType, &pb.Tenancy{Namespace: "other"}, "a")), "a2"},
	} {
		if test.got != test.want {
			t.Errorf("%s = %q, want %q", name, test.got, test.want)
		}
	}
	if r, err := cache.Get(a1.Id); err != nil || value(r) != "x y" {
		t.Errorf("Get(a1) = %v, %v, want x y, nil", r, err)
	}
	earlier := resource.ID(routeType, "a1")
	earlier.Uid = resource.NewUID()
	for _, id := range []*pb.ID{earlier, resource.ID(routeType, "absent")} {
		if _, err := cache.Get(id); !errors.Is(err, resource.ErrNotFound) {
			t.Errorf("Get(%s) = %v, want ErrNotFound", id.Name, err)
		}
	}
	if _, err := cache.Get(resource.ID(computedType, "x")); err == nil || errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Get() of a type that is not watched = %v, want an error with the remedy", err)
	}
}

// TestCache_FollowsChanges compares a cache and its indexes with the store
// after random changes and ended watches.
func TestCache_FollowsChanges(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		w := &watches{ResourceServiceClient: s.Client}
		var cache *controller.Cache
		c := noop("c")
		c.Watches = []controller.Watch{{Type: routeType, Map: controller.MapAll}}
		c.Indexes = []*controller.Index{routesByTarget}
		c.Initialize = func(_ context.Context, env *controller.Env) error {
			cache = env.Cache
			return nil
		}
		cfg := quiet
		cfg.Client = w
		s.Start(cfg, c)
		synctest.Wait()
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			switch name := fmt.Sprintf("r%d", rnd.IntN(20)); rnd.IntN(8) {
			case 0, 1, 2:
				s.Delete(resource.ID(routeType, name))
			case 3:
				w.end() // the next changes are in the new snapshot
			default:
				s.Write(routeType, name, wrapperspb.String(fmt.Sprintf("t%d t%d", rnd.IntN(3), rnd.IntN(3))))
			}
			if rnd.IntN(3) > 0 {
				continue
			}
			s.Eventually(func() error {
				want := map[string][]string{}
				var names []string
				for _, r := range s.List(routeType) {
					names = append(names, r.Id.Name)
					for _, target := range slices.Compact(strings.Fields(value(r))) {
						want[target] = append(want[target], r.Id.Name)
					}
				}
				if got := resourceNames(cache.List(routeType, nil, "")); got != strings.Join(names, " ") {
					return fmt.Errorf("List() = %q, want %q", got, names)
				}
				for i := range 3 {
					target := fmt.Sprintf("t%d", i)
					if got := resourceNames(cache.Lookup(routesByTarget, target)); got != strings.Join(want[target], " ") {
						return fmt.Errorf("Lookup(%s) = %q, want %q", target, got, want[target])
					}
				}
				return nil
			})
		}
	})
}

func TestEnv_StrongRead(t *testing.T) {
	s := newService(t)
	env := s.Env(noop("c"))
	s.Write(targetType, "x", wrapperspb.String("later")) // not in the cache of env
	r, err := env.Read(t.Context(), resource.ID(targetType, "x"))
	if err != nil || value(r) != "later" {
		t.Errorf("Read() = %v, %v, want later, nil", r, err)
	}
	if _, err := env.Read(t.Context(), resource.ID(targetType, "y")); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read(y) = %v, want ErrNotFound", err)
	}
	if got := resourceNames(env.List(t.Context(), targetType, nil, "")); got != "x" {
		t.Errorf("List() = %q, want x", got)
	}
}

func TestWriteStatus(t *testing.T) {
	s := newService(t)
	r := s.Write(targetType, "x", wrapperspb.String("1"))
	c := noop("c")
	set := func(conditions ...*pb.Condition) *pb.Resource {
		t.Helper()
		before := s.Get(r.Id)
		if err := s.Env(c).WriteStatus(t.Context(), before, conditions...); err != nil {
			t.Fatalf("WriteStatus() = %v, want nil", err)
		}
		return s.Get(r.Id)
	}
	first := set(controller.Outcome("Ready", "Done", nil), controller.Outcome("Valid", "Checked", errors.New("no port")))
	st := first.Status["c"]
	if st.ObservedGeneration != r.Generation || len(st.Conditions) != 2 ||
		st.Conditions[0].State != pb.Condition_STATE_TRUE || st.Conditions[1].State != pb.Condition_STATE_FALSE ||
		st.Conditions[1].Message != "no port" {
		t.Errorf("status = %v, want Ready true and Valid false of generation %s", st, r.Generation)
	}
	if same := set(controller.Outcome("Ready", "Done", nil)); same.Version != first.Version {
		t.Errorf("version after an unchanged status = %s, want %s", same.Version, first.Version)
	}
	second := set(controller.Outcome("Valid", "Checked", nil))
	if st := second.Status["c"]; len(st.Conditions) != 2 || st.Conditions[1].State != pb.Condition_STATE_TRUE {
		t.Errorf("status = %v, want Ready and Valid true", st)
	}
	s.Write(targetType, "x", wrapperspb.String("2"))
	third := set(controller.Outcome("Valid", "Checked", nil))
	if got := third.Status["c"].ObservedGeneration; got != third.Generation || got == r.Generation {
		t.Errorf("observed generation = %s, want that of the new data, %s", got, third.Generation)
	}
	err := s.Env(c).WriteStatus(t.Context(), third, controller.Outcome("A", "B", nil), controller.Outcome("A", "C", nil))
	if !errors.Is(err, resource.ErrInvalid) {
		t.Errorf("WriteStatus() with a type twice = %v, want ErrInvalid", err)
	}
	s.Delete(r.Id)
	if err := s.Env(c).WriteStatus(t.Context(), third, controller.Outcome("A", "B", nil)); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("WriteStatus() of a deleted resource = %v, want ErrNotFound", err)
	}
}
