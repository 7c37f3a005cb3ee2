// SPDX-License-Identifier: MPL-2.0

package server

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/gossip"
)

// TestRaftState: what keeps servers apart is in the status, not in the log alone.
func TestRaftState(t *testing.T) {
	members := func(expect string, names ...string) []gossip.Member {
		var all []gossip.Member
		for _, n := range names {
			all = append(all, gossip.Member{Name: n, Status: gossip.StatusAlive, Tags: map[string]string{tagExpect: expect}})
		}
		return all
	}
	gone := members("3", "b")
	gone[0].Status = gossip.StatusFailed
	for _, c := range []struct {
		leader      string
		voters      []string
		expect      int
		lan         []gossip.Member
		state, says string
	}{
		{"a", []string{"a"}, 1, members("1", "a"), "ok", "leader a, 1 voter"},
		{"a", []string{"a", "b", "c"}, 3, members("3", "a", "b", "c"), "ok", "leader a, 3 voters"},
		{"a", []string{"a"}, 1, append(members("1", "a"), members("3", "b")...), "ok", "leader a, 1 voter"}, // b is about to be added
		{"", []string{"a", "b", "c"}, 3, members("3", "a", "b"), "no leader", "leader none, 3 voters"},      // an election
		{"", []string{"a", "b", "c"}, 3, append(members("3", "a", "d"), gone...), "no leader", "1 of 3 voters alive, and 2 have to be"},
		{"", nil, 3, members("3", "a", "b", "c"), "no leader", "leader none, 0 voters"}, // it is being formed
		{"", nil, 3, append(members("3", "a"), gone...), "no leader", "waits for 3 servers (bootstrap_expect), and 1 of them run"},
		{"a", []string{"a"}, 1, members("1", "a", "b"), "split", "b was started to form a group alone"},
	} {
		if state, says := raftState(c.leader, c.voters, c.expect, c.lan); state != c.state || !strings.Contains(says, c.says) {
			t.Errorf("%+v: %s, %s", c, state, says)
		}
	}
}
