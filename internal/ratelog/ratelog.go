// SPDX-License-Identifier: MPL-2.0

package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Interval is the minimum time between two lines of one kind at their level.
const Interval = 10 * time.Second

// Logger logs events by kind. It is safe for concurrent use.
type Logger[K comparable] struct {
	log     *slog.Logger
	limiter Limiter[K]
}

// Limiter decides which events are logged at their level. It is for lines that
// a library writes. The zero Limiter is ready for use, and it is safe for
// concurrent use. A Limiter uses some bytes per kind and never evicts a kind.
// Therefore the number of kinds must be bounded: a kind must not contain text
// from a peer.
type Limiter[K comparable] struct {
	mu    sync.Mutex
	kinds map[K]*kind
}

type kind struct {
	logged     time.Time // time of the last line at its level
	suppressed int       // number of events since then
}

// New returns a Logger that writes to log. The bounds of Limiter apply.
func New[K comparable](log *slog.Logger) *Logger[K] { return &Logger[K]{log: log} }

// Log writes one line about an event of kind k. The level of the line is level,
// or Debug if the last line of kind k at its level is more recent than
// Interval.
func (l *Logger[K]) Log(k K, level slog.Level, msg string, attrs ...any) {
	if level > slog.LevelDebug {
		full, suppressed := l.limiter.Allow(k)
		if !full {
			level = slog.LevelDebug
		}
		if suppressed > 0 {
			attrs = append(attrs, "suppressed", suppressed)
		}
	}
	l.log.Log(context.Background(), level, msg, attrs...)
}

// Allow reports whether an event of kind k may be logged at its level now. If
// so, Allow also returns the number of suppressed events since the last line.
func (l *Limiter[K]) Allow(k K) (full bool, suppressed int) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.kinds[k]
	if e == nil {
		if l.kinds == nil {
			l.kinds = map[K]*kind{}
		}
		l.kinds[k] = &kind{logged: now}
		return true, 0
	}
	if now.Sub(e.logged) < Interval {
		e.suppressed++
		return false, 0
	}
	suppressed = e.suppressed
	e.logged, e.suppressed = now, 0
	return true, suppressed
}
