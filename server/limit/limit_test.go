// SPDX-License-Identifier: MPL-2.0

package limit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

var client = tlsutil.Peer{Role: tlsutil.RoleClient, Node: "web1", DC: "dc1"}

// newSingle returns a PerPeer with one slot for each peer.
func newSingle() *PerPeer { return New(func(tlsutil.Peer) int64 { return 1 }) }

// wantPeers fails the test unless l stores semaphores of want peers.
func wantPeers(t *testing.T, l *PerPeer, want int) {
	t.Helper()
	if got := len(l.peers); got != want {
		t.Errorf("len(peers) = %d, want %d", got, want)
	}
}

func TestTryAcquire_LimitsEachPeer(t *testing.T) {
	l := newSingle()
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
	wantPeers(t, l, 0)
}

func TestAcquire_EndsWithContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		l := newSingle()
		held := l.TryAcquire(client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Acquire(ctx, client); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire() = %v while no slot is free, want %v", err, context.DeadlineExceeded)
		}
		held.Release()
		wantPeers(t, l, 0)
	})
}

// TestPause_ReleasesSlot proves that another request can use the slot during a
// pause, and that the pause ends only when it holds the slot again.
func TestPause_ReleasesSlot(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		l := newSingle()
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
			t.Errorf("TryAcquire() = %v after Pause, want nil, because Pause holds the slot again", got)
		}
		first.Release()
		wantPeers(t, l, 0)
	})
}

func TestPause_SlotReleasedDuringWait(t *testing.T) {
	l := newSingle()
	s := l.TryAcquire(client)
	if err := Pause(NewContext(t.Context(), s), func() error { s.Release(); return nil }); err != nil {
		t.Errorf("Pause() = %v, want nil", err)
	}
	if got := l.TryAcquire(client); got == nil {
		t.Error("TryAcquire() = nil after Release during Pause, want a slot")
	}
}

func TestPause_WithoutSlot(t *testing.T) {
	want := errors.New("failed")
	if got := Pause(t.Context(), func() error { return want }); !errors.Is(got, want) {
		t.Errorf("Pause() = %v, want %v", got, want)
	}
}
