// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

// OpsVersion is the version of ops that this program understands, beside those before it. 1 has put, remove and replica, 2 expect
// and overwrite too. A new kind of op, or a new field in one, is a new version: the state machine of a program that does not
// understand an op in the log goes no further.
const OpsVersion = 2

// RequiredOpsVersion is the version of ops that a program must understand to apply some.
func RequiredOpsVersion(ops []*pb.Op) int {
	for _, op := range ops {
		switch op.GetOp().(type) {
		case *pb.Op_Expect, *pb.Op_Overwrite:
			return 2
		}
	}
	return 1
}

// CheckSupported returns an ErrUnsupported if ops need more than what understood says: the version of ops that all servers understand,
// and which one understands no more.
func CheckSupported(ops []*pb.Op, understood func() (version int, node string)) error {
	need := RequiredOpsVersion(ops)
	if need == 1 {
		return nil
	}
	if version, node := understood(); need > version {
		return fmt.Errorf("%w: %s; nothing was written: upgrade it, or write in a way that it knows", ErrUnsupported, node)
	}
	return nil
}

// PutOp writes r, if the stored resource has version expect: a version, "" for "there is none", or AnyVersion.
func PutOp(r *pb.Resource, expect string) *pb.Op {
	return &pb.Op{Op: &pb.Op_Put{Put: &pb.Put{Resource: r, ExpectVersion: expect}}}
}

// RemoveOp deletes what id names, or marks it if it has finalizers, if it has version expect: a version, or "" and AnyVersion
// for whatever is there. With a uid in id, only that resource.
func RemoveOp(id *pb.ID, expect string) *pb.Op {
	return &pb.Op{Op: &pb.Op_Remove{Remove: &pb.Remove{Id: id, ExpectVersion: expect, At: timestamppb.New(time.Now())}}}
}

// RemoveReplicaOp deletes a copy of what the primary has deleted, whatever its finalizers.
func RemoveReplicaOp(id *pb.ID) *pb.Op {
	op := RemoveOp(id, AnyVersion)
	op.GetRemove().Replica = true
	return op
}

// ReplicaOp stores a copy of r, which came from the primary and has PrimaryModifyIndex set.
func ReplicaOp(r *pb.Resource) *pb.Op {
	return &pb.Op{Op: &pb.Op_Replica{Replica: &pb.Replica{Resource: r}}}
}

// ExpectOp writes nothing, and fails a batch with ErrConflict unless what q selects, of all versions of its type, is what a List of q returned.
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

// OverwriteOp writes data and metadata of r, the latter only if there is none yet with keepMetadata, over whatever is stored under its
// name, or creates r. It never fails for what others write meanwhile.
func OverwriteOp(r *pb.Resource, keepMetadata bool) *pb.Op {
	return &pb.Op{Op: &pb.Op_Overwrite{Overwrite: &pb.Overwrite{Resource: r, KeepMetadata: keepMetadata}}}
}

// CheckOps returns an ErrInvalid for ops that no Backend can store: without an id, a uid, or a kind of op that is known.
// It knows nothing of registered types. Backends call it first.
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
		return fmt.Errorf("%w op: it is no put, overwrite, remove, replica or expect; a newer version of wanfed may have sent it", ErrInvalid)
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

// checkID checks what the keys of a store rely on: nothing empty, no NUL, and no wildcard but as a name, where it is none.
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
