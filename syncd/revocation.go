// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"context"
	"log/slog"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/revocation"
	"github.com/wanfed/wanfed/tlsutil"
)

// followRevocations puts the revocation lists of the servers in force in id, until
// ctx ends. Connections to revoked servers are then closed: see tlsutil.Guard. A
// list stays in force while the daemon runs.
func followRevocations(ctx context.Context, resources pb.ResourceServiceClient, id *tlsutil.Identity, logger *slog.Logger) {
	retry := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for ctx.Err() == nil {
		stream, err := resources.WatchList(ctx, &pb.WatchListRequest{Type: revocation.Type})
		for err == nil {
			var event *pb.WatchEvent
			if event, err = stream.Recv(); err == nil {
				retry.Reset()
				addRevocation(event.GetUpsert().GetResource(), id, logger)
			}
		}
		if ctx.Err() == nil {
			logger.Debug("watch of the revocation lists ended", "err", resource.FromStatus(err))
		}
		backoff.Sleep(ctx, retry.Next(), nil)
	}
}

// addRevocation puts the list of a resource in force. r is nil in an event that is
// not an upsert.
func addRevocation(r *pb.Resource, id *tlsutil.Identity, logger *slog.Logger) {
	if r == nil {
		return
	}
	if err := revocation.Apply(id, r); err != nil {
		logger.Warn("revocation list ignored", "name", r.GetId().GetName(), "err", err)
	}
}
