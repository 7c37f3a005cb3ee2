// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// TombstoneType is the type of tombstones. A tombstone represents a deleted
// resource that still owns resources. Tombstones are stored like other
// resources, so they survive restarts, restores and changes of the leader.
var TombstoneType = &pb.Type{Group: "internal", GroupVersion: "v1", Kind: "Tombstone"}

// Register adds TombstoneType to g. Peers may read tombstones, but not write.
func Register(g *Registry) error {
	return g.Register(Registration{
		Type: TombstoneType, Message: &pb.Tombstone{}, Scope: ScopeCluster,
		Authorize: func(_ tlsutil.Peer, verb Verb, _ *pb.Resource) error {
			if verb == VerbRead || verb == VerbList {
				return nil
			}
			return errors.New("only the store writes tombstones")
		},
	})
}

// NewTombstone returns the tombstone of a deleted resource. The tombstone
// depends only on the id. Only Backends call NewTombstone.
func NewTombstone(owner *pb.ID) (*pb.Resource, error) {
	data := new(anypb.Any)
	err := anypb.MarshalFrom(data, &pb.Tombstone{Owner: owner}, proto.MarshalOptions{Deterministic: true})
	return &pb.Resource{
		Id: &pb.ID{
			Uid: "tombstone-" + owner.GetUid(), Name: strings.ToLower(owner.GetUid()),
			Type: proto.CloneOf(TombstoneType), Tenancy: &pb.Tenancy{},
		},
		Generation: owner.GetUid(), Data: data,
	}, err
}

// ReapOnce deletes the resources of the tombstones that are stored now. The
// deletions may create new tombstones. ReapOnce returns the index at which it
// listed the tombstones, so the caller can wait for new tombstones. Only the
// leader may call ReapOnce.
func ReapOnce(ctx context.Context, b Backend, log *slog.Logger) (index uint64, err error) {
	tombstones, index, err := b.List(ctx, Eventual, Query{Type: TombstoneType})
	if err != nil {
		return 0, err
	}
	for _, r := range tombstones {
		name := r.GetId().GetName()
		t, err := Decode[*pb.Tombstone](r)
		if err != nil { // the other tombstones are valid
			log.Error("cannot delete owned resources", "tombstone", name, "err", err)
			continue
		}
		n, err := reapOwned(ctx, b, t.GetOwner())
		if err == nil {
			_, err = b.Commit(ctx, RemoveOp(r.GetId(), AnyVersion))
		}
		if err != nil {
			return 0, err
		}
		log.Debug("owned resources deleted", "owner", name, "count", n)
	}
	return index, nil
}

// reapOwned deletes the resources of an owner in batches, and returns their
// number. A resource with finalizers gets a deletion timestamp instead.
// Replicas are left to replication.
func reapOwned(ctx context.Context, b Backend, owner *pb.ID) (count int, err error) {
	for {
		owned, err := b.ListByOwner(ctx, owner)
		if err != nil {
			return count, err
		}
		var ops []*pb.Op
		for _, r := range owned {
			if _, terminating := Terminating(r); !terminating && r.GetPrimaryModifyIndex() == 0 {
				ops = append(ops, RemoveOp(r.GetId(), AnyVersion))
			}
		}
		if len(ops) == 0 {
			return count, nil
		}
		for batch := range slices.Chunk(ops, ReapBatch) {
			if _, err := b.Commit(ctx, batch...); err != nil {
				return count, err
			}
			count += len(batch)
		}
	}
}
