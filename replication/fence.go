// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Fenced returns a Backend for writers of federated resources, on top of b, a
// Backend of the same store. Its commits assert, in the same Raft entry, that
// the record of the primary is the one that Writable has checked. A commit that
// is applied after a demotion therefore writes nothing and fails with
// resource.ErrFederated. Otherwise the next primary would miss an acknowledged
// write.
func (p *PrimaryManager) Fenced(b resource.Backend) resource.Backend {
	return fencedBackend{Backend: b, primary: p}
}

type fencedBackend struct {
	resource.Backend
	primary *PrimaryManager
}

// Commit implements resource.Backend.
func (b fencedBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if !b.primary.writesFederated(ops) {
		return b.Backend.Commit(ctx, ops...)
	}
	for {
		rec, _, err := b.List(ctx, resource.Eventual, primaryQuery)
		if err != nil {
			return nil, err
		}
		if err := b.primary.Writable(); err != nil {
			return nil, fmt.Errorf("%w: %w", resource.ErrFederated, err)
		}
		expect := resource.ExpectOp(primaryQuery, rec)
		stored, err := b.Backend.Commit(ctx, append(ops[:len(ops):len(ops)], expect)...)
		switch {
		case err == nil:
			return stored[:len(ops)], nil
		case errors.Is(err, resource.ErrUnsupported): // a server of an older version cannot check
			return b.Backend.Commit(ctx, ops...)
		case !errors.Is(err, resource.ErrConflict):
			return nil, err
		}
		current, _, listErr := b.List(ctx, resource.Strong, primaryQuery)
		if listErr != nil || proto.Equal(expect, resource.ExpectOp(primaryQuery, current)) {
			return nil, err // the conflict is not about the record
		}
	}
}

// writesFederated reports whether ops write federated resources other than the
// status of replicas.
func (p *PrimaryManager) writesFederated(ops []*pb.Op) bool {
	for _, op := range ops {
		var id *pb.ID
		switch o := op.GetOp().(type) {
		case *pb.Op_Put:
			if o.Put.GetResource().GetPrimaryModifyIndex() != 0 {
				continue // the status of a replica
			}
			id = o.Put.GetResource().GetId()
		case *pb.Op_Overwrite:
			id = o.Overwrite.GetResource().GetId()
		case *pb.Op_Remove:
			id = o.Remove.GetId()
		}
		if _, federated := p.follower.types[kindOf(id.GetType())]; federated {
			return true
		}
	}
	return false
}
