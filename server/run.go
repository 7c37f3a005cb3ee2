// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/resource"
)

// stopTimeout bounds how long open requests may take once the server stops.
const stopTimeout = 2 * time.Second

// Run runs one datacenter server until ctx ends, then leaves the pools, closes the store and returns nil. It blocks. Any
// other end is an error: a fault in cfg, a port that is taken, a part that failed.
func Run(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	id, err := cfg.validate()
	if err != nil {
		return err
	}
	p, err := assemble(cfg, id)
	if err != nil {
		return err
	}
	err = p.run(ctx)
	return errors.Join(err, p.close())
}

// run starts both groups and joins them, the upper one first.
func (p *parts) run(ctx context.Context) error {
	base, stopLower := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLower()
	lower, lctx := errgroup.WithContext(base)
	lower.Go(func() error { return p.mux.Run(lctx, p.serverLn) })
	lower.Go(func() error { return p.tunnel.Run(lctx) })
	lower.Go(func() error { return p.identity.Run(lctx) })
	lower.Go(func() error { return p.calls.Run(lctx) })

	uctx, stopUpper := context.WithCancel(ctx)
	defer stopUpper()
	defer context.AfterFunc(lctx, stopUpper)() // a lower part failed: nothing above can go on
	upper, uctx := errgroup.WithContext(uctx)
	upper.Go(func() error { return p.lan.Run(uctx) })
	upper.Go(func() error { return p.wan.Run(uctx) })
	upper.Go(func() error { return p.addressBook.Run(uctx) })
	upper.Go(func() error { return p.prober.Run(uctx) })
	upper.Go(func() error { return p.joiner.Run(uctx) })
	upper.Go(func() error { return p.hinter.Run(uctx) })
	upper.Go(func() error { return p.keyring.Run(uctx) })
	upper.Go(func() error { return p.joiner.RunResync(uctx, p.cfg.PrimaryDC, p.calls.Reachability) })
	upper.Go(func() error { return p.group.runJoin(uctx) })
	upper.Go(func() error { return p.group.runBootstrap(uctx) })
	upper.Go(func() error { return p.store.RunWhileLeader(uctx, p.lead) })
	upper.Go(func() error { return p.watchStore(uctx) })
	upper.Go(func() error { return p.catchUp(uctx) })
	upper.Go(func() error { return p.followed.Run(uctx) })
	upper.Go(func() error { return p.edge.Serve(uctx, p.grpcLn, p.callsLn) })
	upper.Go(func() error { return p.serveHTTP(uctx) })

	p.logger.Info("server started", "addr", p.addrs.Server, "http", p.addrs.HTTP, "primary", p.cfg.PrimaryDC)
	if p.cfg.Started != nil {
		p.cfg.Started(p.addrs)
	}
	err := upper.Wait()
	p.handOver()
	closeErr := p.store.Close()
	stopLower()
	if lowerErr := lower.Wait(); err == nil {
		err = lowerErr
	}
	p.logger.Info("server stopped")
	return errors.Join(err, closeErr)
}

// handOver gives leadership to another server, if there is one, so that the others need not wait for a timeout.
func (p *parts) handOver() {
	peers, err := p.store.Peers()
	if err != nil || len(peers) < 2 || !p.store.IsLeader() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := p.store.TransferLeadership(ctx); err != nil {
		p.logger.Warn("handing leadership over", "err", err)
	}
}

// watchStore ends the server when its store cannot go on: a disk that failed, say.
func (p *parts) watchStore(ctx context.Context) error {
	select {
	case <-p.store.Failed():
		return p.store.Err()
	case <-ctx.Done():
		return nil
	}
}

// catchUp closes caughtUp when the store has applied what its datacenter had committed: as leader by its barrier, as follower
// when it is level with what the leader told it. How far a follower has applied is no event, so it looks every few
// milliseconds while it starts.
func (p *parts) catchUp(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		changed := p.store.LeaderChanged()
		st := p.store.Stats()
		if p.store.IsLeader() || st.Leader != "" && st.Leader != p.cfg.Node && st.CommitIndex > 0 && st.AppliedIndex >= st.CommitIndex {
			close(p.caughtUp)
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// lead is what this server does while it leads its datacenter.
func (p *parts) lead(ctx context.Context) error {
	p.logger.Info("leading the datacenter")
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.gateways.Run(gctx) })
	g.Go(func() error { return p.reports.Run(gctx) })
	g.Go(func() error { return p.antiEntropy.Run(gctx) })
	g.Go(func() error { return p.operator.RunMembership(gctx) })
	g.Go(func() error { return resource.Reap(gctx, p.store, p.logger) })
	g.Go(func() error { return p.primacy.RunLeader(gctx) })
	g.Go(func() error { return p.watchRivals(gctx) })
	err := g.Wait()
	p.logger.Info("no longer leading the datacenter")
	if ctx.Err() != nil {
		return nil // leadership was lost, or the server stops: what failed meanwhile failed of that
	}
	return err
}

// serveHTTP answers HTTP until ctx ends. Blocked queries end with ctx; others get stopTimeout.
func (p *parts) serveHTTP(ctx context.Context) error {
	p.http.BaseContext = func(_ net.Listener) context.Context { return ctx }
	g, gctx := errgroup.WithContext(context.WithoutCancel(ctx))
	mctx, stopMux := context.WithCancel(gctx)
	defer stopMux()
	g.Go(func() error {
		err := p.http.Serve(p.httpConns)
		if errors.Is(err, http.ErrServerClosed) || mctx.Err() != nil {
			return nil
		}
		return err
	})
	g.Go(func() error { return p.httpMux.Run(mctx, p.httpLn) })
	select {
	case <-gctx.Done(): // one failed
	case <-ctx.Done():
	}
	stopMux() // no new connections; those that HTTP has stay
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := p.http.Shutdown(sctx); err != nil {
		_ = p.http.Close() // what did not end in time is cut off
	}
	return g.Wait()
}
