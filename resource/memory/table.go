// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// db is everything that is stored, by key. A db that is not a batch's own is immutable, and a copy costs nothing.
type db struct {
	resources tree[row]        // by idKey
	owned     tree[row]        // by the owner's uid and idKey
	types     tree[*typeIndex] // by typeKey
	graves    tree[*grave]     // by idKey
	ages      tree[*grave]     // the same by ageKey
}

// typeIndex is the store index of the last write to a type, in any group version, deletions included. It is immutable.
type typeIndex struct {
	typ   *pb.Type
	index uint64
	floor uint64 // the least index that a query of the type has
}

// put stores w, which is r, in place of old, which has the same key or is nil.
func (d *db) put(o *owner, w row, r, old *pb.Resource) {
	key := w.key()
	d.resources.set(o, key, w)
	if was := old.GetOwner().GetUid(); was != "" && was != r.GetOwner().GetUid() {
		d.owned.delete(o, endKey(was)+key)
	}
	if uid := r.GetOwner().GetUid(); uid != "" {
		d.owned.set(o, endKey(uid)+key, w)
	}
}

// load stores w, of a snapshot.
func (d *db) load(o *owner, w row) {
	var old *pb.Resource
	if key := w.key(); !d.resources.add(o, key, w) {
		if was, ok := d.resources.get(key); ok {
			old = was.resource()
		}
	} else if !w.owned() {
		return
	}
	d.put(o, w, w.resource(), old)
}

// remove deletes r, which is stored.
func (d *db) remove(o *owner, r *pb.Resource) {
	key := idKey(r.Id)
	d.resources.delete(o, key)
	if uid := r.GetOwner().GetUid(); uid != "" {
		d.owned.delete(o, endKey(uid)+key)
	}
}

func (d *db) putType(o *owner, x *typeIndex) { d.types.set(o, typeKey(x.typ), x) }

// typeRow returns what is known of the type with that key: at least that both indexes are 1.
func (d *db) typeRow(key string) *typeIndex {
	if x, ok := d.types.get(key); ok {
		return x
	}
	return &typeIndex{index: 1, floor: 1}
}

func (d *db) putGrave(o *owner, g *grave) {
	key := idKey(g.id)
	d.removeGrave(o, key)
	d.graves.set(o, key, g)
	d.ages.set(o, ageKey(g, key), g)
}

func (d *db) removeGrave(o *owner, key string) {
	if g, ok := d.graves.get(key); ok {
		d.graves.delete(o, key)
		d.ages.delete(o, ageKey(g, key))
	}
}

// find returns the stored resource with the id's group, kind, tenancy and name, or nil.
func (d *db) find(id *pb.ID) *pb.Resource {
	if w, ok := d.resources.get(idKey(id)); ok {
		return w.resource()
	}
	return nil
}

// ownedBy returns what the resource with that uid owns, in order of type, tenancy and name.
func (d *db) ownedBy(uid string) []*pb.Resource {
	var all []*pb.Resource
	c := d.owned.from(endKey(uid))
	for w, ok := c.next(); ok; w, ok = c.next() {
		all = append(all, w.resource())
	}
	return all
}

// endKey ends each part of a key with a NUL, which no part holds: order of keys is order of parts, and no key is the prefix
// of another.
func endKey(part string) string {
	if part == "" {
		return ""
	}
	return part + "\x00"
}

// typeKey is the same for all versions of a group.
func typeKey(t *pb.Type) string {
	return endKey(t.GetGroup()) + endKey(t.GetKind())
}

func idKey(id *pb.ID) string {
	t := resource.FillTenancy(id.GetTenancy())
	return typeKey(id.GetType()) + endKey(t.Partition) + endKey(t.Namespace) + endKey(id.GetName())
}

// spaceKey is how the keys of all resources with the id's group, kind and tenancy begin.
func spaceKey(id *pb.ID) string {
	t := resource.FillTenancy(id.GetTenancy())
	return typeKey(id.GetType()) + endKey(t.Partition) + endKey(t.Namespace)
}

// selection is a query in the form of keys.
type selection struct {
	typ     string      // typeKey
	version string      // of the group; "" is any
	tenancy *pb.Tenancy // filled in; may have wildcards
	name    string      // if one alone is selected
	prefix  string      // of the name
	reads   string      // every key that matches begins with it
}

