// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// openFails checks that Open returns an error that contains each text of want.
func openFails(t *testing.T, cfg Config, want ...string) {
	t.Helper()
	s, err := Open(cfg)
	if err == nil {
		s.Close()
		t.Fatalf("Open() = nil, want an error with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("Open() = %q, want an error with %q", err, w)
		}
	}
}

func TestOpen_Refuses(t *testing.T) {
	openFails(t, Config{Node: "A.b", Heartbeat: time.Millisecond}, "Node", "Dir is required", "Stream is required",
		"Heartbeat")

	nw := loopback(t)
	dir := t.TempDir()
	s := mustOpen(t, nw.config(t, "a", dir))
	openFails(t, nw.config(t, "a", dir), "data dir "+dir+" is in use by another process", "--data-dir")
	s.Close()
	openFails(t, nw.config(t, "b", dir), `data dir `+dir+` belongs to node "a", not "b"`, "--data-dir", "--node a")
	mustOpen(t, nw.config(t, "a", dir)).Close()

	name := filepath.Join(dir, nodeFile)
	writeTest(t, name, "not\na label")
	openFails(t, nw.config(t, "a", dir), name+" holds no node name", "--data-dir")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	openFails(t, nw.config(t, "a", dir), "no file node, which names its node", "--data-dir")
	openFails(t, nw.config(t, "a", writeTest(t, filepath.Join(t.TempDir(), "file"), "")), "data dir")
}

func writeTest(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOpen_Again checks that a reopened store has the same resources and
// versions, and that its indexes continue to increase.
func TestOpen_Again(t *testing.T) {
	nw := loopback(t)
	cfg := nw.config(t, "a", t.TempDir())
	cfg.trailingLogs = 5
	s := mustOpen(t, cfg)
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	for i := range 100 {
		put(t, s, "n"+sprint(i), "1")
	}
	mustSnapshot(t, s)
	last := put(t, s, "n0", "2") // in the log, not in the snapshot
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close() = %v, want nil", err)
	}
	torn := filepath.Join(cfg.Dir, snapshotDir, "9-99-999.tmp")
	if err := os.Mkdir(torn, 0o700); err != nil {
		t.Fatal(err)
	}

	s = mustOpen(t, nw.config(t, "a", cfg.Dir))
	if !s.HasState() {
		t.Error("HasState() after a restart = false, want true")
	}
	if _, err := os.Stat(torn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat() of the torn snapshot = %v, want ErrNotExist", err)
	}
	awaitLeader(t, s)
	all, index, err := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil || len(all) != 100 || index != last.ModifyIndex {
		t.Fatalf("List() = %d resources at %d, %v, want 100 at %d", len(all), index, err, last.ModifyIndex)
	}
	got, err := s.Read(t.Context(), resource.Strong, last.Id)
	if err != nil || got.Version != last.Version {
		t.Errorf("Read() = %v, %v, want version %s", got, err, last.Version)
	}
	if next := put(t, s, "next", "1"); next.ModifyIndex <= last.ModifyIndex {
		t.Errorf("ModifyIndex = %d, want above %d", next.ModifyIndex, last.ModifyIndex)
	}
}

