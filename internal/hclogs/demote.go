// SPDX-License-Identifier: MPL-2.0

package hclogs

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

// repeatAfter is how long a line that says the same is Debug after it was shown.
const repeatAfter = time.Minute

// maxShown bounds the lines that are remembered, and so those that are shown within repeatAfter: peers have a say in what they say, and
// could have each differ from the others.
const maxShown = 256

// Demote returns a handler for the lines of libraries that writes to h: Info records become Debug ones, as the state that a
// library enters is no change that an operator acts on; so do records that say what one of a higher level said less than a
// minute ago, since libraries try things again every few seconds, and all beyond 256 different ones a minute. What one Demote returns remembers for itself, with all
// that is made of it by With.
func Demote(h slog.Handler) slog.Handler { return demoted{h, &shown{at: map[string]time.Time{}}} }

type demoted struct {
	slog.Handler
	shown *shown
}

// shown remembers when a line was last shown.
type shown struct {
	mu    sync.Mutex
	at    map[string]time.Time
	swept time.Time // when old ones were last forgotten for room
}

func (s *shown) lately(line string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.at[line]; ok && now.Sub(last) < repeatAfter {
		return true
	}
	if len(s.at) >= maxShown && now.Sub(s.swept) >= time.Second {
		s.swept = now
		maps.DeleteFunc(s.at, func(_ string, at time.Time) bool { return now.Sub(at) >= repeatAfter })
	}
	if len(s.at) >= maxShown {
		return true
	}
	s.at[line] = now
	return false
}

func (d demoted) Enabled(ctx context.Context, l slog.Level) bool {
	return d.Handler.Enabled(ctx, demote(l))
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	if r.Level > slog.LevelInfo && d.shown.lately(lineOf(r), time.Now()) {
		r.Level = slog.LevelDebug
		if !d.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs), d.shown}
}

func (d demoted) WithGroup(name string) slog.Handler {
	return demoted{d.Handler.WithGroup(name), d.shown}
}

func demote(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// lineOf is what r says: its message and its own attributes.
func lineOf(r slog.Record) string {
	if r.NumAttrs() == 0 {
		return r.Message
	}
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteByte(' ')
		b.WriteString(a.String())
		return true
	})
	return b.String()
}
