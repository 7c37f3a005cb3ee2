// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// late is a store whose next commit is held up: meanwhile is done before it.
type late struct {
	resource.Backend
	meanwhile func()
	commits   int
}

func (l *late) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	l.commits++
	if f := l.meanwhile; f != nil {
		l.meanwhile = nil
		f()
	}
	return l.Backend.Commit(ctx, ops...)
}

// TestGuard: a write that was admitted before this datacenter handed over, and comes to the store after that, is not acknowledged.
func TestGuard(t *testing.T) {
	d := &dcs{t: t}
	one := d.add("dc1", "dc1")
	one.is("dc1")
	write := func(store resource.Backend, name string) error {
		stored, err := one.primacy.Fenced(store).Commit(t.Context(), resource.PutOp(record(t, docType, name, "1"), ""))
		if err == nil && (len(stored) != 1 || stored[0].GetId().GetName() != name) {
			t.Errorf("stored %v", stored)
		}
		return err
	}
	if err := write(one.store, "a"); err != nil {
		t.Fatal(err)
	}
	if err := write(one.store, "a"); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("what is there: %v", err)
	}
	note := func(m *pb.Primary) {
		t.Helper()
		if err := one.primacy.writeRecord(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	l := &late{Backend: one.store, meanwhile: func() { note(&pb.Primary{Datacenter: "dc1", Complete: true, HandedTo: "dc2"}) }}
	if err := write(l, "late"); !errors.Is(err, resource.ErrFederated) {
		t.Errorf("a write that comes after the datacenter has handed over: %v", err)
	}
	note(&pb.Primary{Datacenter: "dc1", Complete: true})
	l = &late{Backend: one.store, meanwhile: func() {
		note(&pb.Primary{Datacenter: "dc1", Complete: true, HandedTo: "dc2"})
		note(&pb.Primary{Datacenter: "dc1", Complete: true})
	}}
	if err := write(l, "twice"); err != nil || l.commits != 2 {
		t.Errorf("a primary that has changed its mind: %v, %d commits", err, l.commits)
	}
	for name, there := range map[string]bool{"a": true, "late": false, "twice": true} {
		id := record(t, docType, name, "").Id
		id.Uid = ""
		if _, err := one.store.Read(t.Context(), resource.Eventual, id); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}
