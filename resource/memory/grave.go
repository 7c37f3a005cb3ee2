// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"encoding/binary"

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
func ageKey(g *grave, key string) string {
	return string(binary.BigEndian.AppendUint64(nil, g.index)) + key
}

// bury remembers that the resource with that id was deleted. It keeps the id, which keeps nothing else.
func (b *batch) bury(id *pb.ID) { b.db.putGrave(b.owner, &grave{id: id, index: b.index}) }

// exhume forgets the grave of a name that is there again.
func (b *batch) exhume(id *pb.ID) {
	if b.db.graves.size > 0 {
		b.db.removeGrave(b.owner, idKey(id))
	}
}

// forget gives up the oldest graves if there are too many. The index of a type whose graves are given up becomes the least
// that each of its queries has.
func (b *batch) forget() {
	if b.db.graves.size <= maxGraves {
		return
	}
	c := b.db.ages.from("")
	var old []*grave
	for len(old) < b.db.graves.size-keptGraves {
		g, _ := c.next()
		old = append(old, g)
	}
	for _, g := range old {
		b.db.removeGrave(b.owner, idKey(g.id))
		x := *b.db.typeRow(typeKey(g.id.GetType()))
		x.floor = max(x.floor, g.index)
		b.db.putType(b.owner, &x)
	}
}
