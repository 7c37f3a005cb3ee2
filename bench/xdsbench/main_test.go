// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContenders runs each contender once in this process, with few proxies.
func TestContenders(t *testing.T) {
	if got := slices.Sorted(maps.Keys(contenders)); !slices.Equal(got, slices.Sorted(slices.Values(names))) {
		t.Fatalf("contenders = %v, want %v", got, names)
	}
	l := load{proxies: 3, datacenters: 20, changes: 3, limit: time.Minute, settle: 100 * time.Millisecond}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			got := measured(t, name, l, nil)
			if got.stopped != "" {
				t.Fatalf("measure() = %+v, want all figures", got)
			}
			figures := got.figures
			for _, r := range rows {
				if _, ok := figures[r.name]; !ok {
					t.Errorf("measure() has no %s, want one: %v", r.name, figures)
				}
			}
			b, err := json.Marshal(figures)
			if err != nil {
				t.Fatal(err)
			}
			if full, change := figures["start/bytes"]*1e6, figures["change/bytes"]*1e3; change <= 0 || change > full/10 {
				t.Errorf("bytes of a change = %v, want at most a tenth of %v: %s", change, full, b)
			}
			if full, again := figures["start/bytes"]*1e6, figures["reconnect/bytes"]*1e3; again <= 0 || again > full/10 {
				t.Errorf("bytes of a reconnection = %v, want at most a tenth of %v: %s", again, full, b)
			}
		})
	}
}

// measured measures a contender in this process. drop reports whether a command
// is lost. Nil: no command is lost.
func measured(t *testing.T, name string, l load, drop func(command string) bool) result {
	t.Helper()
	commands, in := io.Pipe()
	out, replies := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := serve(t.Context(), name, l, commands, replies)
		replies.CloseWithError(errors.Join(err, io.EOF))
		served <- err
	}()
	got, err := measure(t.Context(), l, dropping{in, drop}, out)
	in.Close()
	if err := errors.Join(err, <-served); err != nil {
		t.Fatalf("measure() = %v, want nil", err)
	}
	return got
}

type dropping struct {
	io.Writer
	drop func(command string) bool
}

func (d dropping) Write(b []byte) (int, error) {
	if d.drop != nil && d.drop(string(b)) {
		return len(b), nil
	}
	return d.Writer.Write(b)
}

// A contender that exceeds the limit has the figures of the phases before, and
// fewer changes.
func TestMeasure_Limit(t *testing.T) {
	l := load{proxies: 3, datacenters: 20, changes: 1e6, limit: 3 * time.Second, settle: 100 * time.Millisecond}
	got := measured(t, "wanfed", l, nil)
	if n := got.figures["change/count"]; n < 1 || n >= 1e6 || got.stopped != "" || got.figures["reconnect/last"] == 0 {
		t.Errorf("measure() = %+v, want some changes and a reconnection", got)
	}
	got = measured(t, "wanfed", l, func(command string) bool { return strings.HasPrefix(command, "change") })
	if len(got.figures) != 4 || !strings.HasPrefix(got.stopped, "changes not completed in 3s: no reply") {
		t.Errorf("measure() without changes = %+v, want the figures of the start, and the reason", got)
	}
	l.limit = time.Nanosecond
	got = measured(t, "wanfed", l, nil)
	if len(got.figures) != 0 || !strings.HasPrefix(got.stopped, "start not completed in 1ns: ") {
		t.Errorf("measure() with a limit of 1 ns = %+v, want no figures, and the reason", got)
	}
	var table strings.Builder
	print(&table, map[[2]string][]float64{{"change/count", "wanfed"}: {3, 5, 4}}, []string{"wanfed, round 1: " + got.stopped})
	if text := table.String(); !strings.Contains(text, "| change/count, 1 | 4 | | | |\n") || !strings.HasSuffix(text, got.stopped+"\n") {
		t.Errorf("print() = %s\nwant 4 changes of wanfed and the reason", text)
	}
}
