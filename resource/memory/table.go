// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"strings"

	"github.com/hashicorp/go-memdb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Tables and indexes.
const (
	tableResource = "resource" // *pb.Resource
	tableIndex    = "index"    // *typeIndex
	tableGrave    = "grave"    // *grave

	indexID    = "id"
	indexUID   = "uid"
	indexOwner = "owner"
	indexAge   = "age"
)

// typeIndex is the store index of the last write to a type, in any group version, deletions included. A row is immutable.
type typeIndex struct {
	typ   *pb.Type
	index uint64
	floor uint64 // the least index that a query of the type has
}

func newDB() *memdb.MemDB {
	db, err := memdb.NewMemDB(&memdb.DBSchema{Tables: map[string]*memdb.TableSchema{
		tableResource: {Name: tableResource, Indexes: map[string]*memdb.IndexSchema{
			indexID:    {Name: indexID, Unique: true, Indexer: indexer[*pb.Resource](func(r *pb.Resource) string { return idKey(r.GetId()) })},
			indexUID:   {Name: indexUID, Indexer: indexer[*pb.Resource](func(r *pb.Resource) string { return endKey(r.GetId().GetUid()) })},
			indexOwner: {Name: indexOwner, AllowMissing: true, Indexer: indexer[*pb.Resource](func(r *pb.Resource) string { return endKey(r.GetOwner().GetUid()) })},
		}},
		tableIndex: {Name: tableIndex, Indexes: map[string]*memdb.IndexSchema{
			indexID: {Name: indexID, Unique: true, Indexer: indexer[*typeIndex](func(x *typeIndex) string { return typeKey(x.typ) })},
		}},
		tableGrave: {Name: tableGrave, Indexes: map[string]*memdb.IndexSchema{
			indexID:  {Name: indexID, Unique: true, Indexer: indexer[*grave](func(g *grave) string { return idKey(g.id) })},
			indexAge: {Name: indexAge, Indexer: indexer[*grave](ageKey)},
		}},
	}})
	if err != nil {
		panic(err) // the schema above is wrong
	}
	return db
}

// indexer makes a function from a row to its key an index. Arguments of lookups are ready keys. An empty key is no key.
type indexer[T any] func(row T) string

func (f indexer[T]) FromObject(row any) (bool, []byte, error) {
	t, ok := row.(T)
	if !ok {
		return false, nil, fmt.Errorf("row is a %T", row)
	}
	k := f(t)
	return k != "", []byte(k), nil
}

func (f indexer[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) == 1 {
		if k, ok := args[0].(string); ok {
			return []byte(k), nil
		}
	}
	return nil, fmt.Errorf("lookup with %v, not one key", args)
}

func (f indexer[T]) PrefixFromArgs(args ...any) ([]byte, error) { return f.FromArgs(args...) }

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
	return (s.version == "" || s.version == id.GetType().GetGroupVersion()) && s.covers(id)
}

// covers is matches for whatever group version.
func (s selection) covers(id *pb.ID) bool {
	t := resource.FillTenancy(id.GetTenancy())
	return (s.tenancy.Partition == resource.Wildcard || s.tenancy.Partition == t.Partition) &&
		(s.tenancy.Namespace == resource.Wildcard || s.tenancy.Namespace == t.Namespace) &&
		(s.name == "" || s.name == id.GetName()) && strings.HasPrefix(id.GetName(), s.prefix)
}

// all says whether every resource of the type is selected, but perhaps for the version.
func (s selection) all() bool { return s.reads == s.typ && s.covers(&pb.ID{Tenancy: everywhere}) }

var everywhere = &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}

// rows returns all resources among which are those selected, in order of tenancy and name.
func (s selection) rows(txn *memdb.Txn) memdb.ResultIterator {
	return must(txn.Get(tableResource, indexID+"_prefix", s.reads))
}

// list returns what is selected, in order of tenancy and name, and the index of the query.
func (s selection) list(txn *memdb.Txn) ([]*pb.Resource, uint64) {
	var all []*pb.Resource
	index := s.leastIndex(txn)
	it := s.rows(txn)
	for row := it.Next(); row != nil; row = it.Next() {
		r := row.(*pb.Resource)
		if !s.covers(r.GetId()) {
			continue
		}
		index = max(index, r.GetModifyIndex())
		if s.matches(r.GetId()) {
			all = append(all, r)
		}
	}
	return all, index
}

// above says whether the index of the query is above an index.
func (s selection) above(txn *memdb.Txn, after uint64) bool {
	if s.leastIndex(txn) > after {
		return true
	}
	it := s.rows(txn)
	for row := it.Next(); row != nil; row = it.Next() {
		if r := row.(*pb.Resource); r.GetModifyIndex() > after && s.covers(r.GetId()) {
			return true
		}
	}
	return false
}

// leastIndex is what the index of the query would be if nothing were there that is selected: that of the last deletion.
func (s selection) leastIndex(txn *memdb.Txn) uint64 {
	row := typeRow(txn, s.typ)
	if s.all() {
		return row.index
	}
	index := row.floor
	it := must(txn.Get(tableGrave, indexID+"_prefix", s.reads))
	for row := it.Next(); row != nil; row = it.Next() {
		if g := row.(*grave); g.index > index && s.covers(g.id) {
			index = g.index
		}
	}
	return index
}

// typeRow returns what is known of the type with that key: at least that both indexes are 1.
func typeRow(txn *memdb.Txn, typ string) *typeIndex {
	if row := must(txn.First(tableIndex, indexID, typ)); row != nil {
		return row.(*typeIndex)
	}
	return &typeIndex{index: 1, floor: 1}
}

// must unwraps what go-memdb answers: its errors are all misuse of the schema.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
