// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// TestRunWhileLeader checks that only the leader runs the function, and that
// two calls on one server never overlap.
func TestRunWhileLeader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		all := group(t, pipes(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		began := make(chan *Store)
		for _, s := range values(all) {
			var running atomic.Bool
			wg.Go(func() {
				err := s.RunWhileLeader(ctx, func(ctx context.Context) error {
					if !running.CompareAndSwap(false, true) {
						t.Errorf("%s runs two calls of the function, want one at a time", s.cfg.Node)
					}
					defer running.Store(false)
					if !s.IsLeader() {
						t.Errorf("IsLeader() of %s in the function = false, want true", s.cfg.Node)
					}
					began <- s
					<-ctx.Done()
					time.Sleep(10 * time.Second) // RunWhileLeader must wait for the function
					return ctx.Err()
				})
				if err != nil {
					t.Errorf("RunWhileLeader() = %v, want nil", err)
				}
			})
		}
		at := <-began
		for range 5 {
			if err := at.TransferLeadership(ctx); err != nil {
				t.Fatal(err)
			}
			next := <-began
			if next == at {
				t.Errorf("leader after TransferLeadership() = %s, want another server", at.cfg.Node)
			}
			at = next
		}
		cancel()
		wg.Wait()
	})
}

// TestRunWhileLeader_Results checks for which results RunWhileLeader calls the
// function again.
func TestRunWhileLeader_Results(t *testing.T) {
	s := single(t)
	boom := errors.New("boom")
	if err := s.RunWhileLeader(t.Context(), func(context.Context) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("RunWhileLeader() = %v, want the error of the function", err)
	}
	calls := 0
	err := s.RunWhileLeader(t.Context(), func(context.Context) error {
		if calls++; calls < 3 {
			return resource.ErrNotLeader
		}
		return boom
	})
	if calls != 3 || !errors.Is(err, boom) {
		t.Errorf("RunWhileLeader() = %v after %d calls, want %v after 3", err, calls, boom)
	}

	ctx, cancel := context.WithCancel(t.Context())
	if err := s.RunWhileLeader(ctx, func(context.Context) error { cancel(); return boom }); err != nil {
		t.Errorf("RunWhileLeader() with a cancelled context = %v, want nil", err)
	}

	// After a nil result, the function is not called again in the same term.
	donec := make(chan struct{})
	errc := make(chan error, 1)
	go func() {
		errc <- s.RunWhileLeader(t.Context(), func(context.Context) error { close(donec); return nil })
	}()
	<-donec
	s.Close()
	if err := <-errc; !errors.Is(err, resource.ErrClosed) {
		t.Errorf("RunWhileLeader() of a closed store = %v, want ErrClosed", err)
	}
}

// TestLeaderChanged checks that a later change closes the channel.
func TestLeaderChanged(t *testing.T) {
	s := mustOpen(t, loopback(t).config(t, "a", t.TempDir()))
	changed := s.LeaderChanged()
	if node, ok := s.Leader(); ok {
		t.Errorf("Leader() before Bootstrap = %q, want none", node)
	}
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	<-changed
	awaitLeader(t, s)
	if node, ok := s.Leader(); !ok || node != "a" {
		t.Errorf("Leader() = %q, %v, want a", node, ok)
	}
	changed = s.LeaderChanged()
	s.Close()
	<-changed
	if node, ok := s.Leader(); ok || s.IsLeader() {
		t.Errorf("Leader() after Close = %q, %t, IsLeader() = %t, want none and false", node, ok, s.IsLeader())
	}
}
