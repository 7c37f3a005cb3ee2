// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// delayed is a store whose next commit runs the function before it.
type delayed struct {
	resource.Backend
	before  func()
	commits int
}

func (l *delayed) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	l.commits++
	if f := l.before; f != nil {
		l.before = nil
		f()
	}
	return l.Backend.Commit(ctx, ops...)
}

// A write that was admitted before a demotion, and reaches the store after it, is
// not acknowledged.
func TestFenced(t *testing.T) {
	d := &dcs{t: t}
	one := d.add("dc1", "dc1")
	one.is("dc1")
	write := func(store resource.Backend, name string) error {
		stored, err := one.manager.Fenced(store).Commit(t.Context(), resource.PutOp(record(t, docType, name, "1"), ""))
		if err == nil && (len(stored) != 1 || stored[0].GetId().GetName() != name) {
			t.Errorf("Commit() = %v, want %s", stored, name)
		}
		return err
	}
	if err := write(one.store, "a"); err != nil {
		t.Fatal(err)
	}
	if err := write(one.store, "a"); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("Commit() of an existing resource = %v, want ErrConflict", err)
	}
	writeRecord := func(m *pb.Primary) {
		t.Helper()
		if err := one.manager.store(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	l := &delayed{Backend: one.store, before: func() { writeRecord(&pb.Primary{Datacenter: "dc1", Complete: true, HandedTo: "dc2"}) }}
	if err := write(l, "late"); !errors.Is(err, resource.ErrFederated) {
		t.Errorf("Commit() after a demotion = %v, want ErrFederated", err)
	}
	writeRecord(&pb.Primary{Datacenter: "dc1", Complete: true})
	l = &delayed{Backend: one.store, before: func() {
		writeRecord(&pb.Primary{Datacenter: "dc1", Complete: true, HandedTo: "dc2"})
		writeRecord(&pb.Primary{Datacenter: "dc1", Complete: true})
	}}
	if err := write(l, "twice"); err != nil || l.commits != 2 {
		t.Errorf("Commit() after a cancelled demotion = %v in %d commits, want nil in 2", err, l.commits)
	}
	for name, stored := range map[string]bool{"a": true, "late": false, "twice": true} {
		id := record(t, docType, name, "").Id
		id.Uid = ""
		if _, err := one.store.Read(t.Context(), resource.Eventual, id); (err == nil) != stored {
			t.Errorf("Read(%s) = %v, want success %v", name, err, stored)
		}
	}
}
