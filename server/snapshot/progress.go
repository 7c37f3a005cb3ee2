// SPDX-License-Identifier: MPL-2.0

package snapshot

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/internal/output"
)

const (
	progressInterval = 2 * time.Second
	transferTimeout  = time.Minute      // without transferred data, before all data is sent
	restoreTimeout   = 30 * time.Minute // for the servers to restore, after all data is sent
)

// progress prints the progress of a transfer and cancels ctx when the
// transfer stalls.
type progress struct {
	ctx   context.Context
	stop  func() // joins the goroutine
	bytes atomic.Int64
}

// add reports n transferred bytes.
func (p *progress) add(n int) { p.bytes.Add(int64(n)) }

// startProgress starts the progress of a transfer of total bytes. If total is
// unknown, it is 0. The caller calls stop at the end.
func startProgress(ctx context.Context, w io.Writer, verb string, total int64) *progress {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &progress{ctx: ctx}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		last, since, waiting, complete := int64(0), time.Now(), false, false
		for {
			var now time.Time
			select {
			case <-ctx.Done():
				return
			case now = <-tick.C:
			}
			n := p.bytes.Load()
			if n != last {
				last, since = n, now
			}
			timeout := transferTimeout
			switch {
			case n == 0:
				if !waiting {
					fmt.Fprintln(w, "waiting for the servers to respond ...")
				}
				waiting = true
			case total == 0:
				fmt.Fprintf(w, "%s %s ...\n", verb, output.Size(n))
			case n < total:
				fmt.Fprintf(w, "%s %s of %s ...\n", verb, output.Size(n), output.Size(total))
			default:
				timeout = restoreTimeout
				if !complete {
					fmt.Fprintf(w, "%s all of %s; waiting for the servers to restore it ...\n", verb, output.Size(total))
				}
				complete = true
			}
			if now.Sub(since) > timeout {
				cancel(fmt.Errorf("no data was transferred for %v", timeout))
			}
		}
	})
	p.stop = func() {
		cancel(nil)
		wg.Wait()
	}
	return p
}
