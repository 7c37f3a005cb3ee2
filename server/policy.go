// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"

	"github.com/wanfed/wanfed/policy"
)

// newPolicy returns the engine that decides who may do what at this server.
func (c *components) newPolicy() *policy.Engine {
	return policy.New(policy.Config{
		DC:            c.cfg.DC,
		OperatorsFrom: func() []string { return c.live.Load().OperatorsFrom },
		ReadsFrom:     func() []string { return c.live.Load().ReadsFrom },
		ForwardFrom:   func() []string { return c.live.Load().AllowRemoteWritesFrom },
		Logger:        c.logger,
	})
}

// runPolicy applies the policies in the store and all their changes.
func (c *components) runPolicy(ctx context.Context) error { return c.policy.Run(ctx, c.store) }
