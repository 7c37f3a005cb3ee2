// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// proxiesInterval is the minimum time between two reads of the gateways in the
// catalog. A read costs time for each node and service in the catalog, and
// clients may write them at a high rate.
const proxiesInterval = 100 * time.Millisecond

// runProxies builds the snapshots of the gateways in the catalog, and resolves the
// names in them for Envoys, until ctx ends.
func (c *components) runProxies(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.proxies.Run(ctx) })
	g.Go(func() error { return c.envoys.Run(ctx) })
	g.Go(func() error {
		return c.proxyInputs.Follow(ctx, "store of "+c.cfg.Node, c.addressBook.Snapshot, c.logger)
	})
	wake := make(chan struct{}, 1)
	for _, typ := range []*pb.Type{catalog.NodeType, catalog.ServiceType} {
		g.Go(func() error { resource.Notify(ctx, c.store, resource.Query{Type: typ}, wake); return nil })
	}
	g.Go(func() error {
		for {
			if err := c.registerProxies(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("gateways in the catalog: %w", err)
			}
			next := time.Now().Add(proxiesInterval)
			select {
			case <-wake:
			case <-ctx.Done():
				return nil
			}
			backoff.Sleep(ctx, time.Until(next), nil)
		}
	})
	return g.Wait()
}

// registerProxies registers the gateways in the catalog, and drops all others.
func (c *components) registerProxies(ctx context.Context) error {
	gateways, err := catalog.ListGateways(ctx, c.store)
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, name := range c.proxies.Names() {
		gone[name] = true
	}
	for _, g := range gateways {
		r := proxycfg.Registration{
			Name: g.Node.Node, LAN: catalog.TaggedAddr(g, catalog.TagLAN), WAN: catalog.TaggedAddr(g, catalog.TagWAN),
		}
		if err := c.proxies.Register(r); err != nil {
			c.logger.Warn("gateway in the catalog ignored", "err", err)
			continue
		}
		delete(gone, r.Name)
	}
	for name := range gone {
		c.proxies.Drop(name)
	}
	return nil
}

// gatewaySnapshots returns the snapshots of the gateways in the catalog.
func (c *components) gatewaySnapshots() []api.GatewaySnapshot {
	envoys := map[string][]api.EnvoyConnection{}
	for _, p := range c.envoys.Proxies() {
		e := api.EnvoyConnection{Version: p.Version, Connected: p.Connected}
		for _, t := range p.Types {
			e.Types = append(e.Types, api.EnvoyType(t))
		}
		envoys[p.Gateway] = append(envoys[p.Gateway], e)
	}
	disconnected := c.envoys.Disconnected()
	var out []api.GatewaySnapshot
	for _, name := range c.proxies.Names() {
		g := c.proxies.Report(name)
		g.Envoys, g.EnvoyDisconnected = envoys[name], disconnected[name]
		out = append(out, g)
	}
	return out
}
