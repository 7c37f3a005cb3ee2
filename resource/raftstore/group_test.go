// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// TestFailover closes the leader under load, and isolates the next leader. It
// checks that no acknowledged write is lost and that both servers catch up.
func TestFailover(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	all := group(t, nw, shortHeartbeat)
	stop := load(t, "v", values(all))
	first := write(t, values(all), "before", "1")
	awaitWrites(t, first, 40)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := write(t, values(all, first), "between", "1")
	awaitWrites(t, second, 40)
	acked := stop()

	cfg := nw.config(t, first.cfg.Node, first.cfg.Dir)
	shortHeartbeat(&cfg)
	all[first.cfg.Node] = mustOpen(t, cfg)
	awaitText(t, all[first.cfg.Node], "between", "1")
	stop = load(t, "w", values(all))
	nw.isolate(second.cfg.Node, true)
	third := write(t, values(all, second), "after", "1")
	awaitWrites(t, third, 40)
	acked = append(acked, stop()...)

	// The isolated server must not return outdated data.
	if _, err := second.Read(t.Context(), resource.Strong,
		&pb.ID{Type: testType, Name: "after"}); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("strong Read() at the isolated server = %v, want ErrNotLeader", err)
	}
	nw.isolate(second.cfg.Node, false)
	write(t, values(all), "last", "1")
	for _, s := range values(all) {
		awaitText(t, s, "last", "1")
		checkHas(t, s, append(acked, "before", "between", "after"))
	}
	t.Logf("%d writes acknowledged", len(acked))
}

// TestFollower checks that a follower serves only eventual reads and watches.
func TestFollower(t *testing.T) {
	all := group(t, loopback(t), nil)
	leader := awaitLeader(t, values(all)...)
	f := values(all, leader)[0]
	until(t, "the follower to know the leader", func() bool {
		node, ok := f.Leader()
		return ok && node == leader.cfg.Node
	})
	w, err := f.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := put(t, leader, "x", "1")
	awaitText(t, f, "x", "1")
	for _, want := range []bool{false, true} { // the watch began before the write: end of snapshot, then upsert
		ev, err := w.Next(t.Context())
		if err != nil || (ev.GetUpsert() != nil) != want {
			t.Errorf("Next() = %v, %v, want an upsert: %t", ev, err, want)
		}
	}
	got, err := f.Read(t.Context(), resource.Eventual, r.Id)
	if err != nil || got.Version != r.Version || got.ModifyIndex != r.ModifyIndex {
		t.Errorf("Read() at the follower = %v, %v, want %v", got, err, r)
	}

	_, commitErr := f.Commit(t.Context(), resource.PutOp(thing(t, "y", "1"), ""))
	_, readErr := f.Read(t.Context(), resource.Strong, r.Id)
	_, _, listErr := f.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	for _, err := range []error{commitErr, readErr, listErr, f.AddVoter(t.Context(), "d"),
		f.RemoveServer(t.Context(), "a"), f.TransferLeadership(t.Context())} {
		if !errors.Is(err, resource.ErrNotLeader) || errors.Is(err, resource.ErrUnknownOutcome) {
			t.Errorf("error of a follower = %v, want ErrNotLeader", err)
		}
	}
	if f.IsLeader() {
		t.Error("IsLeader() of a follower = true, want false")
	}
	if contact := f.LastContact(); contact < 0 || !f.CaughtUp() {
		t.Errorf("LastContact() = %v, CaughtUp() = %t, want at least 0 and true", contact, f.CaughtUp())
	}
	if voters, err := f.Peers(); err != nil || !slices.Equal(voters, []string{"a", "b", "c"}) {
		t.Errorf("Peers() = %v, %v, want [a b c]", voters, err)
	}
}

// TestNoMajority checks that the calls of an isolated leader end with their
// context, and that the outcome of a write is unknown.
func TestNoMajority(t *testing.T) {
	testutil.Bubble(t, testNoMajority)
}

func testNoMajority(t *testing.T) {
	nw := pipes()
	all := group(t, nw, nil) // with the default heartbeat, an isolated leader leads longer than ctx
	leader := awaitLeader(t, values(all)...)
	r := put(t, leader, "x", "1")
	nw.isolate(leader.cfg.Node, true)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := leader.Commit(ctx, resource.PutOp(thing(t, "y", "1"), ""))
	if !errors.Is(err, resource.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Commit() without a majority = %v, want ErrUnknownOutcome and DeadlineExceeded", err)
	}
	if _, err := leader.Read(ctx, resource.Strong, r.Id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("strong Read() = %v, want DeadlineExceeded", err)
	}
	_, err = leader.Commit(t.Context(), resource.PutOp(thing(t, "z", "1"), ""))
	if !errors.Is(err, resource.ErrUnknownOutcome) && !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("Commit() that outlives the leadership = %v, want ErrUnknownOutcome or ErrNotLeader", err)
	}
	if _, err := leader.Commit(t.Context(),
		resource.PutOp(thing(t, "z", "1"), "")); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("Commit() after the leadership = %v, want ErrNotLeader", err)
	}
	if got := textOf(t, leader, resource.Eventual, "x"); got != "1" {
		t.Errorf("eventual Read(x) without a majority = %q, want 1", got)
	}
}

