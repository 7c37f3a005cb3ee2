// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// progressEvery is how often a transfer says how far it is.
	progressEvery = 2 * time.Second
	// A transfer of which nothing moves for transferStall is given up; but once all is sent, the servers may work on it for
	// restoreWait.
	transferStall = time.Minute
	restoreWait   = 30 * time.Minute
)

// watchProgress writes lines to w about a transfer of total bytes, if that is known, and ends the context that it returns when the
// transfer stalls. moved is told of bytes that went through; stop ends it.
func watchProgress(ctx context.Context, w io.Writer, verb string, total int64) (_ context.Context, moved func(n int), stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var bytes atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		last, since, waiting := int64(0), time.Now(), false
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				n := bytes.Load()
				if n != last {
					last, since = n, now
				}
				stall := transferStall
				switch {
				case total > 0 && n == total:
					stall = restoreWait
					if !waiting {
						fmt.Fprintf(w, "%s all of %s; waiting for the servers to restore it ...\n", verb, size(total))
					}
					waiting = true
				case total > 0:
					fmt.Fprintf(w, "%s %s of %s ...\n", verb, size(n), size(total))
				default:
					fmt.Fprintf(w, "%s %s ...\n", verb, size(n))
				}
				if now.Sub(since) > stall {
					cancel(fmt.Errorf("nothing has moved for %v", stall))
					return
				}
			}
		}
	})
	return ctx, func(n int) { bytes.Add(int64(n)) }, func() {
		cancel(nil)
		wg.Wait()
	}
}

// size shows bytes as people read them.
func size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB"} {
		if f /= 1000; f < 999.5 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}
