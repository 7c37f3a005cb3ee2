// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// isReplica says whether r is a copy of the primary's.
func isReplica(r *pb.Resource) bool { return r.GetPrimaryModifyIndex() != 0 }

// held says whether finalizers hold r back. Those of a copy are the primary's affair.
func held(r *pb.Resource) bool { return !isReplica(r) && len(resource.Finalizers(r)) > 0 }

// mark asks r, which finalizers hold, to go. Once is enough.
func (b *batch) mark(r *pb.Resource, at time.Time) {
	if _, marked := resource.Terminating(r); !marked {
		b.store(resource.MarkTerminating(r, at), r)
	}
}

// drop deletes r alone, and returns it as watches see it.
func (b *batch) drop(r *pb.Resource) *pb.Resource {
	b.db.remove(b.owner, r)
	b.bury(r.Id)
	return b.gone(r)
}

// delete removes r and what it owns, and what those own, as far as this batch may go; the rest is left to tombstones. It
// returns r as watches see it.
func (b *batch) delete(r *pb.Resource, at time.Time) *pb.Resource {
	last := b.drop(r)
	for owners := []*pb.ID{r.Id}; len(owners) > 0; owners = owners[1:] {
		for _, child := range b.toGo(owners[0].Uid, b.cascade+1) {
			if b.cascade == 0 {
				b.leave(owners[0])
				break
			}
			b.cascade--
			if held(child) {
				b.mark(child, at)
				continue
			}
			b.drop(child)
			owners = append(owners, child.Id)
		}
	}
	return last
}

// toGo returns what the resource with that uid owns and finalizers do not hold already, at most limit. Copies of the primary's
// go when the primary says so: there, something may hold them.
func (b *batch) toGo(uid string, limit int) []*pb.Resource {
	var all []*pb.Resource
	c := b.db.owned.from(endKey(uid))
	for w, ok := c.next(); ok && len(all) < limit; w, ok = c.next() {
		r := w.resource()
		if _, marked := resource.Terminating(r); !isReplica(r) && (!marked || !held(r)) {
			all = append(all, r)
		}
	}
	return all
}

// leave leaves a tombstone for a resource that was deleted.
func (b *batch) leave(id *pb.ID) {
	t, err := resource.NewTombstone(proto.CloneOf(id))
	if err != nil {
		panic(err) // an id cannot be encoded that was decoded
	}
	b.store(t, b.db.find(t.Id))
}
