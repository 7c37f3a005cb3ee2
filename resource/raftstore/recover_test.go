// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/resource"
)

// Two of three servers are lost. The third becomes the only voter, with
// everything that its log has, and new servers join.
func TestRecovery(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, shortHeartbeat)
	leader := write(t, values(all), "thing", "kept")
	survivor := values(all, leader)[0]
	awaitText(t, survivor, "thing", "kept")
	put(t, leader, "other", "kept")
	last := leader.LastIndex()
	until(t, "the survivor has all entries", func() bool { return survivor.LastIndex() >= last })
	dir, node := survivor.cfg.Dir, survivor.cfg.Node
	if _, err := OpenRecovery(dir, testLogger()); err == nil ||
		!strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("OpenRecovery() of a running store = %v, want an error", err)
	}
	for _, s := range all {
		s.Close()
	}

	index := recoverDir(t, dir, []string{"a", "b", "c"}, last)
	if again := recoverDir(t, dir, []string{node}, index); again <= index {
		t.Errorf("index of a second recovery = %d, want more than %d", again, index)
	}
	cfg := nw.config(t, node, dir)
	shortHeartbeat(&cfg)
	s := mustOpen(t, cfg)
	awaitLeader(t, s)
	for _, name := range []string{"thing", "other"} {
		if text := textOf(t, s, resource.Strong, name); text != "kept" {
			t.Errorf("%s after the recovery = %q, want kept", name, text)
		}
	}
	if r := put(t, s, "thing", "new"); r.ModifyIndex <= index {
		t.Errorf("index of a new write = %d, want more than %d", r.ModifyIndex, index)
	}
	lost := values(all, survivor)[0].cfg.Node // joins again with an empty directory
	cfg = nw.config(t, lost, t.TempDir())
	shortHeartbeat(&cfg)
	empty := mustOpen(t, cfg)
	if err := s.AddVoter(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	awaitText(t, empty, "thing", "new")
	if peers, err := s.Peers(); err != nil || !slices.Contains(peers, lost) || len(peers) != 2 {
		t.Errorf("Peers() = %v, %v, want two voters", peers, err)
	}
}

// recoverDir recovers dir, and returns the new index.
func recoverDir(t *testing.T, dir string, voters []string, last uint64) uint64 {
	t.Helper()
	r, err := OpenRecovery(dir, testLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.LastIndex < last || r.LastTime.IsZero() || !slices.Equal(r.Voters, voters) {
		t.Errorf("Recovery = %+v, want voters %v and entries up to %d", r, voters, last)
	}
	index, err := r.Run()
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func TestOpenRecovery_NoState(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenRecovery(dir, testLogger()); err == nil || !strings.Contains(err.Error(), "has no Raft state") {
		t.Errorf("OpenRecovery() of an empty directory = %v, want an error", err)
	}
	mustOpen(t, loopback(t).config(t, "a", dir)).Close()
	if _, err := OpenRecovery(dir, testLogger()); err == nil ||
		!strings.Contains(err.Error(), "has never been in a group") {
		t.Errorf("OpenRecovery() of a new store = %v, want an error", err)
	}
}
