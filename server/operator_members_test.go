// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// datacenter is what the rules see, in short: "a* b+ c! d- e?" are voters, of which a leads, b is alive, c failed, d left and e is
// unknown to the pool. A name in capitals has no vote; one in brackets is not in the group.
func datacenter(text string) (servers []raftstore.Member, members []gossip.Member) {
	for word := range strings.FieldsSeq(text) {
		name, in := strings.CutPrefix(word, "(")
		in = !in
		name = strings.TrimSuffix(name, ")")
		mark := name[len(name)-1]
		name = name[:len(name)-1]
		node := strings.ToLower(name)
		status := map[byte]gossip.Status{'*': gossip.StatusAlive, '+': gossip.StatusAlive, '!': gossip.StatusFailed, '-': gossip.StatusLeft}[mark]
		if mark != '?' {
			members = append(members, gossip.Member{Name: node, Status: status, Tags: map[string]string{tagExpect: "3"}})
		}
		if in {
			contact := 10 * time.Millisecond
			if status != gossip.StatusAlive {
				contact = -1
			}
			servers = append(servers, raftstore.Member{Node: node, Voter: name == node, Leader: mark == '*', LastIndex: 100, LastContact: contact})
		}
	}
	return servers, members
}

func texts(todo []change) string {
	var out []string
	for _, c := range todo {
		out = append(out, c.do+" "+c.node)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func noHold(gossip.Member) bool { return false }

// TestDeadServers: what is removed of a group after its servers have been as said for longer than the threshold, one after the
// other until nothing more is.
func TestDeadServers(t *testing.T) {
	const after = 10 * time.Minute
	for _, tt := range []struct {
		group  string
		expect int
		want   string
		warned string
	}{
		{"a* b+ c+", 3, "", ""},
		{"a* b+ c!", 3, "c", ""},
		{"a* b+ c?", 3, "c", ""}, // all others started anew, and never saw it
		{"a* b+ c-", 3, "", ""},  // stopped cleanly: a rolling restart
		{"a* b! c!", 3, "", "more than a minority"},
		{"a* b+", 3, "", ""},
		{"a* b!", 3, "", "more than a minority"},
		{"a* b! c-", 3, "", "more than a minority"},
		{"a* b+ c+ d! e!", 5, "d e", ""},
		{"a* b+ c+ d! e-", 5, "d", ""},
		{"a* b+ c! d! e!", 5, "", "more than a minority"},
		{"a* b+ c+ d!", 5, "d", ""},
		{"a* b+ c!", 5, "", "2 voters would remain, and 5 servers (bootstrap_expect) need 3"},
		{"a* b+ c!", 1, "c", ""},                   // the others expect 3
		{"a* b+ c+ D! E!", 3, "d e", ""},           // no votes: no rule
		{"a* b! C!", 3, "c", "than a minority"},    // nor does one with a vote keep them
		{"a* b+ c+ d+ e+ f! g!", 3, "f g", ""},     // more than expected
		{"a* b+ c! D+", 3, "c", ""},                // its replacement gets a vote besides
		{"a* b+ c- d- e!", 5, "", "3 of 5 voters"}, // a majority is down
	} {
		m := newMembership("a", tt.expect, after)
		servers, members := datacenter(tt.group)
		now := time.Unix(0, 0)
		var removed []string
		look := func() bool {
			todo, again := m.plan(now, servers, 100, members, noHold)
			for _, c := range todo {
				if c.do == remove {
					removed = append(removed, c.node)
					servers = slices.DeleteFunc(servers, func(s raftstore.Member) bool { return s.Node == c.node })
				}
			}
			if len(todo) == 0 && again <= 0 {
				t.Errorf("%s: nothing to do, and at once again", tt.group)
			}
			return len(removed) > 0
		}
		if look() {
			t.Errorf("%s: removed %v at once", tt.group, removed)
		}
		now = now.Add(after - time.Second)
		if look() {
			t.Errorf("%s: removed %v too early", tt.group, removed)
		}
		now = now.Add(2 * time.Second)
		for range 6 {
			look()
		}
		if got := strings.Join(removed, " "); got != tt.want {
			t.Errorf("%s of %d: removed %q, want %q", tt.group, tt.expect, got, tt.want)
		}
		switch warned := strings.Join(m.warned, "; "); {
		case tt.warned == "" && warned != "", !strings.Contains(warned, tt.warned):
			t.Errorf("%s: warned %q, want %q", tt.group, warned, tt.warned)
		}
		seen := map[string]bool{}
		for _, w := range m.warned {
			if seen[w] {
				t.Errorf("%s: warned twice: %s", tt.group, w)
			}
			seen[w] = true
		}
	}
}

// TestDownCountsFromTheLastContact: what Raft hears of counts, whatever the pool says; and one that comes back begins anew.
func TestDownCountsFromTheLastContact(t *testing.T) {
	const after = time.Minute
	m := newMembership("a", 3, after)
	servers, members := datacenter("a* b+ c!")
	now := time.Unix(0, 0)
	step := func(d time.Duration, contact time.Duration, want string) {
		t.Helper()
		now = now.Add(d)
		servers[2].LastContact = contact
		todo, _ := m.plan(now, servers, 100, members, noHold)
		if got := texts(todo); got != want {
			t.Errorf("at %v: %q, want %q", now.Sub(time.Unix(0, 0)), got, want)
		}
	}
	step(0, -1, "")
	step(50*time.Second, time.Second, "") // heard of at 49 s
	step(20*time.Second, -1, "")
	members[2].Status = gossip.StatusAlive
	step(5*time.Second, time.Millisecond, "")
	members[2].Status = gossip.StatusFailed
	step(5*time.Second, -1, "") // down from 80 s on
	step(59*time.Second, -1, "")
	step(time.Second, -1, "remove c")
}

// TestNewServers: without a vote until they have been alive and level long enough.
func TestNewServers(t *testing.T) {
	m := newMembership("a", 3, time.Hour)
	servers, members := datacenter("a* b+ c+ (d+) (e!)")
	now := time.Unix(0, 0)
	if todo, _ := m.plan(now, servers, 1000, members, noHold); texts(todo) != "add d" {
		t.Fatalf("at first %v", todo)
	}
	if todo, _ := m.plan(now, servers, 1000, members, func(gossip.Member) bool { return true }); len(todo) > 0 {
		t.Fatalf("held, but %v", todo)
	}
	for _, s := range []struct {
		after   time.Duration
		index   uint64
		contact time.Duration
		status  gossip.Status
		want    string
		what    string
	}{
		{0, 0, -1, gossip.StatusAlive, "", "nothing is known of it"},
		{time.Minute, 700, time.Millisecond, gossip.StatusAlive, "", "it is behind"},
		{time.Minute, 800, time.Millisecond, gossip.StatusAlive, "", "level from now on"},
		{stableFor - time.Second, 1000, time.Millisecond, gossip.StatusAlive, "", "not for long"},
		{time.Second / 2, 1000, levelContact, gossip.StatusAlive, "", "silent"},
		{time.Second / 2, 1000, time.Millisecond, gossip.StatusAlive, "", "level again"},
		{stableFor - time.Second, 1000, time.Millisecond, gossip.StatusFailed, "", "failed"},
		{time.Second, 1000, time.Millisecond, gossip.StatusAlive, "", "alive again"},
		{stableFor, 1000, time.Millisecond, gossip.StatusAlive, "give a vote d", "all is well"},
	} {
		now = now.Add(s.after)
		members[3].Status = s.status
		all := append(slices.Clone(servers), raftstore.Member{Node: "d", LastIndex: s.index, LastContact: s.contact})
		todo, again := m.plan(now, all, 1000, members, noHold)
		if got := texts(todo); got != s.want {
			t.Errorf("%s: %q, want %q", s.what, got, s.want)
		}
		if len(todo) == 0 && again > lookAtNew {
			t.Errorf("%s: looked at again in %v", s.what, again)
		}
	}
}

// TestHolds: an operator's removal holds until the server stops, or long enough.
func TestHolds(t *testing.T) {
	var h holds
	now := time.Unix(0, 0)
	h.add("b", now.Add(time.Minute))
	h.add("c", now.Add(time.Minute))
	h.add("d", now.Add(time.Minute))
	h.drop("d")
	_, members := datacenter("a* b+ c! d+")
	h.prune(members)
	var on []string
	for _, node := range []string{"a", "b", "c", "d"} {
		on = append(on, fmt.Sprint(h.on(node, now)))
	}
	if got := strings.Join(on, " "); got != "false true false false" {
		t.Errorf("held: %s", got)
	}
	if h.on("b", now.Add(time.Minute)) {
		t.Error("held for ever")
	}
}
