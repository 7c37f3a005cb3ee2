// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
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
	l := load{proxies: 3, datacenters: 20, changes: 3, settle: 100 * time.Millisecond}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			commands, in := io.Pipe()
			out, replies := io.Pipe()
			served := make(chan error, 1)
			go func() {
				err := serve(t.Context(), name, l, commands, replies)
				replies.CloseWithError(errors.Join(err, io.EOF))
				served <- err
			}()
			figures, err := measure(t.Context(), l, in, out)
			in.Close()
			if err := errors.Join(err, <-served); err != nil {
				t.Fatalf("measure() = %v, want nil", err)
			}
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
