// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// TestReplay checks that the state machine skips replayed entries when Raft
// applies them, and applies later entries. It takes no snapshot before Raft has
// applied the replayed entries.
func TestReplay(t *testing.T) {
	logs := raft.NewInmemStore()
	var all []*raft.Log
	add := func(typ raft.LogType, ops ...*pb.Op) {
		b, err := proto.Marshal(&pb.Batch{Ops: ops})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &raft.Log{Index: uint64(len(all) + 1), Term: 2, Type: typ, Data: b})
	}
	first := thing(t, "x", "1")
	add(raft.LogConfiguration)
	add(raft.LogCommand, resource.PutOp(first, ""))
	add(raft.LogCommand, resource.PutOp(thing(t, "x", "no"), "")) // refused
	for range maxBatch {
		add(raft.LogCommand, resource.OverwriteOp(thing(t, "y", "1"), false))
	}
	add(raft.LogNoop)
	if err := logs.StoreLogs(all); err != nil {
		t.Fatal(err)
	}
	last := uint64(len(all))
	add(raft.LogCommand, resource.PutOp(thing(t, "z", "1"), ""))

	open := func() (*machine, *error) {
		var failed error
		m := &machine{state: memory.NewState(), restored: func() {}, fail: func(err error) { failed = err }}
		t.Cleanup(func() { m.state.Close() })
		return m, &failed
	}
	index := func(m *machine) uint64 { return m.state.Index() }
	t.Run("before Raft", func(t *testing.T) {
		m, failed := open()
		if n, err := m.replay(logs, 1, last); n != maxBatch+2 || err != nil || index(m) != last-1 {
			t.Errorf("replay() = %d, %v, state at %d, want %d, nil, state at %d", n, err, index(m), maxBatch+2, last-1)
		}
		if n, err := m.replay(logs, 1, last); n != 0 || err != nil {
			t.Errorf("second replay() = %d, %v, want 0", n, err)
		}
		r, err := m.state.Read(t.Context(), first.Id)
		if err != nil || r.Version != "2" {
			t.Errorf("Read(x) = %v, %v, want version 2", r, err)
		}
		for from := 0; from < len(all); from += 100 {
			if _, err := m.Snapshot(); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
				t.Errorf("Snapshot() at entry %d = %v, want ErrNothingNewToSnapshot", from, err)
			}
			for i, v := range m.ApplyBatch(all[from:min(from+100, len(all))]) {
				if r, ok := v.(result); ok && r.err != nil {
					t.Errorf("ApplyBatch() result of entry %d = %v, want nil", from+i+1, r.err)
				}
			}
		}
		if _, err := m.Snapshot(); err != nil || *failed != nil || index(m) != last+1 {
			t.Errorf("Snapshot() = %v, failure %v, state at %d, want nil, nil, state at %d", err, *failed,
				index(m), last+1)
		}
	})
	t.Run("after Raft", func(t *testing.T) {
		m, _ := open()
		m.ApplyBatch(all[:2])
		if n, err := m.replay(logs, 1, last); n != 0 || err != nil || index(m) != 2 {
			t.Errorf("replay() after Raft = %d, %v, state at %d, want 0, nil, state at 2", n, err, index(m))
		}
	})
	t.Run("another leader wrote the log", func(t *testing.T) {
		m, failed := open()
		if _, err := m.replay(logs, 1, 2); err != nil {
			t.Fatal(err)
		}
		other := *all[1]
		other.Term = 3
		if m.Apply(&other); *failed == nil || !strings.Contains((*failed).Error(), "another server led") {
			t.Errorf("failure after Apply() of an entry of another term = %v, want \"another server led\"", *failed)
		}
	})
	t.Run("gap in the log", func(t *testing.T) {
		m, _ := open()
		if n, err := m.replay(logs, last, last+5); n != 0 || !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("replay() of a gap = %d, %v, want 0, ErrLogNotFound", n, err)
		}
	})
}
