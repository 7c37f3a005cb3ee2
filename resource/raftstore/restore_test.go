// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// checkNoSpools checks that the data directory of s has no temporary files of
// restores.
func checkNoSpools(t *testing.T, s *Store) {
	t.Helper()
	for _, pattern := range []string{spoolPattern, uncommittedFile} {
		if files, err := filepath.Glob(filepath.Join(s.cfg.Dir, pattern)); err != nil || len(files) > 0 {
			t.Errorf("temporary files of %s = %v, %v, want none", s.cfg.Node, files, err)
		}
	}
}

// longHeartbeat is for tests that lose leaders only on purpose.
func longHeartbeat(c *Config) { c.Heartbeat = time.Second }

func mustRestore(t testing.TB, s *Store, m Manifest, data []byte) memory.SnapshotTotals {
	t.Helper()
	out, err := s.Restore(t.Context(), m, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRestore checks that a restore replaces the whole state with the snapshot,
// at an index above all earlier ones. The restored state survives a restart.
func TestRestore(t *testing.T) {
	s := single(t)
	x := put(t, s, "x", "1")
	put(t, s, "gone", "1")
	m, data := saveData(t, s)
	changed := put(t, s, "x", "2")
	if _, err := s.Commit(t.Context(), resource.RemoveOp(&pb.ID{Type: testType, Name: "gone"}, "")); err != nil {
		t.Fatal(err)
	}
	put(t, s, "later", "1")
	last := s.LastIndex()
	out := mustRestore(t, s, m, data)
	if out.Index <= last || out.Resources != 2 {
		t.Errorf("Restore() = %+v, want 2 resources and an index above %d", out, last)
	}
	check := func(s *Store) {
		t.Helper()
		for name, want := range map[string]string{"x": "1", "gone": "1", "later": ""} {
			if got := textOf(t, s, resource.Strong, name); got != want {
				t.Errorf("Read(%s) = %q, want %q", name, got, want)
			}
		}
		got, err := s.Read(t.Context(), resource.Strong, x.Id)
		if err != nil {
			t.Fatal(err)
		}
		want := proto.CloneOf(x)
		want.Version, want.ModifyIndex = got.Version, out.Index
		if !proto.Equal(got, want) || got.Version == x.Version || got.Version == changed.Version {
			t.Errorf("Read(x) = %v, want %v with a new version", got, want)
		}
	}
	check(s)
	for _, version := range []string{x.Version, changed.Version} { // read before the restore
		if _, err := s.Commit(t.Context(), resource.PutOp(x, version)); !errors.Is(err, resource.ErrConflict) {
			t.Errorf("Commit() with the earlier version %s = %v, want ErrConflict", version, err)
		}
	}
	checkNoSpools(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, loopback(t).config(t, "a", s.cfg.Dir))
	awaitLeader(t, s)
	check(s)
	if next := put(t, s, "next", "1"); next.ModifyIndex <= out.Index {
		t.Errorf("ModifyIndex after the restore = %d, want above %d", next.ModifyIndex, out.Index)
	}
}

// TestRestore_Notifies checks that a restore resets watches, ends waits, and
// makes RunWhileLeader call its function again.
func TestRestore_Notifies(t *testing.T) {
	s := single(t)
	put(t, s, "x", "1")
	m, data := saveData(t, s)
	later := put(t, s, "later", "1")
	w := openWatch(t, s, 3)
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan struct{}, 3)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		err := s.RunWhileLeader(ctx, func(ctx context.Context) error {
			called <- struct{}{}
			<-ctx.Done()
			return nil
		})
		if err != nil {
			t.Errorf("RunWhileLeader() = %v, want nil", err)
		}
	})
	<-called
	mustRestore(t, s, m, data)
	select {
	case <-called:
	case <-time.After(waitLimit):
		t.Error("RunWhileLeader() did not call its function after the restore, want a second call")
	}
	if ev, err := w.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("Next() = %v, %v, want ErrWatchReset", ev, err)
	}
	if err := s.Wait(t.Context(), resource.Query{Type: testType}, later.ModifyIndex); err != nil {
		t.Errorf("Wait() = %v, want nil", err)
	}
}

