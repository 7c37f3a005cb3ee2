// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestHappyEyeballs(t *testing.T) {
	const ms = time.Millisecond
	type runner struct {
		takes time.Duration
		ok    bool
	}
	for _, tt := range []struct {
		name    string
		runners []runner
		winner  int // -1: none
		takes   time.Duration
		started int
	}{
		{"first succeeds", []runner{{100 * ms, true}, {0, true}}, 0, 100 * ms, 1},
		{"a silent one costs one delay", []runner{{time.Hour, true}, {10 * ms, true}}, 1, 260 * ms, 2},
		{"a failure costs nothing", []runner{{10 * ms, false}, {20 * ms, true}}, 1, 30 * ms, 2},
		{"two silent ones", []runner{{time.Hour, false}, {time.Hour, false}, {0, true}}, 2, 500 * ms, 3},
		{"the slow first still wins", []runner{{300 * ms, true}, {100 * ms, true}}, 0, 300 * ms, 2},
		{"all fail", []runner{{10 * ms, false}, {20 * ms, false}}, -1, 30 * ms, 2},
		{"a failure restarts the delay", []runner{{200 * ms, false}, {time.Hour, true}, {0, true}}, 2, 450 * ms, 3},
		{"no attempts", nil, -1, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var running atomic.Int32
				got, won, errs := happyEyeballs(t.Context(), len(tt.runners), 250*ms,
					func(ctx context.Context, i int) (int, error) {
						running.Add(1)
						defer running.Add(-1)
						if !sleep(ctx, tt.runners[i].takes) {
							return 0, context.Cause(ctx)
						}
						if !tt.runners[i].ok {
							return 0, errors.New("no")
						}
						return i, nil
					}, func(int) {})
				if won != (tt.winner >= 0) || won && got != tt.winner {
					t.Errorf("winner %d, %v; want %d", got, won, tt.winner)
				}
				if took := time.Since(start); took != tt.takes || len(errs) != tt.started || running.Load() != 0 {
					t.Errorf("took %v, started %d, still running %d; want %v, %d, 0", took, len(errs), running.Load(), tt.takes,
						tt.started)
				}
			})
		})
	}
}

func TestHappyEyeballs_DiscardsLateResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var discarded []int
		got, _, _ := happyEyeballs(t.Context(), 2, time.Second, func(ctx context.Context, i int) (int, error) {
			if i == 0 {
				time.Sleep(3 * time.Second) // ignores ctx
			}
			return i, nil
		}, func(i int) { discarded = append(discarded, i) })
		if got != 1 || !slices.Equal(discarded, []int{0}) {
			t.Errorf("winner %d, discarded %v", got, discarded)
		}
	})
}

func TestHappyEyeballs_Context(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, won, errs := happyEyeballs(ctx, 5, 250*time.Millisecond, func(ctx context.Context, i int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}, func(int) {})
		if won || len(errs) != 2 || time.Since(start) != 300*time.Millisecond {
			t.Errorf("won %v, %v after %v", won, errs, time.Since(start))
		}
	})
}
