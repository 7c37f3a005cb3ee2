// SPDX-License-Identifier: MPL-2.0

package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// DefaultInterval is the interval between two lines of one kind at their full
// level.
const DefaultInterval = 10 * time.Second

// Logger logs events by kind. It is safe for concurrent use. It keeps a few
// words per kind and never evicts one, so kinds must come from a bounded set,
// not from the bytes of a peer.
type Logger[K comparable] struct {
	log      *slog.Logger
	interval time.Duration

	mu    sync.Mutex
	kinds map[K]*kind
}

type kind struct {
	logged     time.Time // last line at full level
	suppressed int       // events since then
}

// New returns a Logger that writes to log. An interval of 0 means
// DefaultInterval.
func New[K comparable](log *slog.Logger, interval time.Duration) *Logger[K] {
	if interval == 0 {
		interval = DefaultInterval
	}
	return &Logger[K]{log: log, interval: interval, kinds: map[K]*kind{}}
}

// Log writes one line about an event of kind k: at level, or at Debug if k was
// logged at its level less than an interval ago.
func (l *Logger[K]) Log(k K, level slog.Level, msg string, attrs ...any) {
	if level > slog.LevelDebug {
		full, suppressed := l.allow(k)
		if !full {
			level = slog.LevelDebug
		}
		if suppressed > 0 {
			attrs = append(attrs, "suppressed", suppressed)
		}
	}
	l.log.Log(context.Background(), level, msg, attrs...)
}

// allow reports whether an event of kind k may show at its full level now, and
// how many were suppressed before it.
func (l *Logger[K]) allow(k K) (full bool, suppressed int) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.kinds[k]
	if e == nil {
		l.kinds[k] = &kind{logged: now}
		return true, 0
	}
	if now.Sub(e.logged) < l.interval {
		e.suppressed++
		return false, 0
	}
	suppressed = e.suppressed
	e.logged, e.suppressed = now, 0
	return true, suppressed
}
