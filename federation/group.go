// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// GroupType is the type of the resource with the id of the Raft group of a
// datacenter. There is one resource of this type, and it is not federated. It is
// part of each snapshot, so a datacenter that is restored from a snapshot keeps
// its id.
var GroupType = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "Group"}

const groupName = "local"

func authorizeGroup(_ tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	if verb == resource.VerbRead || verb == resource.VerbList {
		return nil
	}
	return errors.New("the id of a Raft group does not change: no peer may write it")
}

// GroupID returns the id of the Raft group of this datacenter, or "" if its first
// leader has not created the id yet.
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

// newGroupID returns 16 random hexadecimal digits. The id is in the tags of each
// member of the WAN pool, which have little space.
func newGroupID() string { return strings.ReplaceAll(uuid.NewString(), "-", "")[:16] }

// KeepGroupID creates the id of the Raft group whenever there is none, until ctx
// ends. Only the leader may run it.
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
			logger.Warn("cannot write the id of the Raft group", "err", err)
			pause = retry.Next()
		}
		backoff.Sleep(ctx, pause, wake)
	}
	return nil
}

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
		return nil // the id exists
	}
	return err
}