// TestOpen_DamagedFiles truncates, empties and overwrites files. Open may
// recover from damage that a crash can cause. Otherwise Open returns an error.
// Open never panics.
func TestOpen_DamagedFiles(t *testing.T) {
	nw := loopback(t)
	cfg := nw.config(t, "a", t.TempDir())
	cfg.trailingLogs = 5
	s := mustOpen(t, cfg)
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	for i := range 50 {
		put(t, s, "n"+sprint(i), strings.Repeat("x", 100))
	}
	mustSnapshot(t, s)
	put(t, s, "last", "1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(cfg.Dir, func(path string, d os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(cfg.Dir, path); err == nil && d.Type().IsRegular() && rel != lockFile &&
			rel != nodeFile {
			files = append(files, rel)
		}
		return err
	})
	if err != nil || len(files) < 4 {
		t.Fatalf("WalkDir() finds %v, %v, want at least 4 files", files, err)
	}
	for _, file := range files {
		for what, damage := range map[string]func(b []byte) []byte{
			"emptied":     func([]byte) []byte { return nil },
			"cut":         func(b []byte) []byte { return b[:len(b)/2] },
			"overwritten": func(b []byte) []byte { copy(b[len(b)/3:], strings.Repeat("garbage", 20)); return b },
			"replaced":    func(b []byte) []byte { return []byte(strings.Repeat("something else ", len(b)/15)) },
		} {
			t.Run(what+" "+filepath.Base(file), func(t *testing.T) {
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(cfg.Dir)); err != nil {
					t.Fatal(err)
				}
				b, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				writeTest(t, filepath.Join(dir, file), string(damage(b)))
				s, err := Open(nw.config(t, "a", dir))
				if err != nil {
					if !strings.Contains(err.Error(), "data dir "+dir) {
						t.Errorf("Open() = %v, want an error with %q", err, "data dir "+dir)
					}
					return
				}
				defer s.Close()
				t.Logf("Open() = nil, with %d entries", s.LastIndex())
			})
		}
	}
}

// TestApply_UnknownEntry checks that a log entry of a newer version fails the
// store, also after a restart, and is not skipped.
func TestApply_UnknownEntry(t *testing.T) {
	nw := loopback(t)
	cfg := nw.config(t, "a", t.TempDir())
	s := mustOpen(t, cfg)
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	r := put(t, s, "x", "1")
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := s.Commit(t.Context(), &pb.Op{}); !errors.Is(err, resource.ErrInvalid) || s.Err() != nil {
		t.Fatalf("Commit() of an unknown op = %v, Err() = %v, want ErrInvalid and nil", err, s.Err())
	}
	s.raft.Apply([]byte{0x0a, 0x02, 0x7a, 0x00}, 0) // a Batch with one op, of field 15
	for range 2 {
		<-s.Failed()
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), "start a version of wanfed that can") {
			t.Fatalf("Err() = %v, want an error with a remedy", err)
		}
		_, readErr := s.Read(t.Context(), resource.Eventual, r.Id)
		_, commitErr := s.Commit(t.Context(), resource.PutOp(thing(t, "y", "1"), ""))
		runErr := s.RunWhileLeader(t.Context(), nil)
		for _, err := range []error{readErr, commitErr, runErr,
			s.Wait(t.Context(), resource.Query{Type: testType}, 1000)} {
			if !errors.Is(err, s.Err()) {
				t.Errorf("error after the failure = %v, want %v", err, s.Err())
			}
		}
		until(t, "the failed store no longer leads", func() bool { return !s.IsLeader() })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, nw.config(t, "a", cfg.Dir))
	}
	if _, err := w.Next(t.Context()); err == nil || errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("Next() of the failed store = %v, want the reason for the failure", err)
	}
}

func TestStore_Closed(t *testing.T) {
	s := single(t)
	r := put(t, s, "x", "1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, commitErr := s.Commit(t.Context(), resource.PutOp(thing(t, "y", "1"), ""))
	_, eventualErr := s.Read(t.Context(), resource.Eventual, r.Id)
	_, strongErr := s.Read(t.Context(), resource.Strong, r.Id)
	_, watchErr := s.Watch(resource.Query{Type: testType})
	for _, err := range []error{commitErr, eventualErr, strongErr, watchErr, s.AddVoter(t.Context(), "b"),
		s.RunWhileLeader(t.Context(), nil)} {
		if !errors.Is(err, resource.ErrClosed) || errors.Is(err, resource.ErrUnknownOutcome) {
			t.Errorf("error after Close = %v, want ErrClosed", err)
		}
	}
	if node, known := s.Leader(); known || s.CaughtUp() {
		t.Errorf("Leader() after Close = %q, %t, CaughtUp() = %t, want none and false", node, known, s.CaughtUp())
	}
}
