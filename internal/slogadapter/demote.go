// SPDX-License-Identifier: MPL-2.0

package slogadapter

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

const (
	// repeatInterval is the time during which a line that equals an earlier
	// line is a repeat of that line.
	repeatInterval = time.Minute
	// maxLines limits the number of different lines per repeatInterval. Peers
	// control parts of the text and could make each line different.
	maxLines = 256
)

// Demote returns a handler for the logs of libraries that writes to h.
//
// Info records become Debug records, because an operator need not act on state
// changes of a library. A record of a higher level becomes a Debug record in
// two cases. An equal line was logged less than a minute ago (libraries retry
// every few seconds), or 256 different lines were logged in the last minute.
// Handlers that are derived from the returned handler share these limits.
func Demote(h slog.Handler) slog.Handler {
	return demoteHandler{h, &repeats{last: map[string]time.Time{}}}
}

// demoteHandler implements slog.Handler.
type demoteHandler struct {
	slog.Handler
	repeats *repeats
}

// repeats records the time at which each line was last logged.
type repeats struct {
	mu     sync.Mutex
	last   map[string]time.Time
	pruned time.Time // last removal of old lines
}

// suppress reports whether line is a repeat, or maxLines is reached. Otherwise
// suppress records the line.
func (r *repeats) suppress(line string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[line]; ok && now.Sub(last) < repeatInterval {
		return true
	}
	if len(r.last) >= maxLines && now.Sub(r.pruned) >= time.Second {
		r.pruned = now
		maps.DeleteFunc(r.last, func(_ string, at time.Time) bool { return now.Sub(at) >= repeatInterval })
	}
	if len(r.last) >= maxLines {
		return true
	}
	r.last[line] = now
	return false
}

func (h demoteHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, demote(l))
}

func (h demoteHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	if r.Level > slog.LevelInfo && h.repeats.suppress(lineOf(r), time.Now()) {
		r.Level = slog.LevelDebug
		if !h.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h demoteHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoteHandler{h.Handler.WithAttrs(attrs), h.repeats}
}

func (h demoteHandler) WithGroup(name string) slog.Handler {
	return demoteHandler{h.Handler.WithGroup(name), h.repeats}
}

func demote(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// lineOf returns the message of r with the attributes of r.
func lineOf(r slog.Record) string {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteByte(' ')
		b.WriteString(a.String())
		return true
	})
	return b.String()
}
