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

// TombstoneType is the type of tombstones: each remembers a deleted resource of which not everything that it owned is deleted
// yet. They are stored like every resource, and so outlive restarts, restores and changes of leader.
var TombstoneType = &pb.Type{Group: "internal", GroupVersion: "v1", Kind: "Tombstone"}

// Register adds the types of this package to a registry: tombstones, which everybody who may read may see, and nobody write.
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

// NewTombstone returns the tombstone of a deleted resource. It depends on the id alone. It is for Backends.
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

// Reap deletes what deleted resources have left of their property, as long as ctx lasts; it blocks. Who leads calls it, and
// nobody else. It returns nil when ctx has ended, and else what a Commit failed with.
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
		if t := ev.GetUpsert().GetResource(); t != nil {
			n, err := reap(ctx, b, t)
			if errors.Is(err, ErrInvalid) { // a tombstone that nobody can read: the others can go on
				log.Error("deleting what a resource had owned", "tombstone", t.GetId().GetName(), "err", err)
				continue
			}
			if err != nil {
				return err
			}
			log.Debug("deleted what a resource had owned", "owner", t.GetId().GetName(), "count", n)
		}
	}
}

// ReapAll works off the tombstones that there are, and those that this leaves, and returns.
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

// reap deletes what the tombstone's resource has left, in batches, and then the tombstone. What finalizers hold is marked and
// stays; it deletes itself with its last one. It returns how many it took.
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
			_, marked := Terminating(r)
			return marked || r.GetPrimaryModifyIndex() != 0 // a copy goes when the primary's does
		})
		if len(left) == 0 {
			_, err := b.Commit(ctx, RemoveOp(tombstone.GetId(), AnyVersion))
			return count, err
		}
		for batch := range slices.Chunk(left, ReapBatch) {
			if _, err := b.Commit(ctx, reapOps(batch)...); err != nil {
				return count, err
			}
			count += len(batch)
		}
	}
}

func reapOps(batch []*pb.Resource) []*pb.Op {
	ops := make([]*pb.Op, len(batch))
	for i, r := range batch {
		ops[i] = RemoveOp(r.GetId(), AnyVersion)
	}
	return ops
}
