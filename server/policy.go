// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"

	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/server/audit"
	"github.com/wanfed/wanfed/tlsutil"
)

// buildPolicy opens the audit log, if there is one, and builds the engine that
// decides who may do what at this server.
func (c *components) buildPolicy(*tlsutil.Identity) error {
	cfg := policy.Config{
		DC:            c.cfg.DC,
		OperatorsFrom: func() []string { return c.live.Load().OperatorsFrom },
		ReadsFrom:     func() []string { return c.live.Load().ReadsFrom },
		ForwardFrom:   func() []string { return c.live.Load().AllowRemoteWritesFrom },
		Loaded:        c.loaded,
		Logger:        c.logger,
	}
	if c.cfg.AuditLog != "" {
		var err error
		c.audit, err = audit.Open(audit.Config{
			File: c.cfg.AuditLog, MaxSize: c.cfg.AuditLogMaxSize, Keep: c.cfg.AuditLogKeep, WhenFull: c.cfg.AuditLogWhenFull,
			DC: c.cfg.DC, Node: c.cfg.Node, Logger: c.logger,
		})
		if err != nil {
			return err
		}
		cfg.Recorder = c.audit // not a nil *audit.Log, which would be an interface that is not nil
	}
	c.policy = policy.New(cfg)
	return nil
}

// runPolicy applies the policies in the store and all their changes.
func (c *components) runPolicy(ctx context.Context) error { return c.policy.Run(ctx, c.store) }
