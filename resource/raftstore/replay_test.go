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

// TestReplay: entries that were applied ahead are not applied again, what comes after them is, and there is no snapshot that has more than
// Raft says.
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
	m, failed := open()
	if n, err := m.replay(logs, 1, last); n != maxBatch+2 || err != nil || index(m) != last-1 {
		t.Errorf("%d entries ahead, %v, state at %d", n, err, index(m))
	}
	if n, err := m.replay(logs, 1, last); n != 0 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
	r, err := m.state.Read(t.Context(), first.Id)
	if err != nil || r.Version != "2" {
		t.Errorf("x is %v, %v", r, err)
	}
	for from := 0; from < len(all); from += 100 {
		if _, err := m.Snapshot(); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			t.Errorf("snapshot at entry %d: %v", from, err)
		}
		for i, res := range m.ApplyBatch(all[from:min(from+100, len(all))]) {
			if is, ok := res.(result); ok && is.err != nil {
				t.Errorf("entry %d: %v", from+i+1, is.err)
			}
		}
	}
	if _, err := m.Snapshot(); err != nil || *failed != nil || index(m) != last+1 {
		t.Errorf("%v, %v, state at %d", err, *failed, index(m))
	}

	m, _ = open() // Raft comes first
	m.ApplyBatch(all[:2])
	if n, err := m.replay(logs, 1, last); n != 0 || err != nil || index(m) != 2 {
		t.Errorf("after Raft: %d, %v, state at %d", n, err, index(m))
	}

	m, failed = open() // the log was another
	if _, err := m.replay(logs, 1, 2); err != nil {
		t.Fatal(err)
	}
	other := *all[1]
	other.Term = 3
	if m.Apply(&other); *failed == nil || !strings.Contains((*failed).Error(), "another server led") {
		t.Errorf("failed with %v", *failed)
	}

	m, _ = open() // a gap
	if n, err := m.replay(logs, last, last+5); n != 0 || !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("%d, %v", n, err)
	}
}
