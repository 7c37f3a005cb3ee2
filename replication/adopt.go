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

// adopt makes copies this datacenter's own records: with the same uid, generation and data, a new version, and finalizers and owners
// that count. It returns how many there were. What a deleted owner had left when the former primary was lost is deleted. Nobody else
// writes federated records meanwhile; done twice, or in parts, it is the same.
func (p *PrimaryManager) adopt(ctx context.Context) (n int, err error) {
	order, _ := kindsOf(p.cfg.Registry)
	federated := map[kind]bool{}
	for _, k := range order {
		federated[k] = true
	}
	var owned []*pb.Resource
	for _, k := range order {
		all, _, err := p.cfg.Backend.List(ctx, resource.Eventual, k.everywhere())
		if err != nil {
			return n, err
		}
		batch := ops{commit: p.cfg.Backend.Commit}
		for _, r := range all {
			if r.GetPrimaryModifyIndex() == 0 {
				continue
			}
			n++
			own := &pb.Resource{Id: r.Id, Owner: r.Owner, Generation: r.Generation, Metadata: r.Metadata, Status: r.Status, Data: r.Data}
			if err := batch.add(ctx, resource.PutOp(own, r.GetVersion()), proto.Size(r)); err != nil {
				return n, fmt.Errorf("make copies of %v this datacenter's own: %w", k, err)
			}
			if o := r.GetOwner(); o != nil && federated[kindOf(o.GetType())] {
				owned = append(owned, r)
			}
		}
		if err := batch.flush(ctx); err != nil {
			return n, fmt.Errorf("make copies of %v this datacenter's own: %w", k, err)
		}
	}
	return n, p.dropOrphans(ctx, owned)
}

// dropOrphans deletes those whose owner is not there. An owner of a type that is not federated was never here, and lives.
func (p *PrimaryManager) dropOrphans(ctx context.Context, owned []*pb.Resource) error {
	batch := ops{commit: p.cfg.Backend.Commit}
	for _, r := range owned {
		o := r.GetOwner()
		got, err := p.cfg.Backend.Read(ctx, resource.Eventual, &pb.ID{Type: o.GetType(), Tenancy: o.GetTenancy(), Name: o.GetName()})
		if mismatch, ok := errors.AsType[*resource.GroupVersionError](err); ok {
			got, err = mismatch.Stored, nil
		}
		switch {
		case err == nil && got.GetId().GetUid() == o.GetUid():
			continue
		case err != nil && !errors.Is(err, resource.ErrNotFound):
			return err
		}
		p.cfg.Logger.Warn("a record whose owner the former primary had deleted goes with it", "record", resource.IDString(r.GetId()), "owner", resource.IDString(o))
		if err := batch.add(ctx, resource.RemoveOp(r.GetId(), resource.AnyVersion), proto.Size(r.GetId())); err != nil {
			return err
		}
	}
	return batch.flush(ctx)
}

// ops commits in entries of the size of a batch.
type ops struct {
	commit func(context.Context, ...*pb.Op) ([]*pb.Resource, error)
	all    []*pb.Op
	bytes  int
}

func (o *ops) add(ctx context.Context, op *pb.Op, bytes int) error {
	if len(o.all) > 0 && (len(o.all) >= batchRecords || o.bytes+bytes > batchBytes) {
		if err := o.flush(ctx); err != nil {
			return err
		}
	}
	o.all, o.bytes = append(o.all, op), o.bytes+bytes
	return nil
}

func (o *ops) flush(ctx context.Context) error {
	if len(o.all) == 0 {
		return nil
	}
	_, err := o.commit(ctx, o.all...)
	o.all, o.bytes = nil, 0
	return err
}
