// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestFailover: the leader is closed, then its successor cut off, under load: nothing acknowledged is lost, and both come
// back and catch up.
func TestFailover(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, quick)
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
	quick(&cfg)
	all[first.cfg.Node] = mustOpen(t, cfg)
	awaitText(t, all[first.cfg.Node], "between", "1")
	stop = load(t, "w", values(all))
	nw.isolate(second.cfg.Node, true)
	third := write(t, values(all, second), "after", "1")
	awaitWrites(t, third, 40)
	acked = append(acked, stop()...)

	// The one that is cut off answers nothing that is out of date.
	if _, err := second.Read(t.Context(), resource.Strong, &pb.ID{Type: testType, Name: "after"}); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("strong read of the server that was cut off: %v, want ErrNotLeader", err)
	}
	nw.isolate(second.cfg.Node, false)
	write(t, values(all), "last", "1")
	for _, s := range values(all) {
		awaitText(t, s, "last", "1")
		checkHas(t, s, append(acked, "before", "between", "after"))
	}
	t.Logf("%d writes acknowledged", len(acked))
}

// TestFollower: a follower serves eventual reads and watches, and nothing else.
func TestFollower(t *testing.T) {
	all := group(t, loopback(t), nil)
	leader := awaitLeader(t, values(all)...)
	f := values(all, leader)[0]
	until(t, "the follower knows the leader", []*Store{f}, func() bool {
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
	for _, want := range []bool{false, true} { // end of snapshot, upsert; or the other way round
		ev, err := w.Next(t.Context())
		if err != nil || (ev.GetUpsert() != nil) != want {
			t.Errorf("event %v, %v", ev, err)
		}
	}
	got, err := f.Read(t.Context(), resource.Eventual, r.Id)
	if err != nil || got.Version != r.Version || got.ModifyIndex != r.ModifyIndex {
		t.Errorf("the follower has %v, %v; the leader %v", got, err, r)
	}

	_, commitErr := f.Commit(t.Context(), resource.PutOp(thing(t, "y", "1"), ""))
	_, readErr := f.Read(t.Context(), resource.Strong, r.Id)
	_, _, listErr := f.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	for _, err := range []error{commitErr, readErr, listErr, f.AddVoter(t.Context(), "d"), f.RemoveServer(t.Context(), "a"), f.TransferLeadership(t.Context())} {
		if !errors.Is(err, resource.ErrNotLeader) || errors.Is(err, resource.ErrUnknownOutcome) {
			t.Errorf("on a follower: %v, want ErrNotLeader", err)
		}
	}
	if f.IsLeader() {
		t.Error("a follower says that it leads")
	}
	st := f.Stats()
	if st.State != "follower" || st.Leader != leader.cfg.Node || st.LastContact < 0 || st.StoreIndex != r.ModifyIndex || !slices.Equal(st.Voters, []string{"a", "b", "c"}) {
		t.Errorf("stats %+v", st)
	}
}

// TestNoMajority: a leader that is alone says so, in time, and does not claim to know what became of a write.
func TestNoMajority(t *testing.T) {
	synctest.Test(t, testNoMajority)
}

func testNoMajority(t *testing.T) {
	nw := pipes()
	all := group(t, nw, nil) // it goes on leading, for a while
	leader := awaitLeader(t, values(all)...)
	r := put(t, leader, "x", "1")
	nw.isolate(leader.cfg.Node, true)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := leader.Commit(ctx, resource.PutOp(thing(t, "y", "1"), ""))
	if !errors.Is(err, resource.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("commit without a majority: %v, want ErrUnknownOutcome and the deadline", err)
	}
	if _, err := leader.Read(ctx, resource.Strong, r.Id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("strong read: %v, want the deadline", err)
	}
	_, err = leader.Commit(t.Context(), resource.PutOp(thing(t, "z", "1"), ""))
	if !errors.Is(err, resource.ErrUnknownOutcome) && !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("commit that outlives leadership: %v", err)
	}
	if _, err := leader.Commit(t.Context(), resource.PutOp(thing(t, "z", "1"), "")); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("commit after the loss: %v, want ErrNotLeader", err)
	}
	if textOf(t, leader, resource.Eventual, "x") != "1" {
		t.Error("an eventual read needs no majority")
	}
}