func newSelection(q resource.Query) (selection, error) {
	for _, part := range []string{q.Type.GetGroup(), q.Type.GetKind()} {
		if part == "" || strings.IndexByte(part, 0) >= 0 {
			return selection{}, fmt.Errorf("%w type %q: group and kind are required, without NUL", resource.ErrInvalid, resource.TypeString(q.Type))
		}
	}
	if q.Name != "" && q.Prefix != "" {
		return selection{}, fmt.Errorf("%w query: it has a name and a prefix of names; leave one out", resource.ErrInvalid)
	}
	s := selection{
		typ: typeKey(q.Type), version: q.Type.GetGroupVersion(), tenancy: resource.FillTenancy(q.Tenancy),
		name: q.Name, prefix: q.Prefix,
	}
	s.reads = s.typ
	if s.tenancy.Partition != resource.Wildcard {
		s.reads += endKey(s.tenancy.Partition)
		if s.tenancy.Namespace != resource.Wildcard {
			s.reads += endKey(s.tenancy.Namespace) + endKey(q.Name) + q.Prefix
		}
	}
	return s, nil
}

// matches says whether a resource of the right group and kind is selected.
func (s selection) matches(id *pb.ID) bool {
	return s.ofVersion(id.GetType()) && s.covers(id)
}

func (s selection) ofVersion(t *pb.Type) bool {
	return s.version == "" || s.version == t.GetGroupVersion()
}

// covers is matches for whatever group version.
func (s selection) covers(id *pb.ID) bool { return s.coversName(id.GetTenancy(), id.GetName()) }

func (s selection) coversRow(w row) bool { return s.coversName(w.c.tenancy, w.name()) }

func (s selection) coversName(t *pb.Tenancy, name string) bool {
	t = resource.FillTenancy(t)
	return (s.tenancy.Partition == resource.Wildcard || s.tenancy.Partition == t.Partition) &&
		(s.tenancy.Namespace == resource.Wildcard || s.tenancy.Namespace == t.Namespace) &&
		(s.name == "" || s.name == name) && strings.HasPrefix(name, s.prefix)
}

// all says whether every resource of the type is selected, but perhaps for the version.
func (s selection) all() bool { return s.reads == s.typ && s.covers(&pb.ID{Tenancy: everywhere}) }

var everywhere = &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}

// rows returns all resources among which are those selected, in order of tenancy and name.
func (s selection) rows(d *db) *cursor[row] { return d.resources.from(s.reads) }

// list returns what is selected, in order of tenancy and name, and the index of the query.
func (s selection) list(d *db) ([]*pb.Resource, uint64) {
	var all []*pb.Resource
	index := s.leastIndex(d)
	var shared sharing
	defer shared.flush()
	c := s.rows(d)
	for w, ok := c.next(); ok; w, ok = c.next() {
		if !s.coversRow(w) {
			continue
		}
		index = max(index, w.modifyIndex())
		if s.ofVersion(w.c.typ) {
			all = append(all, shared.resource(c.last()))
		}
	}
	return all, index
}

// exceeds says whether what is selected, encoded, is surely more than so many bytes: a row is less than its message.
func (s selection) exceeds(d *db, bytes int) bool {
	c := s.rows(d)
	for w, ok := c.next(); ok; w, ok = c.next() {
		if !s.coversRow(w) || !s.ofVersion(w.c.typ) {
			continue
		}
		if bytes -= len(w.b) - len(w.c.prefix); bytes < 0 {
			return true
		}
	}
	return false
}

// above says whether the index of the query is above an index.
func (s selection) above(d *db, after uint64) bool {
	if s.leastIndex(d) > after {
		return true
	}
	c := s.rows(d)
	for w, ok := c.next(); ok; w, ok = c.next() {
		if w.modifyIndex() > after && s.coversRow(w) {
			return true
		}
	}
	return false
}

// leastIndex is what the index of the query would be if nothing were there that is selected: that of the last deletion.
func (s selection) leastIndex(d *db) uint64 {
	x := d.typeRow(s.typ)
	if s.all() {
		return x.index
	}
	index := x.floor
	c := d.graves.from(s.reads)
	for g, ok := c.next(); ok; g, ok = c.next() {
		if g.index > index && s.covers(g.id) {
			index = g.index
		}
	}
	return index
}
