// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"os"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// A voter that lost its directory must not elect a server that lacks
// acknowledged writes. It votes again after the leader has removed it, added it
// without a vote, and given it a vote.
func TestAdmission(t *testing.T) { testutil.Bubble(t, testAdmission) }

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
	awaitLeader(t, leader) // a second candidacy of the stale store can interrupt its term
	if !fresh.admission.joining() {
		t.Error("a store that the group has not admitted again is admitted, want joining")
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

// A voter that returns with an older copy of its directory must not elect a
// server that lacks acknowledged writes. The last leader knows what the voter
// has confirmed.
func TestRejoin(t *testing.T) { testutil.Bubble(t, testRejoin) }

func testRejoin(t *testing.T) {
	nw := pipes()
	all := group(t, nw, nil)
	leader := write(t, values(all), "thing", "old")
	stale, outdated := values(all, leader)[0], values(all, leader)[1]
	for _, s := range all {
		awaitText(t, s, "thing", "old")
		<-s.Admitted()
	}
	if err := outdated.Close(); err != nil {
		t.Fatal(err)
	}
	older := t.TempDir()
	if err := os.CopyFS(older, os.DirFS(outdated.cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	node := outdated.cfg.Node
	outdated = mustOpen(t, nw.config(t, node, outdated.cfg.Dir))
	nw.isolate(stale.cfg.Node, true)
	put(t, leader, "thing", "new") // on the disks of leader and outdated
	awaitText(t, outdated, "thing", "new")
	term, index := leader.Confirmed(node)
	if outdated.LacksEntry(term, index) || index == 0 {
		t.Fatalf("LacksEntry(%d, %d) of the complete log = true, want false", term, index)
	}
	for _, s := range []*Store{leader, outdated} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	nw.isolate(stale.cfg.Node, false)

	cfg := nw.config(t, node, older)
	cfg.HoldVote = true
	outdated = mustOpen(t, cfg)
	time.Sleep(time.Minute)
	if !outdated.VoteHeld() || stale.IsLeader() || outdated.IsLeader() {
		t.Fatal("a leader was elected while the vote was held, want none")
	}
	if !outdated.LacksEntry(term, index) {
		t.Fatalf("LacksEntry(%d, %d) of the older log = false, want true", term, index)
	}
	if err := outdated.Rejoin(index); err != nil {
		t.Fatal(err)
	}
	outdated.ReleaseVote()
	time.Sleep(time.Minute)
	if stale.IsLeader() || outdated.IsLeader() {
		t.Fatal("a leader that lacks an acknowledged write was elected, want none")
	}
	if err := outdated.Close(); err != nil { // the state survives a restart
		t.Fatal(err)
	}
	outdated = mustOpen(t, nw.config(t, node, older))
	leader = mustOpen(t, nw.config(t, leader.cfg.Node, leader.cfg.Dir))
	awaitText(t, outdated, "thing", "new")
	awaitLeader(t, leader)
	for _, change := range []func() error{
		func() error { return leader.RemoveServer(t.Context(), node) },
		func() error { return leader.AddNonvoter(t.Context(), node) },
		func() error { return leader.AddVoter(t.Context(), node) },
	} {
		if !outdated.admission.joining() {
			t.Error("the store is admitted without a new vote, want joining")
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	<-outdated.Admitted()
}
