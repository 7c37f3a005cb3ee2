// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"encoding/binary"

	"github.com/hashicorp/go-memdb"

	"github.com/wanfed/wanfed/api/pb"
)

// Of each deleted resource a grave remembers the index of the deletion, so that the index of a query for its name does not
// fall. Graves are part of the state: the same on all servers, and in snapshots.

// maxGraves is when the oldest graves are given up, and keptGraves how many stay then. What is given up is counted as a write
// to all of its type: that must be rare, since it wakes those who ask again for what did not change. Both are part of what a
// log means: they must not change.
const (
	maxGraves  = 8192
	keptGraves = 4096
)

type grave struct {
	id    *pb.ID
	index uint64 // of the deletion
}

// ageKey orders graves by age.
func ageKey(g *grave) string { return string(binary.BigEndian.AppendUint64(nil, g.index)) }

// bury remembers that the resource with that id was deleted.
func (b *batch) bury(id *pb.ID) {
	if must(b.txn.First(tableGrave, indexID, idKey(id))) == nil {
		b.graves++
	}
	mustDo(b.txn.Insert(tableGrave, &grave{id: id, index: b.index}))
}

// exhume forgets the grave of a name that is there again.
func (b *batch) exhume(id *pb.ID) {
	if b.graves == 0 {
		return
	}
	if row := must(b.txn.First(tableGrave, indexID, idKey(id))); row != nil {
		mustDo(b.txn.Delete(tableGrave, row))
		b.graves--
	}
}

// forget gives up the oldest graves if there are too many. The index of a type whose graves are given up becomes the least
// that each of its queries has.
func (b *batch) forget() {
	if b.graves <= maxGraves {
		return
	}
	var old []*grave
	it := must(b.txn.Get(tableGrave, indexAge+"_prefix", ""))
	for row := it.Next(); row != nil && b.graves-len(old) > keptGraves; row = it.Next() {
		old = append(old, row.(*grave))
	}
	for _, g := range old {
		mustDo(b.txn.Delete(tableGrave, g))
		row := *typeRow(b.txn, typeKey(g.id.GetType()))
		row.floor = max(row.floor, g.index)
		mustDo(b.txn.Insert(tableIndex, &row))
	}
	b.graves -= len(old)
}

func countGraves(txn *memdb.Txn) (n int) {
	for it := must(txn.Get(tableGrave, indexID)); it.Next() != nil; {
		n++
	}
	return n
}
