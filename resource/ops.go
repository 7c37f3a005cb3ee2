// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

// OpsVersion is the version of ops that this program supports, besides all
// earlier versions. Version 1 has put, remove and replica. Version 2 adds expect
// and overwrite. A new kind of op, or a new field of one, needs a new version: a
// state machine stops at an op that it does not support.
const OpsVersion = 2

// RequiredOpsVersion returns the version that a program must support to apply
// ops.
func RequiredOpsVersion(ops []*pb.Op) int {
	for _, op := range ops {
		switch op.GetOp().(type) {
		case *pb.Op_Expect, *pb.Op_Overwrite:
			return 2
		}
	}
	return 1
}

// CheckSupported returns an ErrUnsupported if ops need a higher version than
// the one that supported returns. The function supported returns the version
// that all servers support, and a node that supports no higher version.
func CheckSupported(ops []*pb.Op, supported func() (version int, node string)) error {
	need := RequiredOpsVersion(ops)
	if need == 1 {
		return nil
	}
	if version, node := supported(); need > version {
		return fmt.Errorf("%w: %s; nothing was written: upgrade that server, or write in a way that it supports",
			ErrUnsupported, node)
	}
	return nil
}

// PutOp writes r if the stored resource has the version expect. An empty expect
// means that no resource is stored, and AnyVersion allows both.
func PutOp(r *pb.Resource, expect string) *pb.Op {
	return &pb.Op{Op: &pb.Op_Put{Put: &pb.Put{Resource: r, ExpectVersion: expect}}}
}

// RemoveOp deletes the resource with that id if it has the version expect. If it
// has finalizers, it gets a deletion timestamp instead. An empty expect and
// AnyVersion allow every version. If id has a uid, only that resource is
// deleted.
func RemoveOp(id *pb.ID, expect string) *pb.Op {
	return &pb.Op{Op: &pb.Op_Remove{Remove: &pb.Remove{Id: id, ExpectVersion: expect, At: timestamppb.New(time.Now())}}}
}

// RemoveReplicaOp deletes the replica of a resource that the primary has deleted,
// also if it has finalizers.
func RemoveReplicaOp(id *pb.ID) *pb.Op {
	op := RemoveOp(id, AnyVersion)
	op.GetRemove().Replica = true
	return op
}

// ReplicaOp stores r, a resource of the primary with PrimaryModifyIndex set, as a
// replica.
func ReplicaOp(r *pb.Resource) *pb.Op {
	return &pb.Op{Op: &pb.Op_Replica{Replica: &pb.Replica{Resource: r}}}
}

// ExpectOp writes nothing. It fails with ErrConflict unless q, in all group
// versions, still selects what a List of q has returned.
func ExpectOp(q Query, listed []*pb.Resource) *pb.Op {
	x := &pb.Expect{Id: &pb.ID{Type: q.Type, Tenancy: q.Tenancy, Name: q.Name}, Count: uint64(len(listed))}
	if q.Name == "" {
		x.Id.Name, x.Prefix = q.Prefix, true
	}
	for _, r := range listed {
		x.LatestIndex = max(x.LatestIndex, r.GetModifyIndex())
	}
	return &pb.Op{Op: &pb.Op_Expect{Expect: x}}
}

// OverwriteOp creates r, or replaces the data and the metadata of whatever is
// stored under its name. With keepMetadata it keeps stored metadata. Concurrent
// writes do not make it fail.
func OverwriteOp(r *pb.Resource, keepMetadata bool) *pb.Op {
	return &pb.Op{Op: &pb.Op_Overwrite{Overwrite: &pb.Overwrite{Resource: r, KeepMetadata: keepMetadata}}}
}

// CheckOps returns an ErrInvalid for ops that no Backend can store: of an unknown
// kind, or without an id or a uid. It does not check the rules of registered
// types. Backends call it first.
func CheckOps(ops []*pb.Op) error {
	for i, op := range ops {
		if err := checkOp(op); err != nil {
			return fmt.Errorf("op %d of %d: %w", i+1, len(ops), err)
		}
	}
	return nil
}

func checkOp(op *pb.Op) error {
	switch o := op.GetOp().(type) {
	case *pb.Op_Put:
		return CheckResource(o.Put.GetResource())
	case *pb.Op_Overwrite:
		return CheckResource(o.Overwrite.GetResource())
	case *pb.Op_Replica:
		return CheckResource(o.Replica.GetResource())
	case *pb.Op_Remove:
		return checkID(o.Remove.GetId())
	case *pb.Op_Expect:
		id := o.Expect.GetId()
		if o.Expect.GetPrefix() && id.GetName() == "" {
			id = &pb.ID{Type: id.GetType(), Tenancy: id.GetTenancy(), Name: "-"}
		}
		return checkID(id)
	default:
		return fmt.Errorf("%w op: it is not a put, overwrite, remove, replica or expect; a newer version of wanfed may have sent it",
			ErrInvalid)
	}
}

// CheckResource returns an ErrInvalid for a resource that no Backend can store.
func CheckResource(r *pb.Resource) error {
	id := r.GetId()
	if err := checkID(id); err != nil {
		return err
	}
	if id.GetUid() == "" {
		return fmt.Errorf("%w resource %s: it has no uid", ErrInvalid, IDString(id))
	}
	if r.Owner != nil {
		if err := checkID(r.Owner); err != nil {
			return fmt.Errorf("owner of %s: %w", IDString(id), err)
		}
		if r.Owner.GetUid() == "" {
			return fmt.Errorf("%w owner of %s: it has no uid", ErrInvalid, IDString(id))
		}
	}
	return nil
}

// checkID checks the rules that the keys of a store need: no part is empty or
// has a NUL, and only the name may be "*", which is not a wildcard there.
func checkID(id *pb.ID) error {
	t := FillTenancy(id.GetTenancy())
	for _, f := range []struct{ field, value string }{
		{"id.type.group", id.GetType().GetGroup()},
		{"id.type.group_version", id.GetType().GetGroupVersion()},
		{"id.type.kind", id.GetType().GetKind()},
		{"id.tenancy.partition", t.Partition},
		{"id.tenancy.namespace", t.Namespace},
		{"id.name", id.GetName()},
	} {
		if f.value == "" || f.value == Wildcard && f.field != "id.name" || strings.IndexByte(f.value, 0) >= 0 {
			return invalidField(f.field, f.value, `must not be empty, "*" or hold a NUL`)
		}
	}
	return nil
}
