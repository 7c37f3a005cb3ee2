// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Mapper returns the ids of the managed resources that depend on r, the old or
// the new state of a changed resource. It reads only the cache, and must not
// block. An error stops the controller, which starts again after a backoff with
// a reconcile of every managed resource. Ids of another type than the managed
// one are an error.
type Mapper func(env *Env, r *pb.Resource) ([]*pb.ID, error)

// MapSameName maps a resource to the managed resource with the same tenancy and
// name.
func MapSameName(env *Env, r *pb.Resource) ([]*pb.ID, error) {
	return []*pb.ID{env.managedID(r, r.GetId().GetName())}, nil
}

// managedID returns the id of a managed resource in the tenancy of r.
func (e *Env) managedID(r *pb.Resource, name string) *pb.ID {
	return &pb.ID{Type: e.Managed(), Tenancy: r.GetId().GetTenancy(), Name: name}
}

// MapOwner maps a resource to its owner, if the owner is of the managed type.
func MapOwner(env *Env, r *pb.Resource) ([]*pb.ID, error) {
	if resource.SameType(r.GetOwner().GetType(), env.Managed()) {
		return []*pb.ID{r.GetOwner()}, nil
	}
	return nil, nil
}

// MapOwned maps a resource to the managed resources that it owns.
func MapOwned(env *Env, r *pb.Resource) ([]*pb.ID, error) {
	return idsOf(env.Cache.OwnedBy(env.Managed(), r.GetId()))
}

// MapAll maps every resource to all managed resources.
func MapAll(env *Env, _ *pb.Resource) ([]*pb.ID, error) {
	return idsOf(env.Cache.List(env.Managed(), nil, ""))
}

// MapNames returns a mapper to the managed resources with the names that names
// returns, in the tenancy of the changed resource. It maps a resource with
// other data to none.
func MapNames[T proto.Message](names func(r *pb.Resource, data T) []string) Mapper {
	return mapData(func(env *Env, r *pb.Resource, data T) []*pb.ID {
		var ids []*pb.ID
		for _, n := range names(r, data) {
			ids = append(ids, env.managedID(r, n))
		}
		return ids
	})
}

// MapReferences returns a mapper to the managed resources among those to which
// the changed resource refers.
func MapReferences[T proto.Message](refs func(r *pb.Resource, data T) []*pb.ID) Mapper {
	return mapData(func(env *Env, r *pb.Resource, data T) []*pb.ID {
		var ids []*pb.ID
		for _, id := range refs(r, data) {
			if resource.SameType(id.GetType(), env.Managed()) {
				ids = append(ids, id)
			}
		}
		return ids
	})
}

// mapData returns a mapper that computes ids from the decoded data. It maps
// a resource with other data to none.
func mapData[T proto.Message](ids func(env *Env, r *pb.Resource, data T) []*pb.ID) Mapper {
	return func(env *Env, r *pb.Resource) ([]*pb.ID, error) {
		data, err := resource.Decode[T](r)
		if err != nil {
			return nil, nil
		}
		return ids(env, r, data), nil
	}
}

// MapSelector returns a mapper to the managed resources that the changed
// resource selects. A selected name need not exist.
func MapSelector[T proto.Message](sel func(r *pb.Resource, data T) Selector) Mapper {
	names := MapNames(func(r *pb.Resource, data T) []string { return sel(r, data).Names })
	return MapMulti(names, func(env *Env, r *pb.Resource) ([]*pb.ID, error) {
		data, err := resource.Decode[T](r)
		if err != nil {
			return nil, nil
		}
		var ids []*pb.ID
		for _, p := range sel(r, data).Prefixes {
			more, err := idsOf(env.Cache.List(env.Managed(), resource.FillTenancy(r.GetId().GetTenancy()), p))
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
		}
		return ids, nil
	})
}

// MapSelecting returns a mapper to the resources that select the changed
// resource. x is an index of BySelector, of the managed type.
func MapSelecting(x *Index) Mapper {
	return MapLookup(x, func(r *pb.Resource) []string {
		k := keyOf(r.GetId())
		keys := []string{k.join("=")}
		for i := range len(k.name) + 1 {
			keys = append(keys, k.with(k.name[:i]).join("^"))
		}
		return keys
	})
}

// MapLookup returns a mapper to the cached resources that have one of the keys
// in x, an index of the managed type. If keys is nil, the key is Key of the
// changed resource, as for an index of ByReference.
func MapLookup(x *Index, keys func(r *pb.Resource) []string) Mapper {
	return func(env *Env, r *pb.Resource) ([]*pb.ID, error) {
		values := []string{Key(r.GetId())}
		if keys != nil {
			values = keys(r)
		}
		var ids []*pb.ID
		for _, v := range values {
			more, err := idsOf(env.Cache.Lookup(x, v))
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
		}
		return ids, nil
	}
}

// MapMulti returns a mapper to the results of all mappers.
func MapMulti(mappers ...Mapper) Mapper {
	return func(env *Env, r *pb.Resource) ([]*pb.ID, error) {
		var ids []*pb.ID
		for _, m := range mappers {
			more, err := m(env, r)
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
		}
		return ids, nil
	}
}

// MapTransform returns a mapper that applies next to each resource that
// transform returns, for example to the targets of a reference.
func MapTransform(transform func(env *Env, r *pb.Resource) ([]*pb.Resource, error), next Mapper) Mapper {
	return func(env *Env, r *pb.Resource) ([]*pb.ID, error) {
		rs, err := transform(env, r)
		if err != nil {
			return nil, err
		}
		var ids []*pb.ID
		for _, r := range rs {
			more, err := next(env, r)
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
		}
		return ids, nil
	}
}

// MapFilter returns a mapper that applies next only to resources for which keep
// returns true.
func MapFilter(keep func(r *pb.Resource) bool, next Mapper) Mapper {
	return func(env *Env, r *pb.Resource) ([]*pb.ID, error) {
		if !keep(r) {
			return nil, nil
		}
		return next(env, r)
	}
}

func idsOf(rs []*pb.Resource, err error) ([]*pb.ID, error) {
	ids := make([]*pb.ID, len(rs))
	for i, r := range rs {
		ids[i] = r.GetId()
	}
	return ids, err
}
