// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"sync"
	"time"

	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/wanfed"
)

// ReachabilityFunc returns the state of each datacenter, and a channel that is
// closed when it has changed.
type ReachabilityFunc func() (map[string]dcrpc.Reachability, <-chan struct{})

// RunResync fetches gossip that was missed while a datacenter was unreachable,
// for example new addresses of gateways (TagGateways). Gossip does not repeat
// messages, and the pool itself exchanges state only once a minute. RunResync
// exchanges state with a datacenter when it becomes reachable. While the primary
// is unreachable, it exchanges state once with every other datacenter, because
// one of them may know new addresses. It runs until ctx ends.
func (j *Joiner) RunResync(ctx context.Context, primary string, reachability ReachabilityFunc) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	old := map[string]dcrpc.Reachability{}
	for {
		current, changed := reachability()
		for dc, r := range current {
			if r.Recoveries > old[dc].Recoveries {
				wg.Go(func() { j.resync(ctx, dc) })
			}
		}
		was, is := old[primary], current[primary]
		if is.Unreachable && (!was.Unreachable || is.Recoveries > was.Recoveries) {
			wg.Go(func() { j.resyncAll(ctx, primary, reachability) })
		}
		old = current
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// resyncAll exchanges state with the datacenters other than the primary, until
// that is reachable or ctx ends.
func (j *Joiner) resyncAll(ctx context.Context, primary string, reachability ReachabilityFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	started := map[string]bool{}
	for {
		current, changed := reachability()
		if !current[primary].Unreachable {
			return
		}
		book := j.cfg.Book.Changed()
		for dc := range j.cfg.Book.Load().Paths {
			if dc != primary && !started[dc] {
				started[dc] = true
				wg.Go(func() { j.resync(ctx, dc) })
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

// resync exchanges state once with any server of dc. It retries until that
// succeeds, dc is not in the address book any more, or ctx ends.
func (j *Joiner) resync(ctx context.Context, dc string) {
	retry := backoff.Backoff{Min: minJoinPause, Max: maxJoinPause}
	for ctx.Err() == nil && len(j.cfg.Book.Load().Paths[dc]) > 0 {
		start := time.Now()
		err := j.waitReachable(ctx, "*."+dc)
		if err == nil {
			err = j.exchange(ctx, wanfed.AnyServer(dc), func() bool { return true })
		}
		if err == nil {
			j.cfg.Logger.Debug("gossip state exchanged", "peer", "*."+dc)
			return
		}
		backoff.Sleep(ctx, retry.Next()-time.Since(start), nil)
	}
}
