// SPDX-License-Identifier: MPL-2.0

package hclogs

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestDemote: what a library says again and again shows once in a while, at its level, and always at Debug.
func TestDemote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all, info bytes.Buffer
		log := func(b *bytes.Buffer, level slog.Level) *slog.Logger {
			return slog.New(Demote(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level}))).With("pool", "wan")
		}
		loggers := []*slog.Logger{log(&all, slog.LevelDebug), log(&info, slog.LevelInfo)}
		say := func(level slog.Level, msg string, args ...any) {
			for _, l := range loggers {
				l.Log(t.Context(), level, msg, args...)
			}
		}
		for range 5 {
			say(slog.LevelError, "merge refused")
			time.Sleep(repeatAfter / 4) // in the bubble: no time passes
		}
		say(slog.LevelWarn, "another", "peer", "a")
		say(slog.LevelWarn, "another", "peer", "b")
		say(slog.LevelWarn, "another", "peer", "a")
		say(slog.LevelInfo, "no news")
		for what, n := range map[string]int{"level=ERROR": 2, "level=WARN": 2, "level=INFO": 0, "pool=wan": 4} {
			if got := strings.Count(info.String(), what); got != n {
				t.Errorf("%d lines with %s, want %d:\n%s", got, what, n, info.String())
			}
		}
		for what, n := range map[string]int{"level=ERROR": 2, "level=DEBUG": 5, "merge refused": 5} {
			if got := strings.Count(all.String(), what); got != n {
				t.Errorf("%d lines with %s, want %d:\n%s", got, what, n, all.String())
			}
		}
		for i := range 3 * maxShown {
			say(slog.LevelWarn, fmt.Sprint("from a peer: ", i))
		}
		if n := len(loggers[0].Handler().(demoted).shown.at); n > maxShown {
			t.Errorf("%d lines are remembered", n)
		}
		if n := strings.Count(info.String(), "level="); n != maxShown+1 { // one of them was said twice
			t.Errorf("%d lines are shown, though many differ", n)
		}
		info.Reset()
		time.Sleep(2 * repeatAfter)
		say(slog.LevelWarn, "later")
		if n := strings.Count(info.String(), "level=WARN"); n != 1 {
			t.Errorf("%d lines are shown later", n)
		}
	})
}
