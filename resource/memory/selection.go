// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"iter"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// selection is a resource.Query converted to table keys.
type selection struct {
	typ     string      // typeKey of the type
	version string      // group version; empty: any
	tenancy *pb.Tenancy // partition and namespace, each of which may be a wildcard
	name    string      // empty: any
	prefix  string      // prefix of the name
	key     string      // longest common prefix of the selected keys
}

func newSelection(q resource.Query) (selection, error) {
	for _, part := range []string{q.Type.GetGroup(), q.Type.GetKind()} {
		if part == "" || strings.IndexByte(part, 0) >= 0 {
			return selection{}, fmt.Errorf("%w type %q: group and kind are required and must not contain NUL",
				resource.ErrInvalid, resource.TypeString(q.Type))
		}
	}
	if q.Name != "" && q.Prefix != "" {
		return selection{}, fmt.Errorf("%w query: it has both a name and a name prefix; remove one",
			resource.ErrInvalid)
	}
	s := selection{
		typ: typeKey(q.Type), version: q.Type.GetGroupVersion(), tenancy: resource.FillTenancy(q.Tenancy),
		name: q.Name, prefix: q.Prefix,
	}
	s.key = s.typ
	if s.tenancy.Partition != resource.Wildcard {
		s.key += endKey(s.tenancy.Partition)
		if s.tenancy.Namespace != resource.Wildcard {
			s.key += endKey(s.tenancy.Namespace) + endKey(q.Name) + q.Prefix
		}
	}
	return s, nil
}

// matches reports whether the selection includes the resource with that id. The
// resource must have the selection's group and kind.
func (s selection) matches(id *pb.ID) bool { return s.matchesVersion(id) && s.covers(id) }

func (s selection) matchesVersion(id *pb.ID) bool {
	return s.version == "" || s.version == id.GetType().GetGroupVersion()
}

// covers is equivalent to matches, but ignores the group version.
func (s selection) covers(id *pb.ID) bool {
	t := resource.FillTenancy(id.GetTenancy())
	return (s.tenancy.Partition == resource.Wildcard || s.tenancy.Partition == t.Partition) &&
		(s.tenancy.Namespace == resource.Wildcard || s.tenancy.Namespace == t.Namespace) &&
		(s.name == "" || s.name == id.GetName()) && strings.HasPrefix(id.GetName(), s.prefix)
}

// coversType reports whether covers accepts every resource of the type.
func (s selection) coversType() bool {
	return s.tenancy.Partition == resource.Wildcard && s.tenancy.Namespace == resource.Wildcard &&
		s.name == "" && s.prefix == ""
}

// covered returns the resources that covers accepts, ordered by tenancy and
// name.
func (s selection) covered(t *tables) iter.Seq[*pb.Resource] {
	return func(yield func(*pb.Resource) bool) {
		t.resources.Ascend(s.first(), func(r *pb.Resource) bool {
			return s.inRange(r.Id) && (!s.covers(r.Id) || yield(r))
		})
	}
}

// first returns a resource that sorts before all selected resources, and after
// all resources of lower types, tenancies and names.
func (s selection) first() *pb.Resource {
	const lowest = "\x00" // below every valid value; "" would mean the default tenancy
	group, kind, _ := strings.Cut(strings.TrimSuffix(s.typ, "\x00"), "\x00")
	t := &pb.Tenancy{Partition: lowest, Namespace: lowest}
	id := &pb.ID{Type: &pb.Type{Group: group, Kind: kind}, Tenancy: t}
	if s.tenancy.Partition == resource.Wildcard {
		return &pb.Resource{Id: id}
	}
	t.Partition = s.tenancy.Partition
	if s.tenancy.Namespace != resource.Wildcard {
		t.Namespace, id.Name = s.tenancy.Namespace, s.name+s.prefix
	}
	return &pb.Resource{Id: id}
}

// inRange reports whether the key of id begins with s.key. If it does not, and
// id sorts after first, then id sorts after all selected resources.
func (s selection) inRange(id *pb.ID) bool {
	if typeKey(id.Type) != s.typ {
		return false
	}
	if s.tenancy.Partition == resource.Wildcard {
		return true
	}
	t := resource.FillTenancy(id.Tenancy)
	if t.Partition != s.tenancy.Partition || s.tenancy.Namespace == resource.Wildcard {
		return t.Partition == s.tenancy.Partition
	}
	return t.Namespace == s.tenancy.Namespace && (s.name == "" || s.name == id.Name) &&
		strings.HasPrefix(id.Name, s.prefix)
}

// list returns the selected resources, ordered by tenancy and name, and the
// index of the query. If maxBytes is not 0 and the encoded resources have more
// bytes, list returns resource.ErrTooLarge.
func (s selection) list(t *tables, maxBytes int) ([]*pb.Resource, uint64, error) {
	var all []*pb.Resource
	index, size := s.leastIndex(t), 0
	for r := range s.covered(t) {
		index = max(index, r.ModifyIndex)
		if !s.matchesVersion(r.Id) {
			continue
		}
		if maxBytes > 0 {
			if size += proto.Size(r); size > maxBytes {
				return nil, 0, resource.TooLargeError(maxBytes)
			}
		}
		all = append(all, r)
	}
	return all, index, nil
}

// changed reports whether the index of the query is above after.
func (s selection) changed(t *tables, after uint64) bool {
	if s.leastIndex(t) > after {
		return true
	}
	for r := range s.covered(t) {
		if r.ModifyIndex > after {
			return true
		}
	}
	return false
}

// leastIndex returns a lower bound of the index of the query. For a query of a
// whole type, the bound is the index of the last write or deletion. For other
// queries, it is the index of the last stored deletion that the query covers,
// or the floor of the type if the floor is higher.
func (s selection) leastIndex(t *tables) uint64 {
	info := t.typeInfo(s.typ)
	if s.coversType() {
		return info.index
	}
	index := info.floor
	for d := range withPrefix(t.deletions, s.key) {
		if d.index > index && s.covers(d.id) {
			index = d.index
		}
	}
	return index
}
