// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
)

const (
	// MaxDuration bounds BundleConfig.Duration.
	MaxDuration = 10 * time.Minute
	// MinInterval is the minimum of BundleConfig.Interval.
	MinInterval = time.Second
	// maxWatched bounds a live log in a bundle, in bytes.
	maxWatched = 16 << 20
)

// LogWatch is the live log of one process.
type LogWatch struct {
	// Name is the name of the file in the directory logs of the bundle.
	Name string
	// Watch calls f with each line and the number of lines that were dropped
	// before it, until ctx ends.
	Watch func(ctx context.Context, f func(line string, dropped uint64) error) error
}

// addCaptures adds what the processes report at each interval until Duration has
// passed or ctx ends. At the same time it records the processor time and the
// live logs.
func (b *bundle) addCaptures(ctx context.Context, cfg BundleConfig) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Duration+requestTimeout)
	defer cancel()
	end := time.Now().Add(cfg.Duration)
	var wg sync.WaitGroup
	var cpu []recording
	wg.Go(func() {
		p, recorded := cpuProfile(cfg.Duration)
		cpu = recordProfile(ctx, cfg.Config, p, recorded)
	})
	watching, stop := context.WithDeadline(ctx, end)
	defer stop()
	logs := make([]watched, len(cfg.Watches))
	for i, w := range cfg.Watches {
		wg.Go(func() { logs[i].watch(watching, w) })
	}
	for {
		b.addCapture(ctx, cfg)
		left := time.Until(end)
		if left <= 0 {
			break
		}
		if backoff.Sleep(ctx, min(left, cfg.Interval), nil); ctx.Err() != nil {
			break
		}
	}
	wg.Wait()
	b.addRecorded("", cpu)
	b.addRecorded("", recordProfile(ctx, cfg.Config, heap, 0))
	for i, w := range cfg.Watches {
		b.add("logs/"+w.Name, logs[i].text.Bytes(), logs[i].err)
	}
}

// addCapture adds what the processes report now.
func (b *bundle) addCapture(ctx context.Context, cfg BundleConfig) {
	dir := "captures/" + time.Now().UTC().Format("20060102T150405.000Z") + "/"
	parts := []part{{"metrics.txt", "/metrics"}}
	b.addServerParts(ctx, cfg.Client, dir+"server/", slices.Concat(parts, []part{{"status.json", api.StatusPath}}))
	b.addGatewayParts(ctx, cfg.Machine, dir+"gateway/", slices.Concat(parts, []part{{"status.json", "/status"}}))
	b.addRecorded(dir, recordProfile(ctx, cfg.Config, stacks, 0))
}

// watched is a live log as it is recorded.
type watched struct {
	text bytes.Buffer
	err  error
}

// watch records a log until ctx ends, or until the log has maxWatched bytes.
func (w *watched) watch(ctx context.Context, from LogWatch) {
	err := from.Watch(ctx, func(line string, dropped uint64) error {
		if dropped > 0 {
			fmt.Fprintf(&w.text, "(%d lines were dropped)\n", dropped)
		}
		if w.text.Len()+len(line) > maxWatched {
			return fmt.Errorf("the log is cut at %d bytes", maxWatched)
		}
		fmt.Fprintln(&w.text, line)
		return nil
	})
	switch {
	case ctx.Err() != nil:
	case w.text.Len() == 0:
		w.err = err
	default:
		fmt.Fprintf(&w.text, "(end: %v)\n", err)
	}
}
