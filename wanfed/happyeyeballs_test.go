// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/testutil"
)

func TestHappyEyeballs(t *testing.T) {
	const ms = time.Millisecond
	type attempt struct {
		duration time.Duration
		succeeds bool
	}
	for _, tt := range []struct {
		name         string
		attempts     []attempt
		wantWinner   int // -1: none
		wantDuration time.Duration
		wantStarted  int
	}{
		{"the first succeeds", []attempt{{100 * ms, true}, {0, true}}, 0, 100 * ms, 1},
		{"a silent attempt costs one delay", []attempt{{time.Hour, true}, {10 * ms, true}}, 1, 260 * ms, 2},
		{"a failure costs no delay", []attempt{{10 * ms, false}, {20 * ms, true}}, 1, 30 * ms, 2},
		{"two silent attempts", []attempt{{time.Hour, false}, {time.Hour, false}, {0, true}}, 2, 500 * ms, 3},
		{"a slow first attempt wins", []attempt{{300 * ms, true}, {100 * ms, true}}, 0, 300 * ms, 2},
		{"all fail", []attempt{{10 * ms, false}, {20 * ms, false}}, -1, 30 * ms, 2},
		{"a failure restarts the delay", []attempt{{200 * ms, false}, {time.Hour, true}, {0, true}}, 2, 450 * ms, 3},
		{"no attempts", nil, -1, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				start := time.Now()
				var running atomic.Int32
				winner, won, errs := happyEyeballs(t.Context(), len(tt.attempts), 250*ms,
					func(ctx context.Context, i int) (int, error) {
						running.Add(1)
						defer running.Add(-1)
						if backoff.Sleep(ctx, tt.attempts[i].duration, nil); ctx.Err() != nil {
							return 0, context.Cause(ctx)
						}
						if !tt.attempts[i].succeeds {
							return 0, errors.New("attempt failed")
						}
						return i, nil
					}, func(int) {})
				if !won {
					winner = -1
				}
				if winner != tt.wantWinner {
					t.Errorf("winner = %d, want %d", winner, tt.wantWinner)
				}
				if got := time.Since(start); got != tt.wantDuration {
					t.Errorf("duration = %v, want %v", got, tt.wantDuration)
				}
				if len(errs) != tt.wantStarted || running.Load() != 0 {
					t.Errorf("attempts: %d started, %d still running; want %d, 0", len(errs), running.Load(),
						tt.wantStarted)
				}
			})
		})
	}
}

// A timer that is late extends a delay. In the bubbles of the other tests, no
// timer is late.
func TestBusyDelay(t *testing.T) {
	for _, tt := range []struct{ late, want time.Duration }{
		{-time.Millisecond, 0}, {0, 0}, {10 * time.Millisecond, 200 * time.Millisecond}, {time.Second, maxStagger},
	} {
		if got := busyDelay(tt.late, maxStagger); got != tt.want {
			t.Errorf("busyDelay(%v) = %v, want %v", tt.late, got, tt.want)
		}
	}
}

func TestHappyEyeballs_DiscardsLateResult(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var discarded []int
		winner, _, _ := happyEyeballs(t.Context(), 2, time.Second, func(ctx context.Context, i int) (int, error) {
			if i == 0 {
				time.Sleep(3 * time.Second) // this attempt ignores ctx
			}
			return i, nil
		}, func(i int) { discarded = append(discarded, i) })
		if winner != 1 || !slices.Equal(discarded, []int{0}) {
			t.Errorf("winner = %d, discarded = %v, want 1 and [0]", winner, discarded)
		}
	})
}

// TestHappyEyeballs_Context proves that no attempt starts after ctx has ended.
func TestHappyEyeballs_Context(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, won, errs := happyEyeballs(ctx, 5, 250*time.Millisecond, func(ctx context.Context, i int) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}, func(int) {})
		if took := time.Since(start); won || len(errs) != 2 || took != 300*time.Millisecond {
			t.Errorf("happyEyeballs() = won %v, errors %v after %v; want false, 2 errors after 300ms", won, errs, took)
		}
	})
}
