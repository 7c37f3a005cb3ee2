// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
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

// deleted is the last entry that was deleted from the beginning of the log that sealedTail makes.
const deleted = 4

// sealedTail makes a log whose last segment is sealed, which its metadata does not know: as a process leaves it that ends
// right after the write which fills the segment. It returns the index of the last entry, how many entries that write had,
// and the segment's path.
func sealedTail(t *testing.T, dir string) (last, lastWrite uint64, path string) {
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
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: []byte(strings.Repeat("x", 50) + sprint(int(index)))}
}

// openFinished opens the log as a store does, checks that it has the entries up to last, and appends to it.
func openFinished(t *testing.T, dir string, last uint64) {
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
		t.Fatalf("last index %d, %v; want %d", got, err, last)
	}
	for i := last + 1; i <= last+100; i++ { // fills segments of its own
		if err := l.StoreLog(logEntry(i)); err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
	}
	if first, err := l.FirstIndex(); first != deleted+1 || err != nil {
		t.Fatalf("first index %d, %v; want %d", first, err, deleted+1)
	}
	for i := uint64(deleted + 1); i <= last+100; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil || string(e.Data) != string(logEntry(i).Data) {
			t.Fatalf("entry %d: %q, %v", i, e.Data, err)
		}
	}
}

// TestSealedTail shows the fault of raft-wal that finishRotation is for. If its first part fails, the fault is gone, and
// finishRotation may go too.
func TestSealedTail(t *testing.T) {
	dir := t.TempDir()
	last, _, _ := sealedTail(t, dir)
	l, err := wal.Open(dir, wal.WithSegmentSize(4096))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLog(logEntry(last + 1)); err == nil {
		t.Error("raft-wal appends to a log that ended between seal and rotation")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	openFinished(t, dir, last)
	openFinished(t, dir, last+100) // the second time there is nothing to finish, or a rotation of its own
}

// TestTornSeal: the write that seals a segment is torn; what was acknowledged before it stays, and the log goes on.
func TestTornSeal(t *testing.T) {
	for what, tear := range map[string]func(b []byte, indexStart int64) []byte{
		"index cut off":    func(b []byte, at int64) []byte { return b[:at+5] },
		"commit cut off":   func(b []byte, at int64) []byte { return b[:len(b)-3] },
		"index not all on": func(b []byte, at int64) []byte { clear(b[at : at+8]); return b },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			last, lastWrite, path := sealedTail(t, dir)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b = b[:len(strings.TrimRight(string(b), "\x00"))] // the file is longer, allocated ahead
			indexStart := int64(len(b)) - 8 - 4*int64(last)   // index, then a commit frame of 8 bytes
			if err := os.WriteFile(path, tear(b, indexStart), 0o600); err != nil {
				t.Fatal(err)
			}
			// Another attempt was cut short before the metadata knew of it.
			if err := os.WriteFile(filepath.Join(dir, segment.FileName(types.SegmentInfo{BaseIndex: 1, ID: 1})), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			openFinished(t, dir, last-lastWrite)
		})
	}
}
