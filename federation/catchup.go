// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"sync"
	"time"

	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/wanfed"
)

// RunResync brings what was gossiped while a datacenter could not be reached, such as new addresses of gateways (TagGateways):
// gossip does not repeat itself, and the pool by itself compares notes once a minute. When a datacenter can be reached again,
// the WAN pool's state is exchanged with it. While the primary cannot be reached, it is exchanged with every other datacenter,
// once, as soon as that can be: one of them may know how. It runs until ctx ends; contacts also gives a channel that is
// closed when its answer has changed.
func (j *Joiner) RunResync(ctx context.Context, primary string, contacts func() (map[string]dcrpc.Reachability, <-chan struct{})) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	was := map[string]dcrpc.Reachability{}
	for {
		now, changed := contacts()
		for dc, c := range now {
			if c.Recoveries > was[dc].Recoveries {
				wg.Go(func() { j.exchange(ctx, dc) })
			}
		}
		if now[primary].Unreachable && (!was[primary].Unreachable || now[primary].Recoveries > was[primary].Recoveries) {
			wg.Go(func() { j.search(ctx, primary, contacts) })
		}
		was = now
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// search exchanges state with the other datacenters until the primary can be reached, or ctx ends.
func (j *Joiner) search(ctx context.Context, primary string, contacts func() (map[string]dcrpc.Reachability, <-chan struct{})) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	asked := map[string]bool{}
	for {
		now, changed := contacts()
		if !now[primary].Unreachable {
			return
		}
		book := j.cfg.Book.Changed()
		for dc := range j.cfg.Book.Load().Paths {
			if dc != primary && !asked[dc] {
				asked[dc] = true
				wg.Go(func() { j.exchange(ctx, dc) })
			}
		}
		select {
		case <-changed:
		case <-book:
		case <-ctx.Done():
			return
		}
	}
}

// exchange exchanges state with any server of a datacenter, once. It tries until that worked, the datacenter has left the
// book, or ctx ends.
func (j *Joiner) exchange(ctx context.Context, dc string) {
	for failed := 0; ctx.Err() == nil && len(j.cfg.Book.Load().Paths[dc]) > 0; failed++ {
		began := time.Now()
		err := j.reach(ctx, "*."+dc)
		if err == nil {
			err = j.joinInTurn(ctx, wanfed.AnyServer(dc), func() bool { return true })
		}
		if err == nil {
			j.cfg.Logger.Debug("caught up with gossip", "peer", "*."+dc)
			return
		}
		timer := time.NewTimer(joinBackoff(failed) - time.Since(began))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