// openWatch opens a watch and reads n events.
func openWatch(t *testing.T, s *Store, n int) resource.Watch {
	t.Helper()
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for range n {
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// TestRestore_EmptyServer: two restores into empty servers use different
// versions.
func TestRestore_EmptyServer(t *testing.T) {
	s := single(t)
	put(t, s, "x", "1")
	m, data := saveData(t, s)
	later := put(t, s, "later", "1")
	seen := map[string]bool{}
	for range 2 {
		fresh := single(t)
		mustRestore(t, fresh, m, data)
		if got := textOf(t, fresh, resource.Strong, "x"); got != "1" {
			t.Errorf("Read(x) in a new group = %q, want 1", got)
		}
		r := put(t, fresh, "x", "3")
		if r.ModifyIndex <= later.ModifyIndex || seen[r.Version] {
			t.Errorf("version = %s at %d, want a new version above %d", r.Version, r.ModifyIndex, later.ModifyIndex)
		}
		seen[r.Version] = true
	}
}

// TestRestore_Refuses checks that a failed restore changes nothing.
func TestRestore_Refuses(t *testing.T) {
	s := single(t)
	put(t, s, "x", "1")
	m, data := saveData(t, s)
	put(t, s, "x", "2")
	w := openWatch(t, s, 2)
	broken := errors.New("connection lost")
	for _, tt := range []struct {
		name   string
		change func(*Manifest) // nil: no change
		data   io.Reader
		want   error
	}{
		{"cut off", nil, bytes.NewReader(data[:len(data)-1]), resource.ErrInvalid},
		{"longer", nil, bytes.NewReader(append(bytes.Clone(data), 0)), resource.ErrInvalid},
		{"nothing", nil, bytes.NewReader(nil), resource.ErrInvalid},
		{"damaged", nil, bytes.NewReader(append(bytes.Clone(data[:len(data)-1]), 'x')), resource.ErrInvalid},
		{"connection lost", nil, io.MultiReader(bytes.NewReader(data[:10]), failing{broken}), broken},
		{"another index", func(m *Manifest) { m.Index-- }, bytes.NewReader(data), resource.ErrInvalid},
		{"no manifest", func(m *Manifest) { *m = Manifest{} }, bytes.NewReader(data), resource.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := m
			if tt.change != nil {
				tt.change(&m)
			}
			if out, err := s.Restore(t.Context(), m, tt.data); !errors.Is(err, tt.want) {
				t.Errorf("Restore() = %+v, %v, want %v", out, err, tt.want)
			}
		})
	}
	t.Run("context canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Restore(ctx, m, bytes.NewReader(data)); !errors.Is(err, context.Canceled) {
			t.Errorf("Restore() = %v, want Canceled", err)
		}
	})
	t.Run("during a restore", func(t *testing.T) {
		r, pipe := io.Pipe()
		first := make(chan error, 1)
		go func() { _, err := s.Restore(t.Context(), m, r); first <- err }()
		if _, err := pipe.Write(data[:1]); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Restore(t.Context(), m, bytes.NewReader(data)); !errors.Is(err, ErrRestoring) {
			t.Errorf("second Restore() = %v, want ErrRestoring", err)
		}
		pipe.CloseWithError(broken)
		if err := <-first; !errors.Is(err, broken) {
			t.Errorf("first Restore() = %v, want %v", err, broken)
		}
	})
	if got := textOf(t, s, resource.Strong, "x"); got != "2" {
		t.Errorf("Read(x) after failed restores = %q, want 2", got)
	}
	put(t, s, "y", "1")
	if ev, err := w.Next(t.Context()); err != nil || ev.GetUpsert().GetResource().GetId().GetName() != "y" {
		t.Errorf("Next() after failed restores = %v, %v, want the upsert of y", ev, err)
	}
	checkNoSpools(t, s)
	mustRestore(t, s, m, data) // a later restore succeeds
}

// failing is an io.Reader that returns err.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestRestore_Close checks that Close during a restore does not panic, and that
// the next process has the old or the new state.
func TestRestore_Close(t *testing.T) {
	t.Parallel()
	s := single(t)
	for batch := range 4 {
		var ops []*pb.Op
		for i := range 500 {
			ops = append(ops, resource.PutOp(thing(t, sprint(batch)+"-"+sprint(i), "saved"), ""))
		}
		if _, err := s.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
	}
	m, data := saveData(t, s)
	interrupted := 0
	for range 3 {
		put(t, s, "x", "2")
		done := make(chan error, 1)
		go func() { _, err := s.Restore(t.Context(), m, bytes.NewReader(data)); done <- err }()
		for len(done) == 0 && s.restorer.active.Load() == nil {
			runtime.Gosched()
		}
		if err := s.Close(); err != nil {
			t.Fatalf("Close() = %v, want nil", err)
		}
		err := <-done // nil if the restore ended before Close
		if err != nil {
			interrupted++
		}
		s = mustOpen(t, loopback(t).config(t, "a", s.cfg.Dir))
		awaitLeader(t, s)
		all, _, listErr := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
		if listErr != nil {
			t.Fatal(listErr)
		}
		// The old state has 2000 resources and x, the new state has 2000
		// resources.
		if x := textOf(t, s, resource.Strong, "x"); err == nil && x != "" || len(all) != 2000+len(x) {
			t.Errorf("List() = %d resources, x = %q after Restore() = %v, want the old or the new state",
				len(all), x, err)
		}
		checkNoSpools(t, s)
	}
	t.Logf("%d of 3 restores were interrupted", interrupted)
}
