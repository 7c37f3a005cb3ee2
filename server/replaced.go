// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// disconnect closes the connections to datacenter dc, whose name now belongs to
// another Raft group. It closes them again after routesUpdated, because the
// local gateways may route to the previous datacenter until they receive the
// new routes.
func (c *components) disconnect(ctx context.Context, dc string) {
	const routesUpdated = 2 * time.Second
	c.network.calls.Disconnect(dc)
	c.disconnects.Go(func() {
		backoff.Sleep(ctx, routesUpdated, nil)
		if ctx.Err() == nil {
			c.network.calls.Disconnect(dc)
		}
	})
}

// acceptedGroup returns the id of the Raft group that is accepted as datacenter
// dc, or "" if the id is not known. It does not block.
func (c *components) acceptedGroup(dc string) string { return c.manager.AcceptedGroup(dc) }
