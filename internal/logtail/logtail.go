// SPDX-License-Identifier: MPL-2.0

package logtail

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/wanfed/wanfed/internal/settings"
)

const (
	// MaxViewers is the maximum number of open viewers of a process.
	MaxViewers = 8
	// queueLength is the maximum number of lines that wait for one viewer: more
	// than a burst of a reconnect at the level debug.
	queueLength = 1024
	// maxLine is the maximum length of a line in bytes.
	maxLine = 16 << 10
)

// Tail has the viewers of the log of one process.
type Tail struct {
	mu      sync.Mutex // serializes changes of viewers
	viewers atomic.Pointer[[]*Viewer]
	lowest  atomic.Int64 // lowest level of a viewer
}

// New returns a Tail without viewers.
func New() *Tail {
	t := &Tail{}
	t.set(nil)
	return t
}

// set replaces the viewers. The caller holds mu, or has the only reference.
func (t *Tail) set(viewers []*Viewer) {
	lowest := int64(math.MaxInt64)
	for _, v := range viewers {
		lowest = min(lowest, int64(v.level))
	}
	t.viewers.Store(&viewers)
	t.lowest.Store(lowest)
}

// Line is a line of the log without its line break.
type Line struct {
	Text string
	// Dropped is the number of lines that were dropped before this one.
	Dropped uint64
}

// Viewer receives the lines of the log from its level on.
type Viewer struct {
	tail    *Tail
	level   slog.Level
	format  string
	lines   chan Line // size queueLength: a slow reader does not delay the log
	dropped atomic.Uint64
}

// Open returns a viewer of records from the level on. The values of level and
// format are those of the settings log_level and log_format. The caller closes
// the viewer.
func (t *Tail) Open(level, format string) (*Viewer, error) {
	if err := settings.CheckLog(level, format); err != nil {
		return nil, err
	}
	l, err := settings.ParseLevel(level)
	if err != nil {
		return nil, err
	}
	v := &Viewer{tail: t, level: l, format: format, lines: make(chan Line, queueLength)}
	t.mu.Lock()
	defer t.mu.Unlock()
	viewers := *t.viewers.Load()
	if len(viewers) >= MaxViewers {
		return nil, &TooManyError{}
	}
	t.set(append(slices.Clone(viewers), v))
	return v, nil
}

// TooManyError reports that the process has MaxViewers viewers.
type TooManyError struct{}

func (*TooManyError) Error() string {
	return fmt.Sprintf("the log has %d viewers, the maximum: close one of them", MaxViewers)
}

// Close removes the viewer. It is idempotent.
func (v *Viewer) Close() {
	t := v.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(slices.DeleteFunc(slices.Clone(*t.viewers.Load()), func(o *Viewer) bool { return o == v }))
}

// Next returns the next line. It waits until there is one or ctx ends.
func (v *Viewer) Next(ctx context.Context) (Line, error) {
	select {
	case l := <-v.lines:
		return l, nil
	case <-ctx.Done():
		return Line{}, ctx.Err()
	}
}

// add appends a line to the queue, or drops it if the queue is full.
func (v *Viewer) add(text string) {
	dropped := v.dropped.Swap(0)
	select {
	case v.lines <- Line{text, dropped}:
	default:
		v.dropped.Add(dropped + 1)
	}
}

// Handler returns a handler that gives records to base, as base permits, and to
// the viewers.
func (t *Tail) Handler(base slog.Handler) slog.Handler { return &handler{tail: t, base: base} }

// handler implements slog.Handler. It is immutable.
type handler struct {
	tail *Tail
	base slog.Handler
	// with has the calls of WithAttrs and WithGroup. They are applied for each
	// line of a viewer, so that they cost nothing without one.
	with []func(slog.Handler) slog.Handler
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, l slog.Level) bool {
	return int64(l) >= h.tail.lowest.Load() || h.base.Enabled(ctx, l)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) (err error) {
	if h.base.Enabled(ctx, r.Level) {
		err = h.base.Handle(ctx, r)
	}
	if int64(r.Level) < h.tail.lowest.Load() {
		return err
	}
	lines := map[string]string{} // by format
	for _, v := range *h.tail.viewers.Load() {
		if r.Level < v.level {
			continue
		}
		text, ok := lines[v.format]
		if !ok {
			text = h.encode(ctx, r, v.format)
			lines[v.format] = text
		}
		v.add(text)
	}
	return err
}

// encode returns the line of a record.
func (h *handler) encode(ctx context.Context, r slog.Record, format string) string {
	var b bytes.Buffer
	logger, err := settings.NewLogger(&b, r.Level, format)
	if err != nil {
		return err.Error() // Open has checked the format
	}
	to := logger.Handler()
	for _, with := range h.with {
		to = with(to)
	}
	if err := to.Handle(ctx, r); err != nil {
		return err.Error()
	}
	text := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	return string(bytes.ToValidUTF8(text[:min(len(text), maxLine)], nil))
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.add(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return h.add(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *handler) add(with func(slog.Handler) slog.Handler) slog.Handler {
	return &handler{h.tail, with(h.base), append(slices.Clip(h.with), with)}
}
