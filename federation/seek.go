// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"sync"
	"time"
)

// Seek looks for the primary where others may know it: each time lost says that the primary cannot be dialed, it exchanges
// the WAN pool's state once with every other datacenter, as soon as that can be reached. What was gossiped while this one was
// cut off, such as new addresses of the primary's gateways (TagGateways), comes along. It runs until ctx ends; lost also
// gives a channel that is closed when its answer may have changed.
func (j *Joiner) Seek(ctx context.Context, primary string, lost func() (bool, <-chan struct{})) error {
	for {
		isLost, changed := lost()
		if isLost && ctx.Err() == nil {
			j.search(ctx, primary, lost)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// search returns when the primary is no longer lost, or ctx ends.
func (j *Joiner) search(ctx context.Context, primary string, lost func() (bool, <-chan struct{})) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	asked := map[string]bool{}
	for {
		isLost, changed := lost()
		if !isLost {
			return
		}
		book := j.cfg.Book.Changed()
		for dc := range j.cfg.Book.Load().Hops {
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

// exchange exchanges state with any server of a datacenter, once. It tries until that worked or ctx ends.
func (j *Joiner) exchange(ctx context.Context, dc string) {
	for failed := 0; ctx.Err() == nil; failed++ {
		began := time.Now()
		err := j.reach(ctx, "*."+dc)
		if err == nil {
			err = j.cfg.WAN.Join(ctx, "*."+dc+"/"+anyAddr)
		}
		if err == nil {
			j.cfg.Logger.Debug("asked another datacenter for the primary", "peer", "*."+dc)
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
