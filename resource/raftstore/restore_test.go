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
)

// spools returns the temporary files of restores.
func spools(t *testing.T, s *Store) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{spoolPattern, uncommittedFile} {
		found, err := filepath.Glob(filepath.Join(s.cfg.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// longHeartbeat is for tests that lose leaders, and never by chance.
func longHeartbeat(c *Config) { c.Heartbeat = time.Second }

func mustRestore(t testing.TB, s *Store, m Manifest, data []byte) RestoreResult {
	t.Helper()
	out, err := s.Restore(t.Context(), m, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRestore: a restore brings back what was saved, at an index above all
// earlier ones, and deletes what was written since. Watches, waits and
// functions that run while leading are notified. The state survives a restart.
func TestRestore(t *testing.T) {
	s := single(t)
	x := put(t, s, "x", "1")
	put(t, s, "gone", "1")
	m, data := saveData(t, s)
	changed := put(t, s, "x", "2")
	if _, err := s.Commit(t.Context(), resource.RemoveOp(&pb.ID{Type: testType, Name: "gone"}, "")); err != nil {
		t.Fatal(err)
	}
	later := put(t, s, "later", "1")
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 3 {
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := make(chan struct{}, 3)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		err := s.RunWhileLeader(ctx, func(ctx context.Context) error {
			began <- struct{}{}
			<-ctx.Done()
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-began
	last := s.LastIndex()

	out := mustRestore(t, s, m, data)
	if out.Index <= last || out.Totals.Resources != 2 {
		t.Errorf("Restore() = %+v, want an index above %d", out, last)
	}
	select {
	case <-began: // again
	case <-time.After(waitLimit):
		t.Error("RunWhileLeader has not called its function again")
	}
	if ev, err := w.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("Next() = %v, %v, want ErrWatchReset", ev, err)
	}
	if err := s.Wait(t.Context(), resource.Query{Type: testType}, later.ModifyIndex); err != nil {
		t.Errorf("Wait() = %v, want nil", err)
	}
	check := func(s *Store) {
		t.Helper()
		for name, want := range map[string]string{"x": "1", "gone": "1", "later": ""} {
			if got := textOf(t, s, resource.Strong, name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		r, err := s.Read(t.Context(), resource.Strong, x.Id)
		want := proto.CloneOf(x)
		want.Version, want.ModifyIndex = "", out.Index
		if err == nil && r.Version != x.Version && r.Version != changed.Version {
			want.Version = r.Version
		}
		if err != nil || !proto.Equal(r, want) {
			t.Errorf("Read() = %v, %v, want %v", r, err, want)
		}
	}
	check(s)
	for _, version := range []string{x.Version, changed.Version} { // read before the restore
		if _, err := s.Commit(t.Context(), resource.PutOp(x, version)); !errors.Is(err, resource.ErrConflict) {
			t.Errorf("Commit() with the earlier version %s = %v, want ErrConflict", version, err)
		}
	}
	if left := spools(t, s); len(left) > 0 {
		t.Errorf("temporary files = %v, want none", left)
	}
	cancel()
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, loopback(t).config(t, "a", s.cfg.Dir))
	awaitLeader(t, s)
	check(s)
	if next := put(t, s, "next", "1"); next.ModifyIndex <= out.Index {
		t.Errorf("ModifyIndex = %d, want above %d of the restore", next.ModifyIndex, out.Index)
	}
}

// TestRestore_EmptyServer: two restores into empty servers use different versions.
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
			t.Errorf("x in a new group = %q, want 1", got)
		}
		r := put(t, fresh, "x", "3")
		if r.ModifyIndex <= later.ModifyIndex || seen[r.Version] {
			t.Errorf("version = %s at %d, want a new version above %d", r.Version, r.ModifyIndex, later.ModifyIndex)
		}
		seen[r.Version] = true
	}
}

// TestRestore_Refuses: a refused restore changes nothing.
func TestRestore_Refuses(t *testing.T) {
	s := single(t)
	put(t, s, "x", "1")
	m, data := saveData(t, s)
	put(t, s, "x", "2")
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 2 {
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	broken := errors.New("connection lost")
	for _, tt := range []struct {
		name string
		m    func(*Manifest)
		data io.Reader
		want error
	}{
		{"cut off", nil, bytes.NewReader(data[:len(data)-1]), resource.ErrInvalid},
		{"longer", nil, bytes.NewReader(append(bytes.Clone(data), 0)), resource.ErrInvalid},
		{"nothing", nil, bytes.NewReader(nil), resource.ErrInvalid},
		{"damaged", nil, bytes.NewReader(append(bytes.Clone(data[:len(data)-1]), 'x')), resource.ErrInvalid},
		{"lost on the way", nil, io.MultiReader(bytes.NewReader(data[:10]), failing{broken}), broken},
		{"another index", func(m *Manifest) { m.Index-- }, bytes.NewReader(data), resource.ErrInvalid},
		{"no manifest", func(m *Manifest) { *m = Manifest{} }, bytes.NewReader(data), resource.ErrInvalid},
	} {
		m := m
		if tt.m != nil {
			tt.m(&m)
		}
		if out, err := s.Restore(t.Context(), m, tt.data); !errors.Is(err, tt.want) {
			t.Errorf("Restore(%s) = %+v, %v, want %v", tt.name, out, err, tt.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Restore(ended, m, bytes.NewReader(data)); !errors.Is(err, context.Canceled) {
		t.Errorf("Restore() with a cancelled context = %v, want Canceled", err)
	}

	// One restore at a time.
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
		t.Errorf("first Restore() = %v", err)
	}

	if got := textOf(t, s, resource.Strong, "x"); got != "2" {
		t.Errorf("x = %q", got)
	}
	put(t, s, "y", "1")
	if ev, err := w.Next(t.Context()); err != nil || ev.GetUpsert().GetResource().GetId().GetName() != "y" {
		t.Errorf("Next() = %v, %v", ev, err)
	}
	if left := spools(t, s); len(left) > 0 {
		t.Errorf("temporary files = %v, want none", left)
	}
	mustRestore(t, s, m, data) // a later restore succeeds
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestRestore_Close: Close during a restore does not panic. The state is the
// old or the new one.
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
		if cerr := s.Close(); cerr != nil {
			t.Fatalf("Close() = %v, want nil", cerr)
		}
		err := <-done // nil if the restore ended before Close
		if err != nil {
			interrupted++
		}
		s = mustOpen(t, loopback(t).config(t, "a", s.cfg.Dir))
		awaitLeader(t, s)
		all, _, lerr := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
		if x := textOf(t, s, resource.Strong, "x"); lerr != nil || err == nil && x != "" || len(all) != 2000+len(x) {
			t.Errorf("List() = %d resources, %v, x = %q after %v; want one of the two states", len(all), lerr, x, err)
		}
		if left := spools(t, s); len(left) > 0 {
			t.Errorf("temporary files = %v, want none", left)
		}
	}
	t.Logf("%d of 3 restores were interrupted", interrupted)
}
