// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// spools are the files that restores left.
func spools(t *testing.T, s *Store) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{spoolPattern, unprovenFile} {
		found, err := filepath.Glob(filepath.Join(s.cfg.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// calm is for tests in which leaders are lost, but not by chance.
func calm(c *Config) { c.Heartbeat = time.Second }

func mustRestore(t testing.TB, s *Store, m Manifest, data []byte) Restored {
	t.Helper()
	out, err := s.Restore(t.Context(), m, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRestore: what is restored is what was saved, at an index above all; what came later is gone; whoever watched, waited or
// worked while leading learns of it; and it stays so after a restart.
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
		t.Errorf("restored %+v after %d", out, last)
	}
	select {
	case <-began: // again
	case <-time.After(waitLimit):
		t.Error("what runs while leading was not begun anew")
	}
	if ev, err := w.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("the watch: %v, %v; want ErrWatchReset", ev, err)
	}
	if err := s.Wait(t.Context(), resource.Query{Type: testType}, later.ModifyIndex); err != nil {
		t.Errorf("waiting for a change: %v", err)
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
			t.Errorf("restored %v, %v; want %v", r, err, want)
		}
	}
	check(s)
	for _, version := range []string{x.Version, changed.Version} { // whoever read it before
		if _, err := s.Commit(t.Context(), resource.PutOp(x, version)); !errors.Is(err, resource.ErrConflict) {
			t.Errorf("compare-and-swap with version %s of before: %v", version, err)
		}
	}
	if left := spools(t, s); len(left) > 0 {
		t.Errorf("files left: %v", left)
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
		t.Errorf("written at %d, after a restore at %d", next.ModifyIndex, out.Index)
	}

	// Into a server that has nothing; twice, as after two losses.
	seen := map[string]bool{}
	for range 2 {
		fresh := single(t)
		mustRestore(t, fresh, m, data)
		if got := textOf(t, fresh, resource.Strong, "x"); got != "1" {
			t.Errorf("x = %q in a new group", got)
		}
		r := put(t, fresh, "x", "3")
		if r.ModifyIndex <= later.ModifyIndex || seen[r.Version] {
			t.Errorf("version %s is used twice", r.Version)
		}
		seen[r.Version] = true
	}
}

// TestRestoreRefuses: nothing changes.
func TestRestoreRefuses(t *testing.T) {
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
			t.Errorf("%s: %+v, %v; want %v", tt.name, out, err, tt.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Restore(ended, m, bytes.NewReader(data)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}

	// One at a time.
	r, pipe := io.Pipe()
	first := make(chan error, 1)
	go func() { _, err := s.Restore(t.Context(), m, r); first <- err }()
	if _, err := pipe.Write(data[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(t.Context(), m, bytes.NewReader(data)); !errors.Is(err, ErrRestoring) {
		t.Errorf("a second one: %v", err)
	}
	pipe.CloseWithError(broken)
	if err := <-first; !errors.Is(err, broken) {
		t.Errorf("the first one: %v", err)
	}

	if got := textOf(t, s, resource.Strong, "x"); got != "2" {
		t.Errorf("x = %q", got)
	}
	put(t, s, "y", "1")
	if ev, err := w.Next(t.Context()); err != nil || ev.GetUpsert().GetResource().GetId().GetName() != "y" {
		t.Errorf("the watch: %v, %v", ev, err)
	}
	if left := spools(t, s); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
	mustRestore(t, s, m, data) // and still can
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestRestoreGroup: three servers under load have one state after a restore, none of what came before the restore and all
// that was acknowledged after it; also once the leader is lost, and on a server that was away.
func TestRestoreGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRestoreGroup)
}

func testRestoreGroup(t *testing.T) {
	nw := pipes()
	all := group(t, nw, calm)
	leader := write(t, values(all), "x", "saved")
	m, data := saveData(t, leader)
	away := values(all, leader)[0]
	nw.isolate(away.cfg.Node, true)
	stop := load(t, "before", values(all))
	awaitWrites(t, leader, 30)
	before := stop()

	stop = load(t, "during", values(all))
	awaitWrites(t, leader, 10)
	out := mustRestore(t, leader, m, data)
	awaitWrites(t, leader, 10)
	during := stop()
	last := write(t, values(all, away), "after", "1")
	nw.isolate(away.cfg.Node, false)
	for _, s := range values(all) {
		awaitText(t, s, "after", "1")
		if got := textOf(t, s, resource.Eventual, "x"); got != "saved" {
			t.Errorf("%s: x = %q", s.cfg.Node, got)
		}
		for _, name := range before {
			if textOf(t, s, resource.Eventual, name) != "" {
				t.Errorf("%s still has %s", s.cfg.Node, name)
			}
		}
	}
	same(t, values(all))
	// What was acknowledged during the restore is there if it was written after it.
	have, _, err := last.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range have {
		if strings.HasPrefix(r.Id.Name, "during") {
			n++
		}
		if r.ModifyIndex < out.Index {
			t.Errorf("%s was written at %d, before the restore at %d", r.Id.Name, r.ModifyIndex, out.Index)
		}
	}
	if n == 0 || n >= len(during) {
		t.Errorf("%d of %d writes around the restore are there", n, len(during))
	}

	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, values(all, last), "more", "1")
	cfg := nw.config(t, last.cfg.Node, last.cfg.Dir)
	calm(&cfg)
	all[last.cfg.Node] = mustOpen(t, cfg)
	for _, s := range values(all) {
		awaitText(t, s, "more", "1")
		if left := spools(t, s); len(left) > 0 {
			t.Errorf("%s: files left: %v", s.cfg.Node, left)
		}
	}
	same(t, values(all))
}

// same fails the test unless stores hold the same resources at the same versions.
func same(t *testing.T, stores []*Store) {
	t.Helper()
	var first []*pb.Resource
	for _, s := range stores {
		all, _, err := s.List(t.Context(), resource.Eventual, resource.Query{Type: testType})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = all
		}
		ok := len(all) == len(first)
		for i := range all {
			ok = ok && proto.Equal(all[i], first[i])
		}
		if !ok {
			t.Errorf("%s differs from %s", s.cfg.Node, stores[0].cfg.Node)
		}
	}
}

// TestRestoreLost: a leader that restores a snapshot when nobody hears it does not say that it did; the others go on without,
// and it does not mix what it has with what they have, neither now nor after a restart.
func TestRestoreLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRestoreLost)
}

