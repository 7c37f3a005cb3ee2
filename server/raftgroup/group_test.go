// SPDX-License-Identifier: MPL-2.0

package raftgroup

import (
	"slices"
	"testing"

	"github.com/wanfed/wanfed/gossip"
)

func TestFirstGroup(t *testing.T) {
	member := func(name string, status gossip.Status, expect, raft string) gossip.Member {
		return gossip.Member{Name: name, Status: status, Tags: map[string]string{tagExpect: expect, tagRaft: raft}}
	}
	fresh := func(name string) gossip.Member { return member(name, gossip.StatusAlive, "3", "") }
	tests := []struct {
		name    string
		members []gossip.Member
		node    string
		expect  int
		want    []string // nil means that the node does not form a group
	}{
		{"expect 1", nil, "a", 1, []string{"a"}},
		{"expect 0", []gossip.Member{member("a", gossip.StatusAlive, "0", ""),
			member("b", gossip.StatusAlive, "0", "")}, "a", 0, nil},
		{"too few", []gossip.Member{fresh("a"), fresh("b")}, "a", 3, nil},
		{"first by name", []gossip.Member{fresh("c"), fresh("a"), fresh("b")}, "a", 3, []string{"a", "b", "c"}},
		{"not first", []gossip.Member{fresh("a"), fresh("b"), fresh("c")}, "b", 3, nil},
		{"failed member", []gossip.Member{fresh("a"), fresh("b"), member("c", gossip.StatusFailed, "3", "")},
			"a", 3, nil},
		{"member with another expect", []gossip.Member{
			fresh("a"), fresh("b"), member("c", gossip.StatusAlive, "5", ""),
		}, "a", 3, nil},
		{"member with Raft state", []gossip.Member{
			fresh("a"), fresh("b"), fresh("c"), member("d", gossip.StatusAlive, "3", "1"),
		}, "a", 3, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := firstGroup(tt.members, tt.node, tt.expect)
			if ok != (tt.want != nil) || ok && !slices.Equal(got, tt.want) {
				t.Errorf("firstGroup() = %v, %v, want %v", got, ok, tt.want)
			}
		})
	}
}
