// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
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

// Register adds the types of this package to a registry. Every peer may read
// tombstones. No peer may write them.
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
// depends only on the id. It is for Backends.
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

// Reap deletes the resources whose deleted owners have tombstones, until ctx
// ends. Only the leader may call it. It returns nil when ctx has ended, and the
// error of a Commit otherwise.
func Reap(ctx context.Context, b Backend, log *slog.Logger) error {
	for {
		err := reapWatched(ctx, b, log)
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, ErrWatchReset):
			return err
		}
	}
}

func reapWatched(ctx context.Context, b Backend, log *slog.Logger) error {
	w, err := b.Watch(Query{Type: TombstoneType})
	if err != nil {
		return fmt.Errorf("watch tombstones: %w", err)
	}
	defer w.Close()
	for {
		ev, err := w.Next(ctx)
		if err != nil {
			return err
		}
		t := ev.GetUpsert().GetResource()
		if t == nil {
			continue
		}
		n, err := reap(ctx, b, t)
		switch {
		case errors.Is(err, ErrInvalid): // the tombstone is damaged; the others are not
			log.Error("cannot delete owned resources", "tombstone", t.GetId().GetName(), "err", err)
		case err != nil:
			return err
		default:
			log.Debug("owned resources deleted", "owner", t.GetId().GetName(), "count", n)
		}
	}
}

// ReapAll deletes the resources of all tombstones, including the tombstones
// that it creates, and returns.
func ReapAll(ctx context.Context, b Backend) error {
	for {
		all, _, err := b.List(ctx, Eventual, Query{Type: TombstoneType})
		if err != nil || len(all) == 0 {
			return err
		}
		for _, t := range all {
			if _, err := reap(ctx, b, t); err != nil {
				return err
			}
		}
	}
}

// reap deletes the resources of a tombstone's owner in batches, and then the
// tombstone. It returns the number of deleted resources. A resource with
// finalizers gets a deletion timestamp; the removal of its last finalizer
// deletes it.
func reap(ctx context.Context, b Backend, tombstone *pb.Resource) (count int, err error) {
	t, err := Decode[*pb.Tombstone](tombstone)
	if err != nil {
		return 0, err
	}
	for {
		left, err := b.ListByOwner(ctx, t.GetOwner())
		if err != nil {
			return count, err
		}
		left = slices.DeleteFunc(left, func(r *pb.Resource) bool {
			_, terminating := Terminating(r)
			return terminating || r.GetPrimaryModifyIndex() != 0 // replication deletes replicas
		})
		if len(left) == 0 {
			_, err := b.Commit(ctx, RemoveOp(tombstone.GetId(), AnyVersion))
			return count, err
		}
		for batch := range slices.Chunk(left, ReapBatch) {
			ops := make([]*pb.Op, len(batch))
			for i, r := range batch {
				ops[i] = RemoveOp(r.GetId(), AnyVersion)
			}
			if _, err := b.Commit(ctx, ops...); err != nil {
				return count, err
			}
			count += len(batch)
		}
	}
}
