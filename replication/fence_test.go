// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// delayedStore is a store that calls before once, at the next commit. It counts
// the commits.
type delayedStore struct {
	resource.Backend
	before  func()
	commits int
}

func (s *delayedStore) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.commits++
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	return s.Backend.Commit(ctx, ops...)
}

// A write that Writable permits before a demotion fails if the store receives
// the write after the demotion.
func TestFenced(t *testing.T) {
	fed := &testFederation{t: t}
	dc1 := fed.add("dc1", "dc1")
	dc1.waitPrimary("dc1")
	write := func(store resource.Backend, name string) error {
		put := resource.PutOp(newResource(t, docType, name, "1"), "")
		stored, err := dc1.manager.Fenced(store).Commit(t.Context(), put)
		if err == nil && (len(stored) != 1 || stored[0].GetId().GetName() != name) {
			t.Errorf("Commit() = %v, want %s", stored, name)
		}
		return err
	}
	if err := write(dc1.store, "a"); err != nil {
		t.Fatal(err)
	}
	if err := write(dc1.store, "a"); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("Commit() of an existing resource = %v, want ErrConflict", err)
	}
	demoted := &pb.Primary{Datacenter: "dc1", Complete: true, HandedTo: "dc2"}
	active := &pb.Primary{Datacenter: "dc1", Complete: true}
	setState := func(states ...*pb.Primary) {
		t.Helper()
		for _, st := range states {
			setPrimary(t, dc1.manager, st)
		}
	}
	store := &delayedStore{Backend: dc1.store, before: func() { setState(demoted) }}
	if err := write(store, "late"); !errors.Is(err, resource.ErrFederated) {
		t.Errorf("Commit() after a demotion = %v, want ErrFederated", err)
	}
	setState(active)
	store = &delayedStore{Backend: dc1.store, before: func() { setState(demoted, active) }}
	if err := write(store, "twice"); err != nil || store.commits != 2 {
		t.Errorf("Commit() after a canceled demotion = %v in %d commits, want nil in 2", err, store.commits)
	}
	for name, stored := range map[string]bool{"a": true, "late": false, "twice": true} {
		_, err := dc1.store.Read(t.Context(), resource.Eventual, resource.ID(docType, name))
		if (err == nil) != stored {
			t.Errorf("Read(%s) = %v, want success %v", name, err, stored)
		}
	}
}
