// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A query that waits leaves its turn to others, and has one again before it goes on.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := make(Turns, 1)
		one := turns.TryBegin()
		if one == nil || turns.TryBegin() != nil {
			t.Fatal("not one turn")
		}
		var took time.Duration
		done := make(chan error)
		go func() {
			began := time.Now()
			err := resting(WithTurn(t.Context(), one), func() error { time.Sleep(time.Second); return nil })
			took = time.Since(began)
			done <- err
		}()
		synctest.Wait()
		two, err := turns.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		two.End()
		two.End()
		if err := <-done; err != nil || took != 5*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Begin(ctx); err != context.DeadlineExceeded {
			t.Errorf("while there is none: %v", err)
		}
		one.End()
		if len(turns) != 0 {
			t.Error("a turn is left")
		}

		// One that is ended while it waits has none thereafter.
		late := turns.TryBegin()
		if err := resting(WithTurn(t.Context(), late), func() error { late.End(); return nil }); err != nil || len(turns) != 0 {
			t.Errorf("ended while it waited: %v, %d turns are left", err, len(turns))
		}
		if err := resting(t.Context(), func() error { return nil }); err != nil {
			t.Errorf("no turn: %v", err)
		}
		if turn, err := Turns(nil).Begin(t.Context()); err != nil || turn == nil {
			t.Errorf("no bound: %v", err)
		}
	})
}
