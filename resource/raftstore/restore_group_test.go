// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// TestRestore_Group restores a snapshot in a group of three servers under load.
// All servers must then have the same state: nothing from before the restore,
// and everything that was acknowledged after the restore. This includes a
// server that was isolated, and holds after the loss of the leader.
func TestRestore_Group(t *testing.T) {
	t.Parallel()
	testutil.Bubble(t, testRestoreGroup)
}

func testRestoreGroup(t *testing.T) {
	nw := pipes()
	all := group(t, nw, longHeartbeat)
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
			t.Errorf("Read(x) at %s = %q, want saved", s.cfg.Node, got)
		}
		for _, name := range before {
			if got := textOf(t, s, resource.Eventual, name); got != "" {
				t.Errorf("Read(%s) at %s = %q, want none: written before the restore", name, s.cfg.Node, got)
			}
		}
	}
	same(t, values(all))
	checkDuring(t, last, during, out.Index)

	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, values(all, last), "more", "1")
	cfg := nw.config(t, last.cfg.Node, last.cfg.Dir)
	longHeartbeat(&cfg)
	all[last.cfg.Node] = mustOpen(t, cfg)
	for _, s := range values(all) {
		awaitText(t, s, "more", "1")
		checkNoSpools(t, s)
	}
	same(t, values(all))
}

// checkDuring checks that s has some of the writes that were acknowledged
// during a restore at index. The restore removes the earlier ones.
func checkDuring(t *testing.T, s *Store, acked []string, index uint64) {
	t.Helper()
	stored, _, err := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range stored {
		if strings.HasPrefix(r.Id.Name, "during") {
			n++
		}
		if r.ModifyIndex < index {
			t.Errorf("ModifyIndex of %s = %d, want at least %d", r.Id.Name, r.ModifyIndex, index)
		}
	}
	if n == 0 || n >= len(acked) {
		t.Errorf("%d of %d writes during the restore are stored, want some but not all", n, len(acked))
	}
}

// same checks that all stores have the same resources with the same versions.
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
			t.Errorf("List() at %s = %v, want the resources of %s, %v", s.cfg.Node, all, stores[0].cfg.Node, first)
		}
	}
}

// TestRestore_Majority checks that a snapshot that the leader and one follower
// have restored survives the loss of the leader.
func TestRestore_Majority(t *testing.T) {
	t.Parallel()
	testutil.Bubble(t, testRestoreMajority)
}

func testRestoreMajority(t *testing.T) {
	nw := pipes()
	all := group(t, nw, longHeartbeat)
	leader := write(t, values(all), "x", "saved")
	m, data := saveData(t, leader)
	put(t, leader, "x", "2")
	away := values(all, leader)[0]
	nw.isolate(away.cfg.Node, true)
	mustRestore(t, leader, m, data)
	nw.isolate(leader.cfg.Node, true)
	nw.isolate(away.cfg.Node, false)
	others := values(all, leader)
	write(t, others, "y", "1")
	for _, s := range others {
		awaitText(t, s, "y", "1")
		if got := textOf(t, s, resource.Eventual, "x"); got != "saved" {
			t.Errorf("Read(x) at %s = %q, want saved", s.cfg.Node, got)
		}
	}
	nw.isolate(leader.cfg.Node, false)
	awaitText(t, leader, "y", "1")
	same(t, values(all))
}
