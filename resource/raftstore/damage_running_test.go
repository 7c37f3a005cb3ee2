// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// flip changes one byte of the text in a segment file of an open log.
func flip(t *testing.T, dir, text string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, logDir, "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(b, []byte(text)); at >= 0 {
			writeAt(t, path, []byte{b[at] ^ 0x20}, int64(at))
			return
		}
	}
	t.Fatalf("no segment file of %s has %q", dir, text)
}

func writeAt(t *testing.T, path string, b []byte, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// checkStopped checks that s ends because of damage, with an error that names
// the entry, the file and the remedy.
func checkStopped(t *testing.T, s *Store) {
	t.Helper()
	<-s.Failed()
	err := s.Err()
	if !errors.Is(err, raftlog.ErrDamaged) {
		t.Fatalf("Err() = %v, want ErrDamaged", err)
	}
	for _, want := range []string{"log entry ", filepath.Join(s.cfg.Dir, logDir), ".wal: ", "remove-peer " + s.cfg.Node} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Err() = %v, want %q in it", err, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close() after damage = %v, want nil", err)
	}
	if again, err := Open(s.cfg); !errors.Is(err, raftlog.ErrDamaged) {
		again.Close()
		t.Errorf("Open() of the damaged directory = %v, want ErrDamaged", err)
	}
}

// reopened returns a store on the directory of a closed one.
func reopened(t *testing.T, nw *network, s *Store) *Store {
	t.Helper()
	return mustOpen(t, nw.config(t, s.cfg.Node, s.cfg.Dir))
}

// TestDamage_FollowerRuns damages the log of a follower after its start, before
// it applies the log. The follower must end with a message. The others continue.
func TestDamage_FollowerRuns(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	stores := group(t, nw, nil)
	leader := awaitLeader(t, values(stores)...)
	for i := range 20 {
		put(t, leader, "n"+sprint(i), numbered(i))
	}
	follower := values(stores, leader)[0]
	node := follower.cfg.Node
	awaitText(t, follower, "n19", numbered(19))
	if err := follower.Close(); err != nil {
		t.Fatal(err)
	}
	nw.isolate(node, true)
	follower = reopened(t, nw, follower)
	flip(t, follower.cfg.Dir, numbered(7))
	nw.isolate(node, false)
	checkStopped(t, follower)
	leader = write(t, values(stores, stores[node]), "after", "1")
	if got := textOf(t, leader, resource.Strong, "n7"); got != numbered(7) {
		t.Errorf("n7 at the others = %q, want it unchanged", got)
	}
}

// TestDamage_LeaderRuns damages an entry that the leader must send to a server
// that was away. The leader must end with a message, and another server leads.
func TestDamage_LeaderRuns(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	stores := group(t, nw, nil)
	leader := awaitLeader(t, values(stores)...)
	away, other := values(stores, leader)[0], values(stores, leader)[1]
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		put(t, leader, "n"+sprint(i), numbered(i))
	}
	awaitText(t, other, "n199", numbered(199))
	flip(t, leader.cfg.Dir, numbered(7))
	away = reopened(t, nw, away)
	checkStopped(t, leader)
	awaitText(t, away, "n199", numbered(199))
	if got := textOf(t, away, resource.Eventual, "n7"); got != numbered(7) {
		t.Errorf("n7 at the server that was away = %q, want it unchanged", got)
	}
}

// TestDamage_SnapshotOfRunning damages the snapshot that a leader must send to a
// new server. The leader has the state in memory, so it writes another snapshot
// and sends that.
func TestDamage_SnapshotOfRunning(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	change := func(c *Config) { c.trailingLogs, c.segmentSize = 5, 8<<10 }
	stores := group(t, nw, change)
	leader := awaitLeader(t, values(stores)...)
	away := values(stores, leader)[0]
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		put(t, leader, "n"+sprint(i), numbered(i))
	}
	mustSnapshot(t, leader)
	paths, err := filepath.Glob(filepath.Join(leader.cfg.Dir, snapshotDir, "*", "state.bin"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("Glob() = %v, %v, want 1 snapshot", paths, err)
	}
	writeAt(t, paths[0], []byte("damage"), 1000)
	if err := leader.RemoveServer(t.Context(), away.cfg.Node); err != nil {
		t.Fatal(err)
	}
	fresh := mustOpen(t, nw.config(t, away.cfg.Node, t.TempDir()))
	if err := leader.AddVoter(t.Context(), away.cfg.Node); err != nil {
		t.Fatal(err)
	}
	awaitText(t, fresh, "n99", numbered(99))
	if err := leader.Err(); err != nil {
		t.Errorf("Err() of the leader = %v, want nil", err)
	}
}

// TestDamage_RandomWhileRunning damages the log or a snapshot of one server of
// three after its start, before it applies its log. The server must end with a
// message, or have the resources of the others.
func TestDamage_RandomWhileRunning(t *testing.T) {
	testutil.Cluster(t)
	const entries = 60
	rounds := 10
	if os.Getenv("WANFED_CHAOS") != "" {
		rounds = 200
	}
	g := newDamagedGroup(t, entries)
	ended := 0
	for seed := range uint64(rounds) {
		cfg := g.copy(t)
		g.nw.isolate(g.node, true)
		s := mustOpen(t, cfg)
		what := damageRunning(t, rand.New(rand.NewPCG(seed, 5)), cfg.Dir)
		g.nw.isolate(g.node, false)
		put(t, g.leader, "round", sprint(int(seed)))
		until(t, what+": the last write, or an error", func() bool {
			r, err := s.Read(t.Context(), resource.Eventual, &pb.ID{Type: testType, Name: "round"})
			n, _ := resource.Decode[*pb.Node](r)
			return s.Err() != nil || err == nil && n.GetNode() == sprint(int(seed))
		})
		if err := s.Err(); err != nil {
			ended++
			if !errors.Is(err, raftlog.ErrDamaged) || !strings.Contains(err.Error(), cfg.Dir) ||
				!strings.Contains(err.Error(), "remove-peer") {
				t.Errorf("%s: Err() = %q, want an error with the directory and a remedy", what, err)
			}
		} else {
			checkWritten(t, s, resource.Eventual, entries, what)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d ended with a message", ended, rounds)
}

// damageRunning overwrites a part of a file of an open store, and describes the
// change.
func damageRunning(t *testing.T, rnd *rand.Rand, dir string) string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"wal/*.wal", "wal/*.wal", "snapshots/*/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	path := files[rnd.IntN(len(files))]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used := max(len(bytes.TrimRight(b, "\x00")), 1)
	at := rnd.IntN(used)
	size := []int{1, 200, 512}[rnd.IntN(3)]
	damaged := make([]byte, min(size, len(b)-at))
	if size == 1 {
		damaged[0] = b[at] ^ byte(1+rnd.IntN(255))
	}
	writeAt(t, path, damaged, int64(at))
	return fmt.Sprintf("%d bytes at %d of %d in %s", len(damaged), at, used, filepath.Base(path))
}
