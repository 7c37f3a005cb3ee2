// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// datacenter parses a short description of a Raft group and a LAN pool. In "a*
// b+ c! d- e?", a leads, b is alive, c failed, d left, and e is not in the
// pool. A server in upper case has no vote. A server in parentheses is not in
// the group.
func datacenter(text string) (servers []raftstore.Member, members []gossip.Member) {
	statuses := map[byte]gossip.Status{
		'*': gossip.StatusAlive, '+': gossip.StatusAlive, '!': gossip.StatusFailed, '-': gossip.StatusLeft,
	}
	for word := range strings.FieldsSeq(text) {
		name, outside := strings.CutPrefix(word, "(")
		name = strings.TrimSuffix(name, ")")
		mark := name[len(name)-1]
		name = name[:len(name)-1]
		node, status := strings.ToLower(name), statuses[mark]
		if mark != '?' {
			tags := map[string]string{TagExpect: "3"}
			members = append(members, gossip.Member{Name: node, Status: status, Tags: tags})
		}
		if outside {
			continue
		}
		contact := 10 * time.Millisecond
		if status != gossip.StatusAlive {
			contact = -1
		}
		servers = append(servers, raftstore.Member{
			Node: node, Voter: name == node, Leader: mark == '*', LastIndex: 100, LastContact: contact,
		})
	}
	return servers, members
}

