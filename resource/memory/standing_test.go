// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"errors"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestStandingSnapshot: a watch that does not read its snapshot to the end is ended when much has changed and it has read nothing for a
// while, and keeps nothing alive then, also while nobody asks it for an event; one that reads goes on, and so does one that stands
// still while little changes.
func TestStandingSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		defer s.Close()
		const much = 20
		s.state.limits.events = much
		for n := range 100 {
			put(t, s, "n"+strconv.Itoa(n))
		}
		replaced, err := s.Read(t.Context(), resource.Eventual, resource.ID(testType, "n50"))
		if err != nil {
			t.Fatal(err)
		}
		old := weak.Make(replaced)
		replaced = nil
		standing, reading := open(t, s), open(t, s)
		put(t, s, "n50") // another one: from here on, the snapshots alone have the old
		read := func(w *watch) {
			t.Helper()
			if _, err := w.Next(t.Context()); err != nil {
				t.Error(err)
			}
		}
		change := func(times, snapshots int) { // something that none of them follows
			t.Helper()
			for range times {
				if _, err := s.Commit(t.Context(), resource.PutOp(other(t), resource.AnyVersion)); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(s.state.snapshots.watches); n != snapshots {
				t.Errorf("%d snapshots are kept, want %d", n, snapshots)
			}
		}
		read(standing)
		read(reading)
		change(much, 2) // it looks for the first time
		time.Sleep(standLimit - time.Second)
		change(much, 2)
		read(reading)
		time.Sleep(time.Second)
		change(much, 1)
		if _, err := standing.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
			t.Errorf("who stood still gets %v", err)
		}
		if n, err := drain(t, reading); n != 98+1+2 || err != nil {
			t.Errorf("who reads gets %d more, %v", n, err)
		}
		change(0, 0)
		runtime.GC()
		if old.Value() != nil {
			t.Error("what was replaced is kept")
		}
		runtime.KeepAlive(standing)

		quiet := open(t, s)
		time.Sleep(time.Hour)
		change(much-1, 1)
		if n, err := drain(t, quiet); n != 101 || err != nil {
			t.Errorf("who stood still while little changed gets %d, %v", n, err)
		}
	})
}

var otherType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Other"}

func other(t *testing.T) *pb.Resource {
	t.Helper()
	r, err := resource.New(otherType, "x", &pb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