func testRestoreLost(t *testing.T) {
	nw := pipes()
	all := group(t, nw, nil)
	leader := awaitLeader(t, values(all)...)
	put(t, leader, "x", "saved")
	m, data := saveData(t, leader)
	put(t, leader, "x", "2")
	for _, s := range values(all) {
		awaitText(t, s, "x", "2")
	}
	others := values(all, leader)
	nw.isolate(leader.cfg.Node, true) // it leads on for a second
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if out, err := leader.Restore(ctx, m, bytes.NewReader(data)); !errors.Is(err, resource.ErrUnknownOutcome) {
		t.Errorf("restored %+v, %v; want ErrUnknownOutcome", out, err)
	}
	if got := textOf(t, leader, resource.Eventual, "x"); got != "saved" {
		t.Fatalf("x = %q: the test is about a leader that has restored", got)
	}
	write(t, others, "y", "1")
	nw.isolate(leader.cfg.Node, false)
	awaitFailed(t, leader)
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, write(t, others, "z", "1"), resource.Strong, "x"); got != "2" {
		t.Errorf("x = %q for the others", got)
	}
	again := mustOpen(t, nw.config(t, leader.cfg.Node, leader.cfg.Dir))
	awaitFailed(t, again)

	// What its error says: removed, emptied, started anew.
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	next := awaitLeader(t, others...)
	if err := next.RemoveServer(t.Context(), leader.cfg.Node); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(leader.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	again = mustOpen(t, nw.config(t, leader.cfg.Node, leader.cfg.Dir))
	if err := next.AddNonvoter(t.Context(), leader.cfg.Node); err != nil {
		t.Fatal(err)
	}
	awaitText(t, again, "z", "1")
	if err := next.AddVoter(t.Context(), leader.cfg.Node); err != nil {
		t.Fatal(err)
	}
	same(t, append(others, again))
}

func awaitFailed(t *testing.T, s *Store) {
	t.Helper()
	select {
	case <-s.Failed():
		if err := s.Err(); !strings.Contains(err.Error(), "operator raft remove-peer "+s.cfg.Node) {
			t.Errorf("it failed: %v", err)
		}
	case <-time.After(waitLimit):
		t.Fatal("it goes on with a state that nobody else has")
	}
}

// TestRestoreLostByAFollower: a follower that the leader has sent a restored snapshot, and no more of five, notices too that
// the others go on without it.
func TestRestoreLostByAFollower(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRestoreLostByAFollower)
}