func textOf(changes []change) string {
	var out []string
	for _, c := range changes {
		out = append(out, string(c.kind)+" "+c.node)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func excludeNone(gossip.Member) bool { return false }

func TestPlan_RemovesDeadServers(t *testing.T) {
	for _, tt := range []struct {
		group   string
		expect  int
		removed string // servers in the order of their removal
		warning string // part of a warning
	}{
		{"a* b+ c+", 3, "", ""},
		{"a* b+ c!", 3, "c", ""},
		{"a* b+ c?", 3, "c", ""}, // the pool has no member c after a restart of a and b
		{"a* b+ c-", 3, "", ""},  // c stopped cleanly, as in a rolling restart
		{"a* b! c!", 3, "", "more than a minority"},
		{"a* b+", 3, "", ""}, // no server is down
		{"a* b!", 3, "", "more than a minority"},
		{"a* b! c-", 3, "", "more than a minority"}, // c is down too, so only a is up
		{"a* b+ c+ d! e!", 5, "d e", ""},
		{"a* b+ c+ d! e-", 5, "d", ""}, // e stopped cleanly and stays
		{"a* b+ c! d! e!", 5, "", "more than a minority"},
		{"a* b+ c+ d!", 5, "d", ""},
		{"a* b+ c!", 5, "", "2 voters would remain, and 5 servers (bootstrap_expect) need 3"},
		{"a* b+ c!", 1, "c", ""},                   // the other servers expect 3
		{"a* b+ c+ D! E!", 3, "d e", ""},           // servers without a vote may always be removed
		{"a* b! C!", 3, "c", "than a minority"},    // c is removed although b must stay
		{"a* b+ c+ d+ e+ f! g!", 3, "f g", ""},     // more servers than expected
		{"a* b+ c! D+", 3, "c", ""},                // d gets a vote and replaces c
		{"a* b+ c- d- e!", 5, "", "3 of 5 voters"}, // a majority is down
	} {
		t.Run(tt.group, func(t *testing.T) { testRemoval(t, tt.group, tt.expect, tt.removed, tt.warning) })
	}
}

func testRemoval(t *testing.T, group string, expect int, wantRemoved, wantWarning string) {
	const deadAfter = 10 * time.Minute
	m := newMembership("a", expect)
	m.deadAfter = deadAfter
	servers, members := datacenter(group)
	now := time.Unix(0, 0)
	var removed []string
	step := func() {
		changes, wait := m.plan(now, servers, 100, members, excludeNone)
		for _, c := range changes {
			if c.kind == removeServer {
				removed = append(removed, c.node)
				servers = slices.DeleteFunc(servers, func(s raftstore.Member) bool { return s.Node == c.node })
			}
		}
		if len(changes) == 0 && wait <= 0 {
			t.Errorf("plan() = no changes, wait %v, want a positive wait", wait)
		}
	}
	for _, d := range []time.Duration{0, deadAfter - time.Second} {
		now = now.Add(d)
		if step(); len(removed) > 0 {
			t.Errorf("removed servers after %v = %v, want none before %v", now.Sub(time.Unix(0, 0)), removed, deadAfter)
		}
	}
	now = now.Add(2 * time.Second)
	for range 6 {
		step()
	}
	if got := strings.Join(removed, " "); got != wantRemoved {
		t.Errorf("removed servers with expect %d = %q, want %q", expect, got, wantRemoved)
	}
	warnings, unique := "", map[warning]bool{}
	for _, w := range m.warnings {
		warnings += w.node + ": " + w.reason + "; "
		unique[w] = true
	}
	if wantWarning == "" && warnings != "" || !strings.Contains(warnings, wantWarning) ||
		len(unique) != len(m.warnings) {
		t.Errorf("warnings = %q, want each once, with %q", warnings, wantWarning)
	}
}

// TestPlan_DownSinceLastContact proves that the outage of a server begins with
// the last contact of Raft, not with the report of the pool.
func TestPlan_DownSinceLastContact(t *testing.T) {
	start := time.Unix(0, 0)
	m := newMembership("a", 3)
	m.deadAfter = time.Minute
	servers, members := datacenter("a* b+ c!")
	now := start
	step := func(d time.Duration, contact time.Duration, want string) {
		t.Helper()
		now = now.Add(d)
		servers[2].LastContact = contact
		changes, _ := m.plan(now, servers, 100, members, excludeNone)
		if got := textOf(changes); got != want {
			t.Errorf("at %v: plan() = %q, want %q", now.Sub(start), got, want)
		}
	}
	step(0, -1, "")
	step(50*time.Second, time.Second, "") // last contact at 49 s
	step(20*time.Second, -1, "")
	members[2].Status = gossip.StatusAlive
	step(5*time.Second, time.Millisecond, "")
	members[2].Status = gossip.StatusFailed
	step(5*time.Second, -1, "") // down since 80 s
	step(59*time.Second, -1, "")
	step(time.Second, -1, "remove c")
}

func TestPlan_NewServersGetVotesOnceStable(t *testing.T) {
	m := newMembership("a", 3)
	m.deadAfter = time.Hour
	servers, members := datacenter("a* b+ c+ (d+) (e!)")
	now := time.Unix(0, 0)
	if changes, _ := m.plan(now, servers, 1000, members, excludeNone); textOf(changes) != "add d" {
		t.Fatalf("plan() = %v, want add d", changes)
	}
	excludeAll := func(gossip.Member) bool { return true }
	if changes, _ := m.plan(now, servers, 1000, members, excludeAll); len(changes) > 0 {
		t.Fatalf("plan() = %v while d is excluded, want no changes", changes)
	}
	const isAlive, failed = gossip.StatusAlive, gossip.StatusFailed
	for _, s := range []struct {
		after   time.Duration
		index   uint64
		contact time.Duration
		status  gossip.Status
		want    string
		when    string
	}{
		{0, 0, -1, isAlive, "", "the index of d is unknown"},
		{time.Minute, 700, time.Millisecond, isAlive, "", "d is behind"},
		{time.Minute, 800, time.Millisecond, isAlive, "", "d becomes up to date"},
		{StableTime - time.Second, 1000, time.Millisecond, isAlive, "", "d is not stable yet"},
		{time.Second / 2, 1000, recentContact, isAlive, "", "d has no contact"},
		{time.Second / 2, 1000, time.Millisecond, isAlive, "", "d is up to date again"},
		{StableTime - time.Second, 1000, time.Millisecond, failed, "", "d has failed"},
		{time.Second, 1000, time.Millisecond, isAlive, "", "d is alive again"},
		{StableTime, 1000, time.Millisecond, isAlive, "give a vote d", "d is stable"},
	} {
		now = now.Add(s.after)
		members[3].Status = s.status
		d := raftstore.Member{Node: "d", LastIndex: s.index, LastContact: s.contact}
		changes, wait := m.plan(now, append(slices.Clone(servers), d), 1000, members, excludeNone)
		if got := textOf(changes); got != s.want {
			t.Errorf("plan() when %s = %q, want %q", s.when, got, s.want)
		}
		if len(changes) == 0 && wait > nonvoterInterval {
			t.Errorf("plan() when %s = wait %v, want at most %v", s.when, wait, nonvoterInterval)
		}
	}
}

// A voter with a new data directory is removed, and then added without a vote,
// unless the other voters have no quorum.
func TestPlan_RenewedVoter(t *testing.T) {
	for _, tt := range []struct {
		group, want string
		silent      bool // c has not responded to the leader recently
	}{
		{group: "a* b+ c+", want: "remove c"},
		{group: "a* b+ c+", silent: true},
		{group: "a* b! c+"},
		{group: "a* B+ c+", want: "remove c"},
		{group: "a* b+ C+"},
	} {
		servers, members := datacenter(tt.group)
		find(members, "c").Tags[TagJoining] = "1"
		for i := range servers { // members without a vote do not get one
			if !servers[i].Voter {
				servers[i].LastIndex = 0
			}
			if tt.silent && servers[i].Node == "c" {
				servers[i].LastContact = runningContact
			}
		}
		m := newMembership("a", 3)
		m.deadAfter = time.Hour
		start := time.Now()
		got := ""
		for now := start; now.Before(start.Add(2 * joiningTime)); {
			changes, wait := m.plan(now, servers, 100, members, excludeNone)
			if got = textOf(changes); got != "" {
				if now.Sub(start) < joiningTime {
					t.Errorf("%s: plan() = %s after %v, want nothing before %v", tt.group, got, now.Sub(start),
						joiningTime)
				}
				break
			}
			now = now.Add(wait)
		}
		if got != tt.want {
			t.Errorf("%s: plan() = %q, want %q", tt.group, got, tt.want)
		}
	}
	servers, members := datacenter("a* b+ (c+)")
	find(members, "c").Tags[TagJoining] = "1"
	m := newMembership("a", 3)
	if changes, _ := m.plan(time.Now(), servers, 100, members, excludeNone); textOf(changes) != "add c" {
		t.Errorf("plan() after the removal = %v, want add c", changes)
	}
}

// TestHolds proves that a hold ends at its time, when it is removed, and when
// its server is not alive.
func TestHolds(t *testing.T) {
	s := New(Config{})
	now := time.Unix(0, 0)
	end := now.Add(time.Minute)
	for _, node := range []string{"b", "c", "d"} {
		s.setHold(node, end)
	}
	s.setHold("d", time.Time{})
	_, members := datacenter("a* b+ c! d+")
	if got, want := s.activeHolds(now, members), map[string]time.Time{"b": end}; !maps.Equal(got, want) {
		t.Errorf("activeHolds(%v) = %v, want %v", now, got, want)
	}
	if got := s.activeHolds(end, members); len(got) > 0 {
		t.Errorf("activeHolds(%v) at the end of the hold = %v, want none", end, got)
	}
}

func TestCheckRemoval(t *testing.T) {
	for _, tt := range []struct {
		group, node string
		force       bool
		want        string // part of the error; "" means nil
	}{
		{"a* b+ c!", "c", false, ""},
		{"a* b+ c?", "c", false, ""},
		{"a* b+ c-", "c", false, ""},
		{"a* b+ c+", "c", false, "is alive"},
		{"a* b+ c+", "c", true, ""},
		{"a* b+ c+", "a", true, "leads"},
		{"a*", "a", true, "the only voter"},
		{"a* B+", "a", true, "the only voter"},
		{"a* B+", "b", true, ""},
		{"a* b+ c!", "b", true, "only 1 of the 2 voters that remain would be up"},
		{"a* b+ c+ d! e!", "c", true, "only 2 of the 4 voters"},
		{"a* b+ c+ d! e!", "d", false, ""},
		{"a* b+", "c", true, "not in the Raft group"},
	} {
		servers, members := datacenter(tt.group)
		err := checkRemoval("dc1", "a", &pb.RemovePeerRequest{Node: tt.node, Force: tt.force}, servers, members)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("checkRemoval(%s of %q, force %v) = %v, want %q", tt.node, tt.group, tt.force, err, tt.want)
		}
	}
}
