// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/resource"
)

// awaitMember waits until s says of node what ok wants.
func awaitMember(t *testing.T, s *Store, node string, ok func(Member) bool) Member {
	t.Helper()
	timeout := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond) // how far a server is, is no event
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
			t.Fatalf("%s never was as wanted in %+v", node, all)
		}
	}
}

// TestNonvoter: a new server follows without a vote, does not count for a majority, and is promoted; the leader knows how far
// it is.
func TestNonvoter(t *testing.T) {
	nw := loopback(t)
	config := func(node string) Config {
		return nw.config(t, node, t.TempDir())
	}
	a := mustOpen(t, config("a"))
	if all, err := a.Members(); err != nil || len(all) != 0 {
		t.Errorf("members before there is a group: %v, %v", all, err)
	}
	if err := a.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, a)
	put(t, a, "x", "1")
	b := mustOpen(t, config("b"))
	for range 2 { // the second finds it done
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
		t.Errorf("b is %+v", m)
	}
	if m := awaitMember(t, a, "a", level); !m.Voter || !m.Leader || m.LastContact != 0 {
		t.Errorf("a is %+v", m)
	}
	awaitMember(t, b, "a", func(m Member) bool { return m.Leader && m.LastContact >= 0 && m.LastIndex == 0 })
	if voters, err := a.Peers(); err != nil || !slices.Equal(voters, []string{"a"}) {
		t.Errorf("voters %v, %v", voters, err)
	}

	nw.isolate("b", true)
	put(t, a, "y", "1") // needs no other
	awaitMember(t, a, "b", func(m Member) bool { return m.LastIndex < a.LastIndex() && m.LastContact > 100*time.Millisecond })
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
		t.Errorf("members after the removal: %+v, %v", all, err)
	}
}

// TestTransferTo: leadership goes where it is sent, or stays.
func TestTransferTo(t *testing.T) {
	synctest.Test(t, testTransferTo)
}

func testTransferTo(t *testing.T) {
	nw := pipes()
	all := group(t, nw, func(c *Config) { c.Heartbeat = 500 * time.Millisecond })
	leader := awaitLeader(t, values(all)...)
	put(t, leader, "x", "1")
	others := values(all, leader)
	for node, want := range map[string]string{"d": "d is not a voter; the voters are [a b c]", leader.cfg.Node: "leads already"} {
		if err := leader.TransferLeadershipTo(t.Context(), node); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("transfer to %s: %v, want %s", node, err, want)
		}
	}
	for _, to := range []*Store{others[1], others[0], leader} {
		from := awaitLeader(t, values(all)...)
		if err := from.TransferLeadershipTo(t.Context(), to.cfg.Node); err != nil {
			t.Fatal(err)
		}
		if got := awaitLeader(t, values(all)...); got != to {
			t.Errorf("%s leads, not %s", got.cfg.Node, to.cfg.Node)
		}
	}

	nw.isolate("a", true)
	from := awaitLeader(t, all["b"], all["c"])
	write(t, []*Store{all["b"], all["c"]}, "y", "1")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := from.TransferLeadershipTo(ctx, "a"); err == nil {
		t.Error("leadership went to a server that is cut off")
	}

	// The leader loses leadership meanwhile, but not to that one, which cannot win.
	from = write(t, []*Store{all["b"], all["c"]}, "y", "1")
	third := values(all, from, all["a"])[0]
	done := make(chan error, 1)
	go func() { done <- from.TransferLeadershipTo(t.Context(), "a") }()
	synctest.Wait()
	nw.isolate(from.cfg.Node, true)
	until(t, "it leads no more", []*Store{from}, func() bool { return !from.IsLeader() })
	nw.isolate("a", false)
	awaitLeader(t, third)
	nw.isolate(from.cfg.Node, false)
	if err := <-done; err == nil || !strings.Contains(err.Error(), third.cfg.Node+" was elected, not a") {
		t.Errorf("leadership went to %s: %v", third.cfg.Node, err)
	}
	s := write(t, values(all), "z", "1")
	if got := textOf(t, s, resource.Strong, "y"); got != "1" {
		t.Errorf("y = %q afterwards", got)
	}
}
