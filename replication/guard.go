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

// Guard is b, of the same store, for those who write federated records here as a primary does: what Writable says is true when such a
// commit is applied, and not only when it is asked, however long it takes between. Else it fails, with resource.ErrFederated, and
// nothing was written. Without it, what has been acknowledged late would be unknown to the primary after this one.
func (p *PrimaryManager) Fenced(b resource.Backend) resource.Backend {
	return guard{Backend: b, primacy: p}
}

type guard struct {
	resource.Backend
	primacy *PrimaryManager
}

// Commit implements resource.Backend.
func (g guard) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if !g.primacy.writes(ops) {
		return g.Backend.Commit(ctx, ops...)
	}
	q := g.primacy.query()
	for {
		mark, _, err := g.List(ctx, resource.Eventual, q)
		if err != nil {
			return nil, err
		}
		if err := g.primacy.Writable(); err != nil {
			return nil, fmt.Errorf("%w: %w", resource.ErrFederated, err)
		}
		expect := resource.ExpectOp(q, mark)
		stored, err := g.Backend.Commit(ctx, append(ops[:len(ops):len(ops)], expect)...)
		switch {
		case err == nil:
			return stored[:len(ops)], nil
		case errors.Is(err, resource.ErrUnsupported): // a server of before there was an expectation: as then
			return g.Backend.Commit(ctx, ops...)
		case !errors.Is(err, resource.ErrConflict):
			return nil, err
		}
		now, _, lerr := g.List(ctx, resource.Strong, q)
		if lerr != nil || proto.Equal(expect, resource.ExpectOp(q, now)) { // it is not the mark that is another
			return nil, err
		}
	}
}

// writes says whether ops have federated records of this datacenter's own.
func (p *PrimaryManager) writes(ops []*pb.Op) bool {
	for _, op := range ops {
		var id *pb.ID
		switch o := op.GetOp().(type) {
		case *pb.Op_Put:
			if id = o.Put.GetResource().GetId(); o.Put.GetResource().GetPrimaryModifyIndex() != 0 {
				continue // the status of a copy
			}
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
