// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

const testSegmentSize = 64 << 10

// openTest opens a log without snapshots in dir. fail receives the errors of
// Config.Fail.
func openTest(t *testing.T, dir string, fail func(error)) (*Log, error) {
	t.Helper()
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return Open(Config{
		Dir: filepath.Join(dir, "wal"), SegmentSize: testSegmentSize,
		Snapshots: snapshots, SnapshotDir: filepath.Join(dir, "snapshots"),
		Logger: slog.New(slog.DiscardHandler), Fail: fail,
	})
}

func mustOpenTest(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := openTest(t, dir, func(err error) { t.Errorf("Fail(%v) was called, want no failure of the log", err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func storeTest(t *testing.T, l *Log, first, last uint64) {
	t.Helper()
	for i := first; i <= last; i++ {
		if err := l.StoreLog(logEntry(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// change replaces the first occurrence of old in the only segment file of dir.
func change(t *testing.T, dir, old, replacement string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("Glob() = %v, %v, want 1 file", paths, err)
	}
	b, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(old)) {
		t.Fatalf("%s does not contain %q", paths[0], old)
	}
	if err := os.WriteFile(paths[0], bytes.Replace(b, []byte(old), []byte(replacement), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpen_Damaged(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string
	}{
		"changed byte": {func(t *testing.T, dir string) { change(t, dir, "x7", "X7") }, "log entry 7 in "},
		"200 zero bytes": {
			func(t *testing.T, dir string) {
				change(t, dir, strings.Repeat("x", 50)+"3", strings.Repeat("\x00", 51))
				change(t, dir, strings.Repeat("x", 50)+"4", strings.Repeat("\x00", 51))
			}, "log entry 3 in ",
		},
		"zeroed frame": {
			func(t *testing.T, dir string) { zeroBefore(t, dir, 5) },
			"it ends with log entry 4, and entry 20 was stored",
		},
		"zeroed last frame": {
			func(t *testing.T, dir string) { zeroBefore(t, dir, 20) },
			"it ends with log entry 19, and entry 20 was stored",
		},
		"segment removed": {
			func(t *testing.T, dir string) { remove(t, dir, "*.wal") },
			"it ends with log entry 0, and entry 20 was stored",
		},
		"metadata removed": {
			func(t *testing.T, dir string) { remove(t, dir, "wal-meta.db") }, "lists no segment",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := mustOpenTest(t, dir)
			storeTest(t, l, 1, 20)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			test.damage(t, dir)
			for range 2 { // the refused start must not change anything
				l, err := openTest(t, dir, func(error) {})
				if err == nil {
					l.Close()
				}
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("Open() = %v, want ErrDamaged with %q", err, test.want)
				}
			}
		})
	}
}

// zeroBefore overwrites the frame header of the entry at index with zeros.
// raft-wal then ends the log before the entry.
func zeroBefore(t *testing.T, dir string, index uint64) {
	t.Helper()
	var encoded bytes.Buffer
	if err := (&wal.BinaryCodec{}).Encode(withChecksums([]*raft.Log{logEntry(index)})[0], &encoded); err != nil {
		t.Fatal(err)
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	b, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, encoded.Bytes())
	if at < 0 {
		t.Fatalf("%s does not contain entry %d", paths[0], index)
	}
	clear(b[at-8 : at])
	if err := os.WriteFile(paths[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, pattern string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "wal", pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("Glob(%s) = %v, %v, want files", pattern, paths, err)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpen_TornWrite checks that a write that was never acknowledged does not
// prevent the start.
func TestOpen_TornWrite(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenTest(t, dir)
	storeTest(t, l, 1, 20)
	if err := l.WAL.StoreLogs(withChecksums([]*raft.Log{logEntry(21)})); err != nil { // not recorded
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	change(t, dir, "x21", "xxx")
	l = mustOpenTest(t, dir)
	if last, err := l.LastIndex(); last != 20 || err != nil {
		t.Errorf("LastIndex() = %d, %v, want 20", last, err)
	}
}

// TestClose_Twice closes a log twice, on a disk that refuses the sync of the
// stored index. Close must not fail, because the log is intact without it.
func TestClose_Twice(t *testing.T) {
	l := mustOpenTest(t, t.TempDir())
	storeTest(t, l, 1, 1)
	r, w, err := os.Pipe() // a pipe cannot be synced
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l.stored.file.Close()
	l.stored.file = w
	for range 2 {
		if err := l.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	}
}

// TestOpen_DeletedEnd checks that the start does not expect entries that Raft
// deleted from the end of the log.
func TestOpen_DeletedEnd(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenTest(t, dir)
	storeTest(t, l, 1, 20)
	if err := l.DeleteRange(11, 20); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustOpenTest(t, dir)
	if last, err := l.LastIndex(); last != 10 || err != nil {
		t.Errorf("LastIndex() = %d, %v, want 10", last, err)
	}
}

// TestOpen_WithoutChecksums opens the log of a version that stored no checksums
// and no index.
func TestOpen_WithoutChecksums(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wal")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := wal.Open(path, wal.WithSegmentSize(testSegmentSize))
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 5; i++ {
		if err := w.StoreLog(logEntry(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l := mustOpenTest(t, dir)
	storeTest(t, l, 6, 10)
	for i := uint64(1); i <= 10; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil || string(e.Data) != string(logEntry(i).Data) || e.Extensions != nil {
			t.Errorf("GetLog(%d) = %q with extensions %q, %v; want %q without", i, e.Data, e.Extensions, err,
				logEntry(i).Data)
		}
	}
}

// TestGetLog_Damaged damages an open log. An entry that the snapshot includes
// is reported as absent, so Raft sends the snapshot. Any other entry stops the
// store.
func TestGetLog_Damaged(t *testing.T) {
	dir := t.TempDir()
	var failed error
	l, err := openTest(t, dir, func(err error) { failed = err })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	storeTest(t, l, 1, 20)
	change(t, dir, "x7", "X7")
	change(t, dir, "x8", "X8")
	l.snapshot.Store(&raft.Log{Index: 7, Term: 1})

	var e raft.Log
	if err := l.GetLog(7, &e); err != nil || e.Term != 1 || e.Data != nil {
		t.Errorf("GetLog(7) = %v, %v, want the last entry of the snapshot", e, err)
	}
	if err := l.GetLog(8, &e); !errors.Is(err, ErrDamaged) || !errors.Is(failed, ErrDamaged) || e.Data != nil {
		t.Errorf("GetLog(8) = %v, %v, Fail was called with %v; want ErrDamaged twice and no data", e, err, failed)
	}
	l.snapshot.Store(&raft.Log{Index: 10, Term: 1})
	if err := l.GetLog(8, &e); err != raft.ErrLogNotFound { // Raft compares the value
		t.Errorf("GetLog(8) with a snapshot at 10 = %v, want ErrLogNotFound", err)
	}
}

// FuzzVerify checks that no change of an encoded entry is accepted.
func FuzzVerify(f *testing.F) {
	var encoded bytes.Buffer
	if err := (&wal.BinaryCodec{}).Encode(withChecksums([]*raft.Log{logEntry(7)})[0], &encoded); err != nil {
		f.Fatal(err)
	}
	f.Add(0, byte(1), 0)
	f.Add(encoded.Len()-16, byte('c'^13), 3)
	f.Fuzz(func(t *testing.T, at int, flip byte, zeros int) {
		b := bytes.Clone(encoded.Bytes())
		if at < 0 || at >= len(b)-15 || zeros < 0 || zeros > len(b)-15-at { // the time is not verified
			t.Skip()
		}
		b[at] ^= flip
		clear(b[at+1:][:max(zeros-1, 0)])
		if bytes.Equal(b, encoded.Bytes()) {
			t.Skip()
		}
		defer func() { _ = recover() }() // Log.read recovers
		var e raft.Log
		if err := (&wal.BinaryCodec{}).Decode(b, &e); err == nil && verify(&e, 7) == nil {
			t.Errorf("verify() of a changed entry = nil, want an error: %+v", e)
		}
	})
}
