// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"log/slog"

	"github.com/hashicorp/go-metrics"
)

// demoted makes the library's Info lines Debug: which state it enters is no change that an operator acts on. What is, the
// store logs itself.
type demoted struct{ h slog.Handler }

func demote(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

func (d demoted) Enabled(ctx context.Context, l slog.Level) bool { return d.h.Enabled(ctx, demote(l)) }

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	return d.h.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler { return demoted{d.h.WithAttrs(attrs)} }
func (d demoted) WithGroup(name string) slog.Handler       { return demoted{d.h.WithGroup(name)} }

// walMetrics hands the log's metrics to the sink that the Raft library's own go to.
type walMetrics struct{}

func (walMetrics) IncrementCounter(name string, delta uint64) {
	metrics.IncrCounter([]string{"raft", "wal", name}, float32(delta))
}

func (walMetrics) SetGauge(name string, value uint64) {
	metrics.SetGauge([]string{"raft", "wal", name}, float32(value))
}
