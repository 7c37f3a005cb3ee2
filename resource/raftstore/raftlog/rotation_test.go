// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// deleted is the number of entries that makeSealedTail deletes from the
// beginning of its log.
const deleted = 4

// makeSealedTail writes a log whose last segment has a seal that the metadata
// lacks. A process leaves this state if it ends right after the write that
// fills the segment. makeSealedTail returns the index of the last entry, the
// number of entries in the last write, and the path of the segment.
func makeSealedTail(t *testing.T, dir string) (last, lastWrite uint64, path string) {
	t.Helper()
	l, err := wal.Open(dir, wal.WithSegmentSize(4096))
	if err != nil {
		t.Fatal(err)
	}
	for last = 1; last <= 10; last++ {
		if err := l.StoreLog(logEntry(last)); err != nil {
			t.Fatal(err)
		}
	}
	last--
	if err := l.DeleteRange(1, deleted); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var meta metadb.BoltMetaDB
	state, err := meta.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	info := state.Segments[len(state.Segments)-1]
	if err := meta.Close(); err != nil {
		t.Fatal(err)
	}
	filer := segment.NewFiler(dir, walfs.New())
	w, err := filer.RecoverTail(info)
	if err != nil {
		t.Fatal(err)
	}
	var entries []types.LogEntry
	for sealed := false; !sealed; {
		entries = nil
		for range 3 {
			last++
			var b strings.Builder
			if err := (&wal.BinaryCodec{}).Encode(logEntry(last), &b); err != nil {
				t.Fatal(err)
			}
			entries = append(entries, types.LogEntry{Index: last, Data: []byte(b.String())})
		}
		if err := w.Append(entries); err != nil {
			t.Fatal(err)
		}
		if sealed, _, err = w.Sealed(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return last, uint64(len(entries)), filepath.Join(dir, segment.FileName(info))
}

func logEntry(index uint64) *raft.Log {
	data := fmt.Sprintf("%s%d", strings.Repeat("x", 50), index)
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: []byte(data)}
}

// checkFinished completes the rotation, checks that the log has the entries up
// to last, and appends to it.
func checkFinished(t *testing.T, dir string, last uint64) {
	t.Helper()
	meta := &metadb.BoltMetaDB{}
	if err := finishRotation(dir, meta, 4096); err != nil {
		t.Fatal(err)
	}
	l, err := wal.Open(dir, wal.WithSegmentSize(4096), wal.WithMetaStore(meta))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got, err := l.LastIndex(); got != last || err != nil {
		t.Fatalf("LastIndex() = %d, %v, want %d", got, err, last)
	}
	for i := last + 1; i <= last+100; i++ { // fills several segments
		if err := l.StoreLog(logEntry(i)); err != nil {
			t.Fatalf("StoreLog(%d) = %v, want nil", i, err)
		}
	}
	if first, err := l.FirstIndex(); first != deleted+1 || err != nil {
		t.Fatalf("FirstIndex() = %d, %v, want %d", first, err, deleted+1)
	}
	for i := uint64(deleted + 1); i <= last+100; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil || string(e.Data) != string(logEntry(i).Data) {
			t.Fatalf("GetLog(%d) = %q, %v, want %q", i, e.Data, err, logEntry(i).Data)
		}
	}
}

// TestFinishRotation_SealedTail first reproduces the fault of raft-wal. If that
// part fails, raft-wal is repaired and finishRotation can be deleted.
func TestFinishRotation_SealedTail(t *testing.T) {
	dir := t.TempDir()
	last, _, _ := makeSealedTail(t, dir)
	l, err := wal.Open(dir, wal.WithSegmentSize(4096))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLog(logEntry(last + 1)); err == nil {
		t.Error("StoreLog() of raft-wal after a seal without rotation = nil, want an error")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	checkFinished(t, dir, last)
	checkFinished(t, dir, last+100) // with no rotation to complete, or with a later one
}

// TestFinishRotation_TornSeal checks that a log whose sealing write is torn
// keeps all acknowledged entries and accepts appends.
func TestFinishRotation_TornSeal(t *testing.T) {
	for name, tear := range map[string]func(b []byte, indexStart int64) []byte{
		"index cut off":    func(b []byte, at int64) []byte { return b[:at+5] },
		"commit cut off":   func(b []byte, at int64) []byte { return b[:len(b)-3] },
		"index incomplete": func(b []byte, at int64) []byte { clear(b[at : at+8]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			last, lastWrite, path := makeSealedTail(t, dir)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b = b[:len(strings.TrimRight(string(b), "\x00"))] // the file is allocated to its full size
			indexStart := int64(len(b)) - 8 - 4*int64(last)   // index, then a commit frame of 8 bytes
			if err := os.WriteFile(path, tear(b, indexStart), 0o600); err != nil {
				t.Fatal(err)
			}
			// An interrupted attempt left this file and did not change the
			// metadata.
			leftover := filepath.Join(dir, segment.FileName(types.SegmentInfo{BaseIndex: 1, ID: 1}))
			if err := os.WriteFile(leftover, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			checkFinished(t, dir, last-lastWrite)
		})
	}
}
