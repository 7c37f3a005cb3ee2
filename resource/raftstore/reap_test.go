// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestReap_AfterRestart checks that a leader completes a deletion after a
// restart.
func TestReap_AfterRestart(t *testing.T) {
	nw := loopback(t)
	dir := t.TempDir()
	s := mustOpen(t, nw.config(t, "a", dir))
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	owner := put(t, s, "owner", "1")
	const owned = 3*resource.MaxCascade + 1
	var ops []*pb.Op
	for i := range owned {
		r := thing(t, "n"+sprint(i), "1")
		r.Owner = owner.Id
		ops = append(ops, resource.PutOp(r, ""))
	}
	ops = append(ops, resource.RemoveOp(owner.Id, "")) // nothing reaps yet
	if _, err := s.Commit(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = mustOpen(t, nw.config(t, "a", dir))
	awaitLeader(t, s)
	count := func(typ *pb.Type) (int, uint64) {
		all, index, err := s.List(t.Context(), resource.Strong, resource.Query{Type: typ})
		if err != nil {
			t.Fatal(err)
		}
		return len(all), index
	}
	if left, _ := count(testType); left != owned-resource.MaxCascade {
		t.Errorf("resources after the restart = %d, want %d", left, owned-resource.MaxCascade)
	}
	stones, index := count(resource.TombstoneType)
	if stones != 1 {
		t.Errorf("tombstones = %d, want 1", stones)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if err := s.RunWhileLeader(ctx, func(ctx context.Context) error {
			return reap(ctx, s)
		}); err != nil {
			t.Error(err)
		}
	})
	for stones > 0 {
		if err := s.Wait(ctx, resource.Query{Type: resource.TombstoneType}, index); err != nil {
			t.Fatal(err)
		}
		stones, index = count(resource.TombstoneType)
	}
	if left, _ := count(testType); left != 0 {
		t.Errorf("resources after ReapOnce() = %d, want 0", left)
	}
}

// reap deletes owned resources as tombstones appear, until ctx ends.
func reap(ctx context.Context, s *Store) error {
	for {
		index, err := resource.ReapOnce(ctx, s, testLogger())
		if err == nil {
			err = s.Wait(ctx, resource.Query{Type: resource.TombstoneType}, index)
		}
		if err != nil {
			return err
		}
	}
}
