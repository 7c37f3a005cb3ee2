// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// GroupType is the type of the resource that contains the group id: a random id
// of the datacenter's Raft group. Each store contains one resource of this
// type. The type is not federated. A datacenter that is restored from a
// snapshot keeps its group id, because the resource is part of the snapshot.
var GroupType = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "Group"}

const groupName = "local"

func authorizeGroup(_ tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	if verb == resource.VerbRead || verb == resource.VerbList {
		return nil
	}
	return errors.New("the id of a Raft group does not change: no peer may write it")
}

// GroupID returns the group id of this datacenter, or "" if the first leader
// has not created it yet.
func GroupID(ctx context.Context, b resource.Backend) (string, error) {
	r, err := b.Read(ctx, resource.Eventual, resource.ID(GroupType, groupName))
	if errors.Is(err, resource.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the group id: %w", err)
	}
	g, err := resource.Decode[*pb.Group](r)
	return g.GetId(), err
}

// newGroupID returns 16 random hexadecimal digits. The id is short, because the
// tags of each WAN member contain it.
func newGroupID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// KeepGroupID creates the group id whenever the store has none, until ctx ends.
// Only the leader may run it.
func KeepGroupID(ctx context.Context, b resource.Backend, logger *slog.Logger) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { resource.Notify(ctx, b, resource.Query{Type: GroupType}, wake) })
	retry := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for ctx.Err() == nil {
		pause := time.Hour
		if err := createGroupID(ctx, b); err != nil && ctx.Err() == nil {
			logger.Warn("cannot write the group id", "err", err)
			pause = retry.Next()
		}
		backoff.Sleep(ctx, pause, wake)
	}
	return nil
}

// createGroupID creates the group id if the store has none.
func createGroupID(ctx context.Context, b resource.Backend) error {
	id, err := GroupID(ctx, b)
	if err != nil || id != "" {
		return err
	}
	r, err := resource.New(GroupType, groupName, &pb.Group{Id: newGroupID()})
	if err != nil {
		return err
	}
	if _, err = b.Commit(ctx, resource.PutOp(r, "")); errors.Is(err, resource.ErrConflict) {
		return nil // another leader has created the id
	}
	return err
}
