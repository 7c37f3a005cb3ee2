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
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// TestRestore_Lost restores a snapshot on an isolated leader. Restore must not
// report success. The other servers continue without the snapshot. The store of
// the old leader must then fail, also after a restart, because its state has
// diverged.
func TestRestore_Lost(t *testing.T) {
	t.Parallel()
	testutil.Bubble(t, testRestoreLost)
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
	nw.isolate(leader.cfg.Node, true) // the leader steps down only after seconds
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if out, err := leader.Restore(ctx, m, bytes.NewReader(data)); !errors.Is(err, resource.ErrUnknownOutcome) {
		t.Errorf("Restore() = %+v, %v, want ErrUnknownOutcome", out, err)
	}
	if got := textOf(t, leader, resource.Eventual, "x"); got != "saved" {
		t.Fatalf("Read(x) at the isolated leader = %q, want saved", got)
	}
	write(t, others, "y", "1")
	nw.isolate(leader.cfg.Node, false)
	awaitFailed(t, leader)
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, write(t, others, "z", "1"), resource.Strong, "x"); got != "2" {
		t.Errorf("Read(x) at the other servers = %q, want 2", got)
	}
	again := mustOpen(t, nw.config(t, leader.cfg.Node, leader.cfg.Dir))
	awaitFailed(t, again)

	// The error names this remedy: remove the server from the group, remove its
	// data directory, and start it again.
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

// awaitFailed waits until s fails, and checks the error.
func awaitFailed(t *testing.T, s *Store) {
	t.Helper()
	select {
	case <-s.Failed():
		if err, want := s.Err(), "operator raft remove-peer "+s.cfg.Node; !strings.Contains(err.Error(), want) {
			t.Errorf("Err() = %v, want an error with %q", err, want)
		}
	case <-time.After(waitLimit):
		t.Fatalf("Err() of the diverged store = %v, want an error", s.Err())
	}
}

// TestRestore_LostAtFollower restores a snapshot on the leader and one follower
// of five servers. The other servers continue without the snapshot. The
// follower must fail too.
func TestRestore_LostAtFollower(t *testing.T) {
	t.Parallel()
	testutil.Bubble(t, testRestoreLostAtFollower)
}

func testRestoreLostAtFollower(t *testing.T) {
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
	followers := slices.DeleteFunc(slices.Clone(names), func(node string) bool { return node == leader.cfg.Node })
	follower, others := all[followers[0]], stores(followers[1:]...)
	for _, s := range others {
		nw.isolate(s.cfg.Node, true)
	}
	done := make(chan error, 1)
	go func() { _, err := leader.Restore(t.Context(), m, bytes.NewReader(data)); done <- err }()
	awaitText(t, follower, "x", "saved")
	nw.isolate(follower.cfg.Node, true)
	nw.isolate(leader.cfg.Node, true)
	if err := <-done; !errors.Is(err, resource.ErrUnknownOutcome) {
		t.Errorf("Restore() = %v, want ErrUnknownOutcome", err)
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
		t.Errorf("Read(x) at the other servers = %q, want 2", got)
	}
}
