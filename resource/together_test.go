// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Reads that are together ask once, however many they are; one that could not learn what it must see is no answer for the others, and who
// waits for another of them obeys its own context.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var fails error
		ask := func(context.Context) error {
			asked++
			time.Sleep(time.Second)
			return fails
		}
		of := func(ctx context.Context) *together { return ctx.Value(togetherKey{}).(*together) }
		g := of(Together(t.Context()))
		var wg sync.WaitGroup
		fails = errors.New("no leader")
		for range 3 {
			wg.Go(func() {
				if err := g.once(t.Context(), ask); !errors.Is(err, fails) {
					t.Errorf("without a leader: %v", err)
				}
			})
		}
		wg.Wait()
		if asked != 3 {
			t.Errorf("asked %d times by three without an answer", asked)
		}
		fails, asked = nil, 0
		for range 5 {
			wg.Go(func() {
				if err := g.once(t.Context(), ask); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := g.once(short, ask); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no time to wait for another: %v", err)
		}
		wg.Wait()
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
		if err := of(Together(t.Context())).once(t.Context(), ask); err != nil || asked != 2 {
			t.Errorf("later ones: asked %d times, %v", asked, err)
		}
	})
}
