// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/resource"
)

// A voter that lost its directory must not elect a server that lacks
// acknowledged writes. It votes again after the leader has removed it, added it
// without a vote, and given it a vote.
func TestAdmission(t *testing.T) { synctest.Test(t, testAdmission) }

func testAdmission(t *testing.T) {
	nw := pipes()
	all := group(t, nw, nil)
	leader := write(t, values(all), "thing", "old")
	stale, renewed := values(all, leader)[0], values(all, leader)[1]
	for _, s := range all {
		awaitText(t, s, "thing", "old")
		<-s.Admitted() // by the first leader
	}
	nw.isolate(stale.cfg.Node, true)
	put(t, leader, "thing", "new") // on the disks of leader and renewed
	for _, s := range []*Store{leader, renewed} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	nw.isolate(stale.cfg.Node, false)
	cfg := nw.config(t, renewed.cfg.Node, t.TempDir())
	fresh := mustOpen(t, cfg)
	time.Sleep(time.Minute)
	if node, ok := stale.Leader(); ok || stale.IsLeader() || fresh.IsLeader() {
		t.Fatalf("leader = %q, want none: %s lacks an acknowledged write", node, stale.cfg.Node)
	}
	if !fresh.admission.joining() {
		t.Error("a store that has met no leader is admitted, want joining")
	}

	leader = mustOpen(t, nw.config(t, leader.cfg.Node, leader.cfg.Dir))
	awaitText(t, fresh, "thing", "new")
	if !leader.IsLeader() || !fresh.admission.joining() {
		t.Errorf("IsLeader() = %v, joining() = %v, want both true", leader.IsLeader(), fresh.admission.joining())
	}
	if err := fresh.Close(); err != nil { // the state survives a restart
		t.Fatal(err)
	}
	fresh = mustOpen(t, nw.config(t, fresh.cfg.Node, cfg.Dir))
	awaitText(t, fresh, "thing", "new")
	for _, change := range []func() error{
		func() error { return leader.RemoveServer(t.Context(), fresh.cfg.Node) },
		func() error { return leader.AddNonvoter(t.Context(), fresh.cfg.Node) },
		func() error { return leader.AddVoter(t.Context(), fresh.cfg.Node) },
	} {
		if !fresh.admission.joining() {
			t.Error("the store is admitted without a new vote, want joining")
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	<-fresh.Admitted()
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	next := awaitLeader(t, stale, fresh)
	if text := textOf(t, next, resource.Strong, "thing"); text != "new" {
		t.Errorf("thing = %q, want new", text)
	}
}
