// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/resource"
)

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