// TestMembers: one server becomes three, and two again without its leader.
func TestMembers(t *testing.T) {
	synctest.Test(t, testMembers)
}

func testMembers(t *testing.T) {
	nw := pipes()
	config := func(node string) Config {
		cfg := nw.config(t, node, t.TempDir())
		cfg.Heartbeat = 500 * time.Millisecond // the group loses its leader at the end
		return cfg
	}
	a := mustOpen(t, config("a"))
	if a.HasState() {
		t.Error("a new store has state")
	}
	if err := a.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, a)
	if err := a.Bootstrap([]string{"a"}); !errors.Is(err, ErrHasState) || !a.HasState() {
		t.Errorf("second bootstrap: %v, has state %v", err, a.HasState())
	}
	if err := a.TransferLeadership(t.Context()); err == nil {
		t.Error("a lone server transferred leadership")
	}
	put(t, a, "x", "1")
	all := map[string]*Store{"a": a}
	for _, node := range []string{"b", "c"} {
		all[node] = mustOpen(t, config(node))
		if err := a.AddVoter(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		awaitText(t, all[node], "x", "1")
	}
	if err := a.AddVoter(t.Context(), "c"); err != nil {
		t.Errorf("adding a voter again: %v", err)
	}
	if err := a.AddVoter(t.Context(), "Not A Label"); err == nil {
		t.Error("a voter with a bad name was added")
	}
	if voters, err := a.Peers(); err != nil || !slices.Equal(voters, []string{"a", "b", "c"}) {
		t.Errorf("voters %v, %v", voters, err)
	}
	put(t, a, "y", "1") // needs b or c

	if err := a.RemoveServer(t.Context(), "d"); err != nil {
		t.Errorf("removing a stranger: %v", err)
	}
	if err := a.RemoveServer(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	next := awaitLeader(t, values(all, a)...)
	if voters, err := next.Peers(); err != nil || !slices.Equal(voters, []string{"b", "c"}) {
		t.Errorf("voters %v, %v", voters, err)
	}
	put(t, next, "z", "1")
	if a.IsLeader() || textOf(t, a, resource.Eventual, "y") != "1" {
		t.Error("the removed server leads, or lost what it had")
	}
}

func TestBootstrapRefuses(t *testing.T) {
	s := mustOpen(t, loopback(t).config(t, "a", t.TempDir()))
	for _, nodes := range [][]string{nil, {"b"}, {"a", "a"}, {"a", "B"}, {"a", "10.0.0.1:8300"}} {
		if err := s.Bootstrap(nodes); err == nil {
			t.Errorf("bootstrap %v was accepted", nodes)
		}
	}
	if s.HasState() {
		t.Error("a refused bootstrap left state")
	}
	if _, err := s.Commit(t.Context(), resource.PutOp(thing(t, "x", "1"), "")); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("commit before bootstrap: %v", err)
	}
}

// TestInstallSnapshot: a follower that was away so long that the log no longer goes back to it gets a snapshot; whoever watches
// there learns of it.
func TestInstallSnapshot(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, func(c *Config) { c.TrailingLogs, c.SegmentSize = 5, 4096 })
	leader := awaitLeader(t, values(all)...)
	away := values(all, leader)[0]
	put(t, leader, "old", "1")
	awaitText(t, away, "old", "1")
	w, err := away.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 2 { // old, end of snapshot
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
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	nw.isolate(away.cfg.Node, false)
	awaitText(t, away, "n39", "1")
	if got := textOf(t, away, resource.Eventual, "old"); got != "" {
		t.Errorf("the deleted resource came back as %q", got)
	}
	if ev, err := w.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
		t.Errorf("the watch over the restore: %v, %v; want ErrWatchReset", ev, err)
	}
	put(t, awaitLeader(t, values(all)...), "new", "1")
	awaitText(t, away, "new", "1")

	// And from disk: snapshot, then log.
	dir, node := away.cfg.Dir, away.cfg.Node
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	all[node] = mustOpen(t, nw.config(t, node, dir))
	awaitText(t, all[node], "new", "1")
}
