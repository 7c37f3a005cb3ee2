// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestRestore_Group: after a restore, three servers under load have one state.
// It has nothing from before the restore, and everything that was acknowledged
// after it. So it is after the leader was lost, and on a server that was away.
func TestRestore_Group(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRestoreGroup)
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
			t.Errorf("x at %s = %q, want saved", s.cfg.Node, got)
		}
		for _, name := range before {
			if textOf(t, s, resource.Eventual, name) != "" {
				t.Errorf("%s has %s, which was written before the restore", s.cfg.Node, name)
			}
		}
	}
	same(t, values(all))
	// A write that was acknowledged during the restore is there if it came
	// after it.
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
			t.Errorf("ModifyIndex of %s = %d, want above %d", r.Id.Name, r.ModifyIndex, out.Index)
		}
	}
	if n == 0 || n >= len(during) {
		t.Errorf("%d of %d writes during the restore are there", n, len(during))
	}

	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, values(all, last), "more", "1")
	cfg := nw.config(t, last.cfg.Node, last.cfg.Dir)
	longHeartbeat(&cfg)
	all[last.cfg.Node] = mustOpen(t, cfg)
	for _, s := range values(all) {
		awaitText(t, s, "more", "1")
		if left := spools(t, s); len(left) > 0 {
			t.Errorf("temporary files of %s = %v, want none", s.cfg.Node, left)
		}
	}
	same(t, values(all))
}

// same checks that stores have the same resources at the same versions.
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
			t.Errorf("resources of %s differ from those of %s", s.cfg.Node, stores[0].cfg.Node)
		}
	}
}

// TestRestore_Majority: a snapshot that the leader and one follower have
// restored stays when the leader is lost.
func TestRestore_Majority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRestoreByAMajority)
}

func testRestoreByAMajority(t *testing.T) {
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
	rest := values(all, leader)
	write(t, rest, "y", "1")
	for _, s := range rest {
		awaitText(t, s, "y", "1")
		if got := textOf(t, s, resource.Eventual, "x"); got != "saved" {
			t.Errorf("x at %s = %q, want saved", s.cfg.Node, got)
		}
	}
	nw.isolate(leader.cfg.Node, false)
	awaitText(t, leader, "y", "1")
	same(t, values(all))
}