func testRestoreLostByAFollower(t *testing.T) {
	nw := pipes()
	names := []string{"a", "b", "c", "d", "e"}
	all := make(map[string]*Store)
	for _, node := range names {
		all[node] = mustOpen(t, nw.config(t, node, t.TempDir()))
	}
	for _, s := range all {
		if err := s.Bootstrap(names); err != nil && !errors.Is(err, ErrHasState) {
			t.Fatal(err)
		}
	}
	stores := func(nodes ...string) (out []*Store) {
		for _, node := range nodes {
			out = append(out, all[node])
		}
		return out
	}
	leader := write(t, stores(names...), "x", "saved")
	m, data := saveData(t, leader)
	put(t, leader, "x", "2")
	for _, s := range all {
		awaitText(t, s, "x", "2")
	}
	rest := slices.DeleteFunc(slices.Clone(names), func(node string) bool { return node == leader.cfg.Node })
	follower, others := all[rest[0]], stores(rest[1:]...)
	for _, s := range others {
		nw.isolate(s.cfg.Node, true)
	}
	done := make(chan error, 1)
	go func() { _, err := leader.Restore(t.Context(), m, bytes.NewReader(data)); done <- err }()
	awaitText(t, follower, "x", "saved")
	nw.isolate(follower.cfg.Node, true)
	nw.isolate(leader.cfg.Node, true)
	if err := <-done; !errors.Is(err, resource.ErrUnknownOutcome) {
		t.Errorf("restored: %v; want ErrUnknownOutcome", err)
	}
	for _, s := range others {
		nw.isolate(s.cfg.Node, false)
	}
	write(t, others, "y", "1")
	nw.isolate(follower.cfg.Node, false)
	awaitFailed(t, follower)
	nw.isolate(leader.cfg.Node, false)
	awaitFailed(t, leader)
	if got := textOf(t, write(t, others, "z", "1"), resource.Strong, "x"); got != "2" {
		t.Errorf("x = %q for the others", got)
	}
}

// TestRestoreByAMajority: what a leader and one follower have restored, and no more, stays when the leader is lost.
func TestRestoreByAMajority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRestoreByAMajority)
}

func testRestoreByAMajority(t *testing.T) {
	nw := pipes()
	all := group(t, nw, calm)
	leader := write(t, values(all), "x", "saved")
	m, data := saveData(t, leader)
	put(t, leader, "x", "2")
	away := values(all, leader)[0]
	nw.isolate(away.cfg.Node, true)
	mustRestore(t, leader, m, data)
	nw.isolate(leader.cfg.Node, true)
	nw.isolate(away.cfg.Node, false)
	rest := values(all, leader)
	write(t, rest, "y", "1")
	for _, s := range rest {
		awaitText(t, s, "y", "1")
		if got := textOf(t, s, resource.Eventual, "x"); got != "saved" {
			t.Errorf("%s: x = %q", s.cfg.Node, got)
		}
	}
	nw.isolate(leader.cfg.Node, false)
	awaitText(t, leader, "y", "1")
	same(t, values(all))
}

// TestCloseWhileRestoring: neither panics, and what is there afterwards is one state or the other.
func TestCloseWhileRestoring(t *testing.T) {
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
	caught, short := 0, 0
	for tries := 0; caught < 3; tries++ {
		if tries == 100 {
			t.Fatalf("of %d restores, %d were under way when they were looked at", tries, caught)
		}
		put(t, s, "x", "2")
		done := make(chan error, 1)
		go func() { _, err := s.Restore(t.Context(), m, bytes.NewReader(data)); done <- err }()
		for s.restoring.Load() == nil && len(done) == 0 {
			runtime.Gosched()
		}
		if len(done) > 0 { // this goroutine stood still for as long as that took
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			continue
		}
		caught++
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		err := <-done
		if err != nil {
			short++
		}
		s = mustOpen(t, loopback(t).config(t, "a", s.cfg.Dir))
		awaitLeader(t, s)
		all, _, lerr := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
		if x := textOf(t, s, resource.Strong, "x"); lerr != nil || err == nil && x != "" || len(all) != 2000+len(x) {
			t.Errorf("%d resources, x = %q, %v, after %v", len(all), x, lerr, err)
		}
		if left := spools(t, s); len(left) > 0 {
			t.Errorf("files left: %v", left)
		}
	}
	t.Logf("%d of %d restores that were under way at the close were cut short", short, caught)
}
