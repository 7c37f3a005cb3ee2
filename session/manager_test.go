// SPDX-License-Identifier: MPL-2.0

package session

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// slowStore needs 100 ms to list all sessions.
type slowStore struct {
	*resourcetest.Store
	lists atomic.Int64 // of all sessions
}

func (s *slowStore) List(
	ctx context.Context, c resource.Consistency, q resource.Query,
) ([]*pb.Resource, uint64, error) {
	if q == (resource.Query{Type: Type}) {
		s.lists.Add(1)
		time.Sleep(100 * time.Millisecond)
	}
	return s.Store.List(ctx, c, q)
}

// TestManager_BoundsComparisons creates ten sessions per second for a minute.
// Each comparison takes 100 ms, and they take a twentieth of the time.
func TestManager_BoundsComparisons(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := &slowStore{Store: resourcetest.NewStore()}
		defer b.Close()
		m, err := NewManager(ManagerConfig{
			Backend: b, Locked: Type, Confirm: func(context.Context) error { return nil }, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		for i := range 600 {
			r, err := resource.New(Type, fmt.Sprint("s", i), &pb.Session{Node: "n", Behavior: BehaviorRelease})
			if err == nil {
				_, err = b.Commit(ctx, resource.PutOp(r, ""))
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := b.lists.Load(); n < 25 || n > 32 {
			t.Errorf("comparisons in a minute = %d, want 25 to 32", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}
