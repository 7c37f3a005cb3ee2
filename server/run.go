// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/revocation"
	"github.com/wanfed/wanfed/trust"
)

// run starts two groups of components and joins them. The upper group ends
// first, because this server needs the network to leave the pools.
func (c *components) run(ctx context.Context) error {
	base, stopLower := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLower()
	grpcListeners := c.network.grpcListeners()
	lower, lctx := errgroup.WithContext(base)
	lower.Go(func() error { return c.network.run(lctx, c.tlsListener) })
	if c.audit != nil {
		lower.Go(func() error { return c.audit.Run(lctx) })
	}

	uctx, stopUpper := context.WithCancel(ctx)
	defer stopUpper()
	defer context.AfterFunc(lctx, stopUpper)() // the network failed
	upper, uctx := errgroup.WithContext(uctx)
	for _, run := range []func(context.Context) error{
		c.lan.Run, c.wan.Run, c.addressBook.Run, c.network.prober.Run, c.joiner.Run, c.runTags, c.keyring.Run,
		c.claimant.Run, c.contacts.Run, c.group.RunJoin, c.group.RunBootstrap, c.watchStore, c.awaitLoaded,
		c.source.Run, c.runProxies, c.runRevocation, c.runTrust, c.runRenewal, c.runReissue, c.applyUpdates, c.operator.RunComparison,
		c.reporter.RunReports, c.controllers.Run,
		func(ctx context.Context) error { return c.manager.Run(ctx, c.strong) },
		c.runPolicy, c.runner.Run,
	} {
		upper.Go(func() error { return run(uctx) })
	}
	upper.Go(func() error { return c.joiner.RunResync(uctx, c.cfg.PrimaryDC, c.network.calls.Reachability) })
	upper.Go(func() error { return c.store.RunWhileLeader(uctx, c.lead) })
	upper.Go(func() error { return c.edge.Serve(uctx, grpcListeners...) })
	upper.Go(func() error { return c.http.run(uctx, c.httpListener, c.httpSocket) })
	if c.monitor != nil {
		upper.Go(func() error { return c.monitor.Run(uctx) })
	}

	c.logger.Info("server started", "addr", c.addrs.Server, "http", c.addrs.HTTP, "monitor", c.addrs.Monitor, "primary", c.cfg.PrimaryDC)
	if c.cfg.Started != nil {
		c.cfg.Started(c.addrs)
	}
	err := upper.Wait()
	c.disconnects.Wait()
	c.transferLeadership()
	closeErr := c.store.Close()
	stopLower()
	if lowerErr := lower.Wait(); err == nil {
		err = lowerErr
	}
	c.logger.Info("server stopped")
	return errors.Join(err, closeErr)
}

// revocationFile returns the file of the revocation lists in force.
func (c *components) revocationFile() string { return filepath.Join(c.cfg.DataDir, "revocation.crl") }

// runRevocation puts the revocation lists of the store in force until ctx ends.
func (c *components) runRevocation(ctx context.Context) error {
	return revocation.Run(ctx, revocation.Config{
		Backend: c.store, Identity: c.network.identity, File: c.revocationFile(), Logger: c.logger,
	})
}

// runTrust applies the trusted CAs of the store until ctx ends.
func (c *components) runTrust(ctx context.Context) error {
	return trust.Run(ctx, trust.Config{Backend: c.store, Identity: c.network.identity, Logger: c.logger})
}

// applyUpdates applies changed settings until ctx ends.
func (c *components) applyUpdates(ctx context.Context) error {
	for {
		select {
		case next := <-c.cfg.Updates:
			c.live.Store(&next)
			if c.audit != nil {
				c.audit.Reopen()
			}
			if err := c.network.identity.Reload(); err != nil {
				c.logger.Error("cannot reload the certificate", "err", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// transferLeadership makes another server the leader, if there is another
// server. The other servers then need not wait for an election timeout.
func (c *components) transferLeadership() {
	peers, err := c.store.Peers()
	if err != nil || len(peers) < 2 || !c.store.IsLeader() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.store.TransferLeadership(ctx); err != nil {
		c.logger.Warn("cannot transfer leadership", "err", err)
	}
}

// watchStore returns an error when the store has failed, for example because of
// a disk error.
func (c *components) watchStore(ctx context.Context) error {
	select {
	case <-c.store.Failed():
		return c.store.Err()
	case <-ctx.Done():
		return nil
	}
}

// awaitLoaded closes c.loaded when the store has applied what its datacenter
// had committed before this server started. A leader detects this state by its
// barrier, and a follower by the commit index of its leader. There is no event
// for the applied index of a follower, so awaitLoaded polls it during the
// start.
func (c *components) awaitLoaded(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := c.store.LeaderChanged()
		if c.store.CaughtUp() {
			close(c.loaded)
			return nil
		}
		backoff.Sleep(ctx, 10*time.Millisecond, changed)
	}
	return nil
}

// applyState writes the federation state of this datacenter in the primary.
func (c *components) applyState(ctx context.Context, s *pb.FederationState) error {
	primary := c.manager.PrimaryDC()
	if primary == c.cfg.DC {
		if err := c.manager.Writable(); err != nil {
			return err
		}
		_, _, err := federation.Upsert(ctx, c.manager.Fenced(c.store), s)
		return err
	}
	_, err := pb.NewFederationServiceClient(c.network.calls.Reader(primary)).Apply(ctx, &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: s,
	}, grpc.WaitForReady(true))
	return err
}

// lead does the work of the leader until ctx ends, because leadership was lost
// or the server stops.
func (c *components) lead(ctx context.Context) error {
	c.logger.Info("leadership acquired")
	g, gctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		c.checks.Run, c.antiEntropy.Run, c.operator.RunMembership, c.operator.RunCheckpoints, c.manager.RunLeader,
		c.primary.WatchOthers, c.snapshots.Run, c.leases.Run, c.sessions.Run,
		func(ctx context.Context) error { return federation.KeepGroupID(ctx, c.store, c.logger) },
	} {
		g.Go(func() error { return run(gctx) })
	}
	err := g.Wait()
	c.logger.Info("leadership lost")
	if ctx.Err() != nil {
		return nil // components fail when leadership is lost
	}
	return err
}
