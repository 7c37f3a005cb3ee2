// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

// OpsVersion is the highest version of ops that this program supports. The
// program also supports all earlier versions. Version 1 has put, remove and
// replica. Version 2 adds expect and overwrite. A new kind of op, or a new
// field of an op, needs a new version: a state machine stops at an unsupported
// op.
const OpsVersion = 2

// RequiredOpsVersion returns the lowest OpsVersion that can apply ops.
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
// all servers support. The function supported returns the highest version that
// all servers support, and a node that supports no higher version.
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

// PutOp writes r if the stored resource has the version expect. If expect is
// empty, no resource may be stored under the name of r. AnyVersion allows any
// stored resource, or none.
func PutOp(r *pb.Resource, expect string) *pb.Op {
	return &pb.Op{Op: &pb.Op_Put{Put: &pb.Put{Resource: r, ExpectVersion: expect}}}
}

// RemoveOp deletes a resource if it has the version expect. A resource with
// finalizers gets a deletion timestamp instead. An empty expect and AnyVersion
// allow every version. If id has a uid, only the resource with that uid is
// deleted.
func RemoveOp(id *pb.ID, expect string) *pb.Op {
	return &pb.Op{Op: &pb.Op_Remove{Remove: &pb.Remove{Id: id, ExpectVersion: expect, At: timestamppb.New(time.Now())}}}
}

// RemoveReplicaOp deletes the replica of a resource that the primary has
// deleted, even if the replica has finalizers.
func RemoveReplicaOp(id *pb.ID) *pb.Op {
	op := RemoveOp(id, AnyVersion)
	op.GetRemove().Replica = true
	return op
}

// ReplicaOp stores r, which has a PrimaryModifyIndex, as a replica.
func ReplicaOp(r *pb.Resource) *pb.Op {
	return &pb.Op{Op: &pb.Op_Replica{Replica: &pb.Replica{Resource: r}}}
}

// ExpectOp writes nothing. It fails with ErrConflict unless q still selects the
// resources in listed, the result of an earlier List, in all group versions.
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

// OverwriteOp creates r, or replaces the data and the metadata of the resource
// that is stored under its name. With keepMetadata, the stored metadata stays.
// Concurrent writes do not make the op fail.
func OverwriteOp(r *pb.Resource, keepMetadata bool) *pb.Op {
	return &pb.Op{Op: &pb.Op_Overwrite{Overwrite: &pb.Overwrite{Resource: r, KeepMetadata: keepMetadata}}}
}

// CheckOps returns an ErrInvalid if an op has an unknown kind, or has no valid
// id or uid. CheckOps does not check the rules of registered types. A Backend
// calls CheckOps first in Commit.
func CheckOps(ops []*pb.Op) error {
	for i, op := range ops {
		if err := checkOp(op); err != nil {
			return fmt.Errorf("op %d of %d: %w", i+1, len(ops), err)
		}
	}
	return nil
}

// checkOp returns an ErrInvalid for an op that no Backend can apply.
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
		return fmt.Errorf("%w op: it is not a put, overwrite, remove, replica or expect; a newer version of wanfed "+
			"may have sent it",
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

// checkID checks the parts of an id, which are the key of a resource in a
// store: no part is empty or has a NUL, and only the name may be "*".
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
