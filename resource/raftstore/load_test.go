// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/resource"
)

// writeThrough writes to the leader of three stores until stop is closed, and
// returns the names of acknowledged resources.
func writeThrough(t testing.TB, prefix string, stores []*Store, stop <-chan struct{}) []string {
	var acked []string
	for n := 0; ; n++ {
		changed := [3]<-chan struct{}{stores[0].LeaderChanged(), stores[1].LeaderChanged(), stores[2].LeaderChanged()}
		i := slices.IndexFunc(stores, (*Store).IsLeader)
		if i < 0 {
			select {
			case <-changed[0]:
			case <-changed[1]:
			case <-changed[2]:
			case <-stop:
			}
		}
		select {
		case <-stop:
			return acked
		default:
		}
		if i < 0 {
			continue
		}
		name := prefix + sprint(n)
		_, err := stores[i].Commit(context.Background(), resource.PutOp(thing(t, name, name), ""))
		switch {
		case err == nil:
			acked = append(acked, name)
		case errors.Is(err, resource.ErrNotLeader), errors.Is(err, resource.ErrUnknownOutcome),
			errors.Is(err, resource.ErrClosed):
		default:
			t.Errorf("Commit(%s) = %v, want nil or the loss of leadership", name, err)
		}
	}
}

// awaitWrites waits until the index of s has grown by n.
func awaitWrites(t *testing.T, s *Store, n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := s.Wait(ctx, resource.Query{Type: testType}, s.state.Index()+n); err != nil {
		t.Fatal(err)
	}
}

// checkHas checks that s has the resources with all names.
func checkHas(t *testing.T, s *Store, names []string) {
	t.Helper()
	all, _, err := s.List(t.Context(), resource.Eventual, resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	stored := make(map[string]bool, len(all))
	for _, r := range all {
		stored[r.Id.Name] = true
	}
	for _, name := range names {
		if !stored[name] {
			t.Errorf("%s does not have %s, which was acknowledged", s.cfg.Node, name)
		}
	}
}

// load writes to stores in four goroutines until stop is called. stop returns
// the names of acknowledged resources.
func load(t *testing.T, prefix string, stores []*Store) (stop func() []string) {
	stopc := make(chan struct{})
	var wg sync.WaitGroup
	acked := make([][]string, 4)
	for i := range acked {
		wg.Go(func() { acked[i] = writeThrough(t, prefix+sprint(i)+"-", stores, stopc) })
	}
	return func() []string {
		close(stopc)
		wg.Wait()
		return slices.Concat(acked...)
	}
}
