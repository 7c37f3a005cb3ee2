// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// awaitMember waits until ok accepts the Member of node at s, and returns the
// Member.
func awaitMember(t *testing.T, s *Store, node string, ok func(Member) bool) Member {
	t.Helper()
	timeout := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond) // the store has no event for progress
	defer tick.Stop()
	for {
		all, err := s.Members()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(m Member) bool { return m.Node == node })
		if i >= 0 && ok(all[i]) {
			return all[i]
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("Members() = %+v, want another state of %s", all, node)
		}
	}
}

// TestNonvoter adds a server without a vote, which does not count for a
// majority, and then makes the server a voter. The leader reports how much of
// the log the server has.
func TestNonvoter(t *testing.T) {
	nw := loopback(t)
	config := func(node string) Config {
		return nw.config(t, node, t.TempDir())
	}
	a := mustOpen(t, config("a"))
	if all, err := a.Members(); err != nil || len(all) != 0 {
		t.Errorf("Members() before Bootstrap = %v, %v, want none", all, err)
	}
	if err := a.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, a)
	put(t, a, "x", "1")
	b := mustOpen(t, config("b"))
	for range 2 { // the second call has no effect
		if err := a.AddNonvoter(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.AddNonvoter(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	awaitText(t, b, "x", "1")
	level := func(m Member) bool { return m.LastIndex == a.LastIndex() && m.LastContact >= 0 }
	if m := awaitMember(t, a, "b", level); m.Voter || m.Leader {
		t.Errorf("Member b = %+v, want a nonvoter that is up to date", m)
	}
	if m := awaitMember(t, a, "a", level); !m.Voter || !m.Leader || m.LastContact != 0 {
		t.Errorf("Member a = %+v, want the leader", m)
	}
	awaitMember(t, b, "a", func(m Member) bool { return m.Leader && m.LastContact >= 0 && m.LastIndex == 0 })
	if voters, err := a.Peers(); err != nil || !slices.Equal(voters, []string{"a"}) {
		t.Errorf("Peers() = %v, %v, want [a]", voters, err)
	}

	nw.isolate("b", true)
	put(t, a, "y", "1") // needs no vote of another server
	awaitMember(t, a, "b", func(m Member) bool {
		return m.LastIndex < a.LastIndex() &&
			m.LastContact > 100*time.Millisecond
	})
	nw.isolate("b", false)
	awaitText(t, b, "y", "1")
	if err := a.AddVoter(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	awaitMember(t, a, "b", func(m Member) bool { return m.Voter })

	// A server without a vote can be removed too.
	c := mustOpen(t, config("c"))
	if err := a.AddNonvoter(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	awaitText(t, c, "y", "1")
	if err := a.RemoveServer(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if all, err := a.Members(); err != nil || len(all) != 2 {
		t.Errorf("Members() after RemoveServer = %+v, %v, want two", all, err)
	}
}

// TestTransferLeadershipTo checks that leadership moves to the named server, or
// that the call fails.
func TestTransferLeadershipTo(t *testing.T) {
	testutil.Bubble(t, testTransferTo)
}

func testTransferTo(t *testing.T) {
	nw := pipes()
	all := group(t, nw, func(c *Config) { c.Heartbeat = 500 * time.Millisecond })
	leader := awaitLeader(t, values(all)...)
	put(t, leader, "x", "1")
	others := values(all, leader)
	for node, want := range map[string]string{"d": "d is not a voter; the voters are [a b c]",
		leader.cfg.Node: "leads already"} {
		if err := leader.TransferLeadershipTo(t.Context(), node); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("TransferLeadershipTo(%s) = %v, want an error with %q", node, err, want)
		}
	}
	for _, to := range []*Store{others[1], others[0], leader} {
		from := awaitLeader(t, values(all)...)
		if err := from.TransferLeadershipTo(t.Context(), to.cfg.Node); err != nil {
			t.Fatal(err)
		}
		if got := awaitLeader(t, values(all)...); got != to {
			t.Errorf("leader = %s, want %s", got.cfg.Node, to.cfg.Node)
		}
	}

	nw.isolate("a", true)
	from := awaitLeader(t, all["b"], all["c"])
	write(t, []*Store{all["b"], all["c"]}, "y", "1")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := from.TransferLeadershipTo(ctx, "a"); err == nil {
		t.Error("TransferLeadershipTo() an isolated server = nil, want an error")
	}

	// During the transfer, a server other than the named server becomes leader.
	from = write(t, []*Store{all["b"], all["c"]}, "y", "1")
	third := values(all, from, all["a"])[0]
	done := make(chan error, 1)
	go func() { done <- from.TransferLeadershipTo(t.Context(), "a") }()
	synctest.Wait()
	nw.isolate(from.cfg.Node, true)
	until(t, "IsLeader() = false at the old leader", func() bool { return !from.IsLeader() })
	nw.isolate("a", false)
	awaitLeader(t, third)
	nw.isolate(from.cfg.Node, false)
	if err := <-done; err == nil || !strings.Contains(err.Error(), third.cfg.Node+" was elected, not a") {
		t.Errorf("TransferLeadershipTo(a) = %v, want an error that names %s", err, third.cfg.Node)
	}
	s := write(t, values(all), "z", "1")
	if got := textOf(t, s, resource.Strong, "y"); got != "1" {
		t.Errorf("Read(y) after the transfers = %q, want 1", got)
	}
}
