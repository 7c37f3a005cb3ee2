// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"

	"github.com/wanfed/wanfed/resource"
)

// faultyMeta fails writes of metadata with err unless err is nil. It simulates
// a file system that becomes read-only, because a test cannot remount a file
// system under open files.
type faultyMeta struct {
	types.MetaStore
	err error
}

func (f *faultyMeta) SetStable(key, value []byte) error {
	if f.err != nil {
		return f.err
	}
	return f.MetaStore.SetStable(key, value)
}

// TestSet_DiskError checks that Set accepts a term that cannot be written, and
// that the term is written before the next vote or entry.
func TestSet_DiskError(t *testing.T) {
	const segmentSize = 64 << 10
	dir := t.TempDir()
	meta := &faultyMeta{MetaStore: &metadb.BoltMetaDB{}}
	w, err := wal.Open(dir, wal.WithMetaStore(meta), wal.WithSegmentSize(segmentSize))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var failed error
	l := &Log{
		WAL: w, used: new(atomic.Int64), cannotWritec: make(chan struct{}, 1),
		cfg: Config{
			Dir: dir, SegmentSize: segmentSize, Logger: slog.New(slog.DiscardHandler),
			Fail: func(err error) { failed = err },
		},
	}
	entry := []*raft.Log{{Index: 1, Term: 7, Data: []byte("x")}}

	meta.err = &os.PathError{Op: "write", Path: "x", Err: syscall.EROFS}
	if err := l.SetUint64([]byte(termKey), 7); err != nil {
		t.Errorf("SetUint64(term) = %v, want nil", err)
	}
	writes := map[string]error{"vote": l.SetUint64([]byte("LastVoteTerm"), 7), "entry": l.StoreLogs(entry)}
	for what, err := range writes {
		if !errors.Is(err, resource.ErrReadOnly) || !errors.Is(err, syscall.EROFS) {
			t.Errorf("write of a %s = %v, want ErrReadOnly and EROFS", what, err)
		}
	}
	if l.WriteError() == nil || failed != nil {
		t.Errorf("WriteError() = %v, Fail was called with %v; want an error and no call", l.WriteError(), failed)
	}

	meta.err = nil
	if err := l.StoreLogs(entry); err != nil || l.WriteError() != nil {
		t.Errorf("StoreLogs() = %v, WriteError() = %v; want nil", err, l.WriteError())
	}
	if got, err := w.GetUint64([]byte(termKey)); got != 7 || err != nil {
		t.Errorf("stored term = %d, %v, want 7", got, err)
	}

	meta.err = syscall.EIO
	if err := l.SetUint64([]byte(termKey), 8); err != nil || !errors.Is(failed, syscall.EIO) {
		t.Errorf("SetUint64(term) = %v, Fail was called with %v; want nil and EIO", err, failed)
	}
	if err := l.Set([]byte("LastVoteCand"), []byte("a")); !errors.Is(err, syscall.EIO) {
		t.Errorf("Set(vote) = %v, want EIO", err)
	}
}
