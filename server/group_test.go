// SPDX-License-Identifier: MPL-2.0

package server

import (
	"slices"
	"testing"

	"github.com/wanfed/wanfed/gossip"
)

func TestFirstGroup(t *testing.T) {
	m := func(name string, status gossip.Status, expect, raft string) gossip.Member {
		return gossip.Member{Name: name, Status: status, Tags: map[string]string{tagExpect: expect, tagRaft: raft}}
	}
	fresh := func(name string) gossip.Member { return m(name, gossip.StatusAlive, "3", "") }
	tests := []struct {
		name    string
		members []gossip.Member
		node    string
		expect  int
		want    []string // nil: do not form a group
	}{
		{"alone", nil, "a", 1, []string{"a"}},
		{"joins only", []gossip.Member{m("a", gossip.StatusAlive, "0", ""), m("b", gossip.StatusAlive, "0", "")}, "a", 0, nil},
		{"too few", []gossip.Member{fresh("a"), fresh("b")}, "a", 3, nil},
		{"first by name", []gossip.Member{fresh("c"), fresh("a"), fresh("b")}, "a", 3, []string{"a", "b", "c"}},
		{"not first", []gossip.Member{fresh("a"), fresh("b"), fresh("c")}, "b", 3, nil},
		{"one has failed", []gossip.Member{fresh("a"), fresh("b"), m("c", gossip.StatusFailed, "3", "")}, "a", 3, nil},
		{"one expects another number", []gossip.Member{fresh("a"), fresh("b"), m("c", gossip.StatusAlive, "5", "")}, "a", 3, nil},
		{"there is a group already", []gossip.Member{fresh("a"), fresh("b"), fresh("c"), m("d", gossip.StatusAlive, "3", "1")}, "a", 3, nil},
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
