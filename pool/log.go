// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// repeatAfter is how long a line of serf or memberlist that says the same is Debug after it was shown.
const repeatAfter = time.Minute

// maxShown bounds the lines that are remembered; names in them come from peers.
const maxShown = 256

// demote is for the lines of serf and memberlist: it turns Info records into Debug ones, and those that say again what a
// record said a short time ago. They try things, and peers that they refuse come back, every few seconds.
type demote struct {
	slog.Handler
	shown *shown
}

func newDemote(h slog.Handler) demote { return demote{h, &shown{at: map[string]time.Time{}}} }

// shown remembers when a message was last shown.
type shown struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (s *shown) lately(message string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.at[message]; ok && now.Sub(last) < repeatAfter {
		return true
	}
	if len(s.at) >= maxShown {
		clear(s.at) // only a memory: each may be shown once more
	}
	s.at[message] = now
	return false
}

func (d demote) Enabled(ctx context.Context, l slog.Level) bool {
	return d.Handler.Enabled(ctx, demoted(l))
}

func (d demote) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demoted(r.Level)
	if r.Level > slog.LevelInfo && d.shown.lately(r.Message, time.Now()) {
		r.Level = slog.LevelDebug
		if !d.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return d.Handler.Handle(ctx, r)
}

func (d demote) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demote{d.Handler.WithAttrs(attrs), d.shown}
}

func (d demote) WithGroup(name string) slog.Handler {
	return demote{d.Handler.WithGroup(name), d.shown}
}

func demoted(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}
