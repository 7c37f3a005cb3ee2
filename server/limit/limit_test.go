// SPDX-License-Identifier: MPL-2.0

package limit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

var client = tlsutil.Peer{Role: tlsutil.RoleClient, Node: "web1", DC: "dc1"}

func one(tlsutil.Peer) int64 { return 1 }

func TestTryAcquire_BoundsEachPeer(t *testing.T) {
	l := New(one)
	held := l.TryAcquire(client)
	if held == nil {
		t.Fatal("TryAcquire() = nil for the first slot, want a slot")
	}
	if got := l.TryAcquire(client); got != nil {
		t.Errorf("TryAcquire() = %v while the only slot is held, want nil", got)
	}
	other := l.TryAcquire(tlsutil.Peer{Role: tlsutil.RoleClient, Node: "web2", DC: "dc1"})
	if other == nil {
		t.Fatal("TryAcquire() = nil for another peer, want a slot")
	}
	held.Release()
	held.Release()
	again := l.TryAcquire(client)
	if again == nil {
		t.Fatal("TryAcquire() = nil after Release, want a slot")
	}
	if got := l.TryAcquire(client); got != nil {
		t.Errorf("TryAcquire() = %v after the second Release of another slot, want nil", got)
	}
	again.Release()
	other.Release()
	if got := len(l.peers); got != 0 {
		t.Errorf("%d peers are kept after all slots were released, want 0", got)
	}
}

func TestAcquire_EndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(one)
		held := l.TryAcquire(client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Acquire(ctx, client); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire() = %v while no slot is free, want %v", err, context.DeadlineExceeded)
		}
		held.Release()
		if got := len(l.peers); got != 0 {
			t.Errorf("%d peers are kept, want 0", got)
		}
	})
}

// A request that waits leaves its slot to others, and has one again before it
// goes on.
func TestPause_ReleasesSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(one)
		first := l.TryAcquire(client)
		var took time.Duration
		done := make(chan error)
		go func() {
			began := time.Now()
			err := Pause(NewContext(t.Context(), first), func() error { time.Sleep(time.Second); return nil })
			took = time.Since(began)
			done <- err
		}()
		synctest.Wait()
		second, err := l.Acquire(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		second.Release()
		if err := <-done; err != nil || took != 5*time.Second {
			t.Errorf("Pause() = %v after %v, want nil after %v", err, took, 5*time.Second)
		}
		if got := l.TryAcquire(client); got != nil {
			t.Errorf("TryAcquire() = %v after Pause, want nil: the slot is held again", got)
		}
		first.Release()
		if got := len(l.peers); got != 0 {
			t.Errorf("%d peers are kept, want 0", got)
		}
	})
}

func TestPause_KeepsReleasedSlotReleased(t *testing.T) {
	l := New(one)
	s := l.TryAcquire(client)
	if err := Pause(NewContext(t.Context(), s), func() error { s.Release(); return nil }); err != nil {
		t.Errorf("Pause() = %v, want nil", err)
	}
	if got := l.TryAcquire(client); got == nil {
		t.Error("TryAcquire() = nil after the slot was released during Pause, want a slot")
	}
}

func TestPause_WithoutSlot(t *testing.T) {
	want := fmt.Errorf("failed")
	if got := Pause(t.Context(), func() error { return want }); !errors.Is(got, want) {
		t.Errorf("Pause() = %v, want %v", got, want)
	}
}
