// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// ops returns what a batch asks the store for, in order. What is not for a follower to store is left out, and counted: the
// primary may write what is federated here, and nothing else.
func (f *Follower) ops(ms []*pb.FollowResponse) []*pb.Op {
	var ops []*pb.Op
	for _, m := range ms {
		for _, id := range m.GetDeletes() {
			if k := kindOf(id.GetType()); f.types[k] == nil || id.GetUid() == "" {
				f.refuse(id, fmt.Errorf("%s is not federated here, or the record has no uid", resource.TypeString(id.GetType())))
			} else {
				f.count(k, 0, proto.Size(id))
				ops = f.accept(ops, id, resource.RemoveReplicaOp(id))
			}
		}
		for _, r := range m.GetUpserts() {
			if k := kindOf(r.GetId().GetType()); !f.known[resource.TypeString(r.GetId().GetType())] || r.GetPrimaryModifyIndex() == 0 {
				f.refuse(r.GetId(), fmt.Errorf("%s is not federated here, or the record has no index", resource.TypeString(r.GetId().GetType())))
			} else {
				f.count(k, r.GetPrimaryModifyIndex(), proto.Size(r))
				ops = f.accept(ops, r.GetId(), resource.ReplicaOp(r))
			}
		}
	}
	return ops
}

// accept appends an op that a store can do. One that it cannot would fail all that come with it, for ever.
func (f *Follower) accept(ops []*pb.Op, id *pb.ID, op *pb.Op) []*pb.Op {
	if err := resource.CheckOps([]*pb.Op{op}); err != nil {
		f.refuse(id, err)
		return ops
	}
	return append(ops, op)
}

func (f *Follower) refuse(id *pb.ID, err error) {
	f.mu.Lock()
	f.status.Refused++
	n := f.status.Refused
	f.mu.Unlock()
	if n == 1 {
		f.cfg.Logger.Error("refused what the primary sent; see wanfed_replication_refused_total", "record", resource.IDString(id), "err", err)
	}
}

// count notes what came of a kind; index 0 is of a deletion.
func (f *Follower) count(k kind, index uint64, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.kinds[k]
	st.changes++
	st.bytes += uint64(bytes)
	st.index = max(st.index, index)
	st.changed = time.Now()
}

// met notes what the primary federates, and says once what is not known on one of the sides.
func (f *Follower) met(all []*pb.FollowKind) {
	there := map[kind]bool{}
	for _, a := range all {
		k := kindOf(a.GetType())
		there[k] = true
		f.mu.Lock()
		st := f.kinds[k]
		if st == nil && len(f.kinds) < maxKinds {
			st = &kindStatus{}
			f.kinds[k] = st
		}
		said := true
		if st != nil {
			said, st.said = st.said, st.said || a.GetUnknown() > 0 || f.types[k] == nil
			st.primary, st.unknown = a.GetRecords(), a.GetUnknown()
		}
		f.mu.Unlock()
		if !said && (a.GetUnknown() > 0 || f.types[k] == nil) {
			f.cfg.Logger.Warn("records of a type that this version of wanfed does not know are not copied from the primary",
				"type", k.String(), "records", a.GetUnknown())
		}
	}
	for k := range f.types {
		f.mu.Lock()
		st := f.kinds[k]
		said := st.said
		st.said = st.said || !there[k]
		f.mu.Unlock()
		if !there[k] && !said {
			f.cfg.Logger.Warn("the primary does not know a federated type; the copies here stay as they are", "type", k.String())
		}
	}
}

// maxKinds bounds what a primary can make a follower remember.
const maxKinds = 256
