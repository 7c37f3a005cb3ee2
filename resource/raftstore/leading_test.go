// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/resource"
)

// TestRunWhileLeader: of all servers one runs the function, from when it may rely on what it reads until it loses the term;
// never two of one server.
func TestRunWhileLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := group(t, pipes(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		began := make(chan *Store)
		for _, s := range values(all) {
			var running atomic.Bool
			wg.Go(func() {
				err := s.RunWhileLeader(ctx, func(ctx context.Context) error {
					if !running.CompareAndSwap(false, true) {
						t.Errorf("%s runs it twice at once", s.cfg.Node)
					}
					defer running.Store(false)
					if !s.IsLeader() {
						t.Errorf("%s runs it, and does not lead", s.cfg.Node)
					}
					began <- s
					<-ctx.Done()
					time.Sleep(10 * time.Second) // joined, however long it takes
					return ctx.Err()
				})
				if err != nil {
					t.Errorf("RunWhileLeader: %v", err)
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
				t.Errorf("%s leads again after it gave leadership away", at.cfg.Node)
			}
			at = next
		}
		cancel()
		wg.Wait()
	})
}

// TestRunWhileLeaderEnds: what the function returns decides.
func TestRunWhileLeaderEnds(t *testing.T) {
	s := single(t)
	boom := errors.New("boom")
	if err := s.RunWhileLeader(t.Context(), func(context.Context) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("an error: %v", err)
	}
	calls := 0
	err := s.RunWhileLeader(t.Context(), func(context.Context) error {
		if calls++; calls < 3 {
			return resource.ErrNotLeader
		}
		return boom
	})
	if calls != 3 || !errors.Is(err, boom) {
		t.Errorf("ErrNotLeader while it leads: %d calls, %v; want another call", calls, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	if err := s.RunWhileLeader(ctx, func(context.Context) error { cancel(); return boom }); err != nil {
		t.Errorf("the context ended: %v", err)
	}

	// Done for this term: not called again, until the store closes.
	donec := make(chan struct{})
	errc := make(chan error, 1)
	go func() {
		errc <- s.RunWhileLeader(t.Context(), func(context.Context) error { close(donec); return nil })
	}()
	<-donec
	s.Close()
	if err := <-errc; !errors.Is(err, resource.ErrClosed) {
		t.Errorf("the store was closed: %v", err)
	}
}

// TestLeaderChanged: a channel taken before asking is closed by the change that the answer does not show yet.
func TestLeaderChanged(t *testing.T) {
	s := mustOpen(t, loopback(t).config(t, "a", t.TempDir()))
	changed := s.LeaderChanged()
	if node, ok := s.Leader(); ok {
		t.Errorf("leader %q before bootstrap", node)
	}
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	<-changed
	awaitLeader(t, s)
	if node, ok := s.Leader(); !ok || node != "a" {
		t.Errorf("leader %q, %v", node, ok)
	}
	changed = s.LeaderChanged()
	s.Close()
	<-changed
	if node, ok := s.Leader(); ok || s.IsLeader() {
		t.Errorf("leader %q after Close", node)
	}
}
