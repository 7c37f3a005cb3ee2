// SPDX-License-Identifier: MPL-2.0

package slogadapter

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// demoteTest has two loggers with Demote: one for level Debug and one for level
// Info.
type demoteTest struct {
	all, info bytes.Buffer // output of the loggers
	loggers   []*slog.Logger
}

func newDemoteTest() *demoteTest {
	d := &demoteTest{}
	for _, l := range []struct {
		b     *bytes.Buffer
		level slog.Level
	}{{&d.all, slog.LevelDebug}, {&d.info, slog.LevelInfo}} {
		h := slog.NewTextHandler(l.b, &slog.HandlerOptions{Level: l.level})
		d.loggers = append(d.loggers, slog.New(Demote(h)).With("pool", "wan"))
	}
	return d
}

func (d *demoteTest) log(t *testing.T, level slog.Level, msg string, args ...any) {
	for _, l := range d.loggers {
		l.Log(t.Context(), level, msg, args...)
	}
}

func TestDemote_RepeatedLines(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		d := newDemoteTest()
		for range 5 { // the fifth line follows repeatInterval after the first one
			d.log(t, slog.LevelError, "merge refused")
			time.Sleep(repeatInterval / 4)
		}
		d.log(t, slog.LevelWarn, "another", "peer", "a")
		d.log(t, slog.LevelWarn, "another", "peer", "b")
		d.log(t, slog.LevelWarn, "another", "peer", "a")
		d.log(t, slog.LevelInfo, "state changed")
		for text, want := range map[string]int{"level=ERROR": 2, "level=WARN": 2, "level=INFO": 0, "pool=wan": 4} {
			if got := strings.Count(d.info.String(), text); got != want {
				t.Errorf("lines with %s at level Info = %d, want %d:\n%s", text, got, want, &d.info)
			}
		}
		for text, want := range map[string]int{"level=ERROR": 2, "level=DEBUG": 5, "merge refused": 5} {
			if got := strings.Count(d.all.String(), text); got != want {
				t.Errorf("lines with %s at level Debug = %d, want %d:\n%s", text, got, want, &d.all)
			}
		}
	})
}

func TestDemote_ManyLines(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		d := newDemoteTest()
		for i := range 3 * maxLines {
			d.log(t, slog.LevelWarn, fmt.Sprint("from a peer: ", i))
		}
		if got := len(d.loggers[0].Handler().(demoteHandler).repeats.last); got > maxLines {
			t.Errorf("recorded lines = %d, want at most %d", got, maxLines)
		}
		if got := strings.Count(d.info.String(), "level="); got != maxLines {
			t.Errorf("lines at level Info = %d, want %d", got, maxLines)
		}
		d.info.Reset()
		time.Sleep(2 * repeatInterval)
		d.log(t, slog.LevelWarn, "later")
		if got := strings.Count(d.info.String(), "level=WARN"); got != 1 {
			t.Errorf("lines at level Info after the interval = %d, want 1", got)
		}
	})
}
