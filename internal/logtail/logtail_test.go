// SPDX-License-Identifier: MPL-2.0

package logtail

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// newLog returns a log at the level warn, and its output.
func newLog() (*Tail, *slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	tail := New()
	return tail, slog.New(tail.Handler(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn}))), &b
}

func open(t *testing.T, tail *Tail, level, format string) *Viewer {
	t.Helper()
	v, err := tail.Open(level, format)
	if err != nil {
		t.Fatalf("Open(%s, %s) = %v, want nil", level, format, err)
	}
	t.Cleanup(v.Close)
	return v
}

func next(t *testing.T, v *Viewer) Line {
	t.Helper()
	l, err := v.Next(t.Context())
	if err != nil {
		t.Fatalf("Next() = %v, want a line", err)
	}
	return l
}

func TestTail_ViewersHaveTheirOwnLevels(t *testing.T) {
	tail, logger, out := newLog()
	if logger.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("Enabled(debug) = true without a viewer, want false")
	}
	debug, info := open(t, tail, "debug", "text"), open(t, tail, "info", "json")
	child := logger.With("dc", "dc1").WithGroup("g").With("k", 1)
	child.Debug("first")
	child.Warn("second", "addr", "10.0.0.1:1")
	if l := next(t, debug); !strings.Contains(l.Text, "level=DEBUG msg=first dc=dc1 g.k=1") || l.Dropped != 0 {
		t.Errorf("line = %+v, want the debug line", l)
	}
	if l := next(t, debug); !strings.Contains(l.Text, `msg=second dc=dc1 g.k=1 g.addr=10.0.0.1:1`) {
		t.Errorf("line = %+v, want the warning", l)
	}
	if l := next(t, info); !strings.Contains(l.Text, `"msg":"second","dc":"dc1","g":{"k":1,"addr":"10.0.0.1:1"}`) {
		t.Errorf("line = %+v, want the warning as the first line, in JSON", l)
	}
	if got := out.String(); strings.Contains(got, "first") || !strings.Contains(got, "second") {
		t.Errorf("log = %s, want only the warning", got)
	}
	debug.Close()
	debug.Close()
	if logger.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("Enabled(debug) = true after Close, want false")
	}
}

func TestTail_SlowViewerDropsLines(t *testing.T) {
	tail, logger, _ := newLog()
	slow, fast := open(t, tail, "debug", "text"), open(t, tail, "debug", "text")
	for range queueLength + 3 {
		logger.Debug("burst")
		next(t, fast)
	}
	for range queueLength {
		if l := next(t, slow); l.Dropped != 0 {
			t.Fatalf("line = %+v, want none dropped before it", l)
		}
	}
	logger.Debug("after", "text", strings.Repeat("x", maxLine))
	if l := next(t, slow); l.Dropped != 3 || !strings.Contains(l.Text, "msg=after") || len(l.Text) != maxLine {
		t.Errorf("line = %d bytes, %d dropped, want %d bytes and 3", len(l.Text), l.Dropped, maxLine)
	}
}

func TestTail_Limits(t *testing.T) {
	tail, _, _ := newLog()
	for range MaxViewers {
		open(t, tail, "warn", "text")
	}
	_, err := tail.Open("warn", "text")
	if _, ok := errors.AsType[*TooManyError](err); !ok {
		t.Errorf("Open() = %v, want a TooManyError", err)
	}
	for _, bad := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, err := tail.Open(bad[0], bad[1]); err == nil {
			t.Errorf("Open(%q) = nil, want an error", bad)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (*tail.viewers.Load())[0].Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next() = %v, want context.Canceled", err)
	}
}

func BenchmarkHandle_NoViewer(b *testing.B) {
	tail := New()
	logger := slog.New(tail.Handler(slog.DiscardHandler)).With("dc", "dc1")
	for b.Loop() {
		logger.Debug("line")
	}
}
