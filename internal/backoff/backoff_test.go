// SPDX-License-Identifier: MPL-2.0

package backoff

import (
	"context"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// checkJitter checks that got is base plus jitter of up to a quarter.
func checkJitter(t *testing.T, call string, got, base time.Duration) {
	t.Helper()
	if got < base || got >= base+base/4 {
		t.Errorf("%s = %v, want at least %v and less than %v", call, got, base, base+base/4)
	}
}

func TestNext_DoublesUpToMax(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: 300 * time.Millisecond}
	for _, want := range []time.Duration{100, 200, 300, 300} {
		checkJitter(t, "Next()", b.Next(), want*time.Millisecond)
	}
	b.Reset()
	checkJitter(t, "Next() after Reset", b.Next(), 100*time.Millisecond)
}

func TestDelay(t *testing.T) {
	if got := Delay(0, time.Second, time.Minute); got != 0 {
		t.Errorf("Delay(0) = %v, want 0", got)
	}
	checkJitter(t, "Delay(1)", Delay(1, time.Second, time.Minute), time.Second)
	checkJitter(t, "Delay(3)", Delay(3, time.Second, time.Minute), 4*time.Second)
	checkJitter(t, "Delay(1000)", Delay(1000, time.Second, time.Minute), time.Minute)
}

func TestSleep(t *testing.T) {
	t.Run("full time", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			start := time.Now()
			if woken := Sleep(t.Context(), time.Second, nil); woken {
				t.Error("Sleep() = true, want false without a wake channel")
			}
			if got := time.Since(start); got != time.Second {
				t.Errorf("Sleep() took %v, want 1s", got)
			}
		})
	})
	t.Run("woken", func(t *testing.T) {
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		if woken := Sleep(t.Context(), time.Hour, wake); !woken {
			t.Error("Sleep() = false, want true when the wake channel is ready")
		}
	})
	t.Run("context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if woken := Sleep(ctx, time.Hour, nil); woken {
			t.Error("Sleep() = true, want false when the context ended")
		}
	})
}