// TestMembers adds two servers to a group of one server, and then removes the
// leader.
func TestMembers(t *testing.T) {
	testutil.Bubble(t, testMembers)
}

func testMembers(t *testing.T) {
	nw := pipes()
	config := func(node string) Config {
		cfg := nw.config(t, node, t.TempDir())
		cfg.Heartbeat = 500 * time.Millisecond // the leader is removed at the end
		return cfg
	}
	a := mustOpen(t, config("a"))
	if a.HasState() {
		t.Error("HasState() of a new store = true, want false")
	}
	if err := a.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, a)
	if err := a.Bootstrap([]string{"a"}); !errors.Is(err, ErrHasState) || !a.HasState() {
		t.Errorf("second Bootstrap() = %v, HasState() = %v, want ErrHasState and true", err, a.HasState())
	}
	if err := a.TransferLeadership(t.Context()); err == nil {
		t.Error("TransferLeadership() of the only voter = nil, want an error")
	}
	put(t, a, "x", "1")
	all := map[string]*Store{"a": a}
	for _, node := range []string{"b", "c"} {
		all[node] = mustOpen(t, config(node))
		if err := a.AddNonvoter(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		awaitText(t, all[node], "x", "1")
		if err := a.AddVoter(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.AddVoter(t.Context(), "c"); err != nil {
		t.Errorf("AddVoter() of a voter = %v, want nil", err)
	}
	if err := a.AddVoter(t.Context(), "Not A Label"); err == nil {
		t.Error("AddVoter(Not A Label) = nil, want an error")
	}
	if voters, err := a.Peers(); err != nil || !slices.Equal(voters, []string{"a", "b", "c"}) {
		t.Errorf("Peers() = %v, %v, want [a b c]", voters, err)
	}
	put(t, a, "y", "1") // needs the vote of b or c

	if err := a.RemoveServer(t.Context(), "d"); err != nil {
		t.Errorf("RemoveServer(d) = %v, want nil: d is not a member", err)
	}
	if err := a.RemoveServer(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	next := awaitLeader(t, values(all, a)...)
	if voters, err := next.Peers(); err != nil || !slices.Equal(voters, []string{"b", "c"}) {
		t.Errorf("Peers() = %v, %v, want [b c]", voters, err)
	}
	put(t, next, "z", "1")
	if got := textOf(t, a, resource.Eventual, "y"); got != "1" || a.IsLeader() {
		t.Errorf("removed server: Read(y) = %q, IsLeader() = %t, want 1 and false", got, a.IsLeader())
	}
}

func TestBootstrap_Refuses(t *testing.T) {
	s := mustOpen(t, loopback(t).config(t, "a", t.TempDir()))
	for _, nodes := range [][]string{nil, {"b"}, {"a", "a"}, {"a", "B"}, {"a", "10.0.0.1:8300"}} {
		if err := s.Bootstrap(nodes); err == nil {
			t.Errorf("Bootstrap(%v) = nil, want an error", nodes)
		}
	}
	if s.HasState() {
		t.Error("HasState() after failed Bootstraps = true, want false")
	}
	if _, err := s.Commit(t.Context(), resource.PutOp(thing(t, "x", "1"), "")); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("Commit() before Bootstrap = %v, want ErrNotLeader", err)
	}
}

// TestInstallSnapshot checks that a follower that missed more entries than the
// leader's log has receives a snapshot, and that its watches are reset.
func TestInstallSnapshot(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	all := group(t, nw, func(c *Config) { c.trailingLogs, c.segmentSize = 5, 4096 })
	leader := awaitLeader(t, values(all)...)
	away := values(all, leader)[0]
	put(t, leader, "old", "1")
	awaitText(t, away, "old", "1")
	w, err := away.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 2 { // resource "old", then end of snapshot
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	nw.isolate(away.cfg.Node, true)
	for i := range 40 {
		put(t, leader, "n"+sprint(i), "1")
	}
	if _, err := leader.Commit(t.Context(), resource.RemoveOp(&pb.ID{Type: testType, Name: "old"}, "")); err != nil {
		t.Fatal(err)
	}
	mustSnapshot(t, leader)
	nw.isolate(away.cfg.Node, false)
	awaitText(t, away, "n39", "1")
	if got := textOf(t, away, resource.Eventual, "old"); got != "" {
		t.Errorf("Read(old) = %q, want none: the resource was deleted", got)
	}
	if ev, err := w.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("Next() of a watch over a snapshot = %v, %v, want ErrWatchReset", ev, err)
	}
	put(t, awaitLeader(t, values(all)...), "new", "1")
	awaitText(t, away, "new", "1")

	// After a restart, the follower reads the snapshot and the log.
	dir, node := away.cfg.Dir, away.cfg.Node
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	all[node] = mustOpen(t, nw.config(t, node, dir))
	awaitText(t, all[node], "new", "1")
}
