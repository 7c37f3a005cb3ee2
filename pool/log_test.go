// SPDX-License-Identifier: MPL-2.0

package pool

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeatedLines: what a library says again and again shows once in a while, at its level, and always at Debug.
func TestRepeatedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all, info bytes.Buffer
		log := func(b *bytes.Buffer, level slog.Level) *slog.Logger {
			return slog.New(newDemote(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level}))).With("pool", "wan")
		}
		loggers := []*slog.Logger{log(&all, slog.LevelDebug), log(&info, slog.LevelInfo)}
		say := func(level slog.Level, msg string) {
			for _, l := range loggers {
				l.Log(t.Context(), level, msg)
			}
		}
		for range 5 {
			say(slog.LevelError, "merge refused")
			time.Sleep(repeatAfter / 4) // in the bubble: no time passes
		}
		say(slog.LevelWarn, "another")
		say(slog.LevelInfo, "no news")
		for what, n := range map[string]int{"level=ERROR": 2, "level=WARN": 1, "level=INFO": 0, "pool=wan": 3} {
			if got := strings.Count(info.String(), what); got != n {
				t.Errorf("%d lines with %s, want %d:\n%s", got, what, n, info.String())
			}
		}
		for what, n := range map[string]int{"level=ERROR": 2, "level=DEBUG": 4, "merge refused": 5} {
			if got := strings.Count(all.String(), what); got != n {
				t.Errorf("%d lines with %s, want %d:\n%s", got, what, n, all.String())
			}
		}
		for i := range 3 * maxShown {
			say(slog.LevelWarn, fmt.Sprint("from a peer: ", i))
		}
		if n := len(loggers[0].Handler().(demote).shown.at); n > maxShown {
			t.Errorf("%d lines are remembered", n)
		}
	})
}

// errorList is an error as memberlist makes it.
type errorList []error

func (l errorList) Error() string {
	return fmt.Sprintf("%d errors occurred:\n\t%v\n", len(l), []error(l))
}
func (l errorList) WrappedErrors() []error { return l }

func TestOneLine(t *testing.T) {
	list := errorList{errors.New("failed to join 192.0.2.1:8300: no"), errors.New("failed to join 10.0.0.1:8300: refused")}
	got := oneLine(list, []string{"*.dc2/192.0.2.1:8300", "10.0.0.1:8300"})
	if want := "no; failed to join 10.0.0.1:8300: refused"; got.Error() != want {
		t.Errorf("got %q, want %q", got, want)
	}
	plain := errors.New("plain")
	if oneLine(plain, nil) != plain || oneLine(nil, nil) != nil {
		t.Error("another error was changed")
	}
}
