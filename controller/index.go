// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Index finds the cached resources of a type by keys. Its address is its
// identity: declare an Index as a variable of the package, and list it in
// Controller.Indexes. Controllers of one runtime may share an Index.
type Index struct {
	// Type is the type of the indexed resources.
	Type *pb.Type
	// Name describes the index in errors.
	Name string
	// Keys returns the keys of a resource: none, one or several. A key may have
	// any bytes. Keys must return the same keys for the same resource, and must
	// not block.
	Keys func(r *pb.Resource) []string
}

// By returns an Index whose keys are computed from the decoded data. A resource
// with other data has no keys. keys returns one key for a single index, and
// several for a multi index.
func By[T proto.Message](typ *pb.Type, name string, keys func(r *pb.Resource, data T) []string) *Index {
	return &Index{Type: typ, Name: name, Keys: func(r *pb.Resource) []string {
		data, err := resource.Decode[T](r)
		if err != nil {
			return nil
		}
		return keys(r, data)
	}}
}

// ByReference returns an Index of the resources to which a resource refers.
// Query it with Key of an id. A uid has no effect.
func ByReference[T proto.Message](typ *pb.Type, name string, refs func(r *pb.Resource, data T) []*pb.ID) *Index {
	return By(typ, name, func(r *pb.Resource, data T) []string { return keysOf(refs(r, data)) })
}

// Selector selects resources of one tenancy by their names.
type Selector struct {
	Names    []string
	Prefixes []string
}

// BySelector returns an Index of the resources that select others. MapSelecting
// queries it.
func BySelector[T proto.Message](typ *pb.Type, name string, sel func(r *pb.Resource, data T) Selector) *Index {
	return By(typ, name, func(r *pb.Resource, data T) []string {
		s, k := sel(r, data), keyOf(r.GetId())
		keys := make([]string, 0, len(s.Names)+len(s.Prefixes))
		for _, n := range s.Names {
			keys = append(keys, k.with(n).join("="))
		}
		for _, p := range s.Prefixes {
			keys = append(keys, k.with(p).join("^"))
		}
		return keys
	})
}

// Key returns the key of an id for ByReference. Equal types, tenancies and
// names have equal keys. An empty part of the tenancy is the default.
func Key(id *pb.ID) string {
	t := id.GetType()
	return keyOf(id).join(t.GetGroup() + "\x00" + t.GetGroupVersion() + "\x00" + t.GetKind())
}

func keysOf(ids []*pb.ID) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = Key(id)
	}
	return keys
}

// Indexes of every cache. They use memory only for resources that have an owner
// or bound references.
var (
	ownerIndex = &Index{Name: "owner", Keys: func(r *pb.Resource) []string {
		if r.GetOwner() == nil {
			return nil
		}
		return []string{Key(r.GetOwner()), r.GetOwner().GetUid()}
	}}
	boundIndex = &Index{Name: "bound references", Keys: func(r *pb.Resource) []string {
		if r.GetMetadata()[ReferencesKey] == "" {
			return nil
		}
		return keysOf(BoundReferences(r))
	}}
)

// key is an id without type and uid. It is comparable.
type key struct{ partition, namespace, name string }

func keyOf(id *pb.ID) key {
	k := key{id.GetTenancy().GetPartition(), id.GetTenancy().GetNamespace(), id.GetName()}
	if k.partition == "" {
		k.partition = resource.DefaultTenancy
	}
	if k.namespace == "" {
		k.namespace = resource.DefaultTenancy
	}
	return k
}

func (k key) with(name string) key { return key{k.partition, k.namespace, name} }

// join returns prefix and k as one string. No part of an id has a NUL.
func (k key) join(prefix string) string {
	return prefix + "\x00" + k.partition + "\x00" + k.namespace + "\x00" + k.name
}

func (k key) compare(o key) int {
	if c := strings.Compare(k.partition, o.partition); c != 0 {
		return c
	}
	if c := strings.Compare(k.namespace, o.namespace); c != 0 {
		return c
	}
	return strings.Compare(k.name, o.name)
}
