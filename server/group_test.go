// SPDX-License-Identifier: MPL-2.0

package server

import (
	"slices"
	"testing"

	"github.com/wanfed/wanfed/pool"
)

func TestFirstGroup(t *testing.T) {
	m := func(name string, status pool.Status, expect, raft string) pool.Member {
		return pool.Member{Name: name, Status: status, Tags: map[string]string{tagExpect: expect, tagRaft: raft}}
	}
	fresh := func(name string) pool.Member { return m(name, pool.StatusAlive, "3", "") }
	tests := []struct {
		name    string
		members []pool.Member
		node    string
		expect  int
		want    []string // nil: do not form a group
	}{
		{"alone", nil, "a", 1, []string{"a"}},
		{"too few", []pool.Member{fresh("a"), fresh("b")}, "a", 3, nil},
		{"first by name", []pool.Member{fresh("c"), fresh("a"), fresh("b")}, "a", 3, []string{"a", "b", "c"}},
		{"not first", []pool.Member{fresh("a"), fresh("b"), fresh("c")}, "b", 3, nil},
		{"one has failed", []pool.Member{fresh("a"), fresh("b"), m("c", pool.StatusFailed, "3", "")}, "a", 3, nil},
		{"one expects another number", []pool.Member{fresh("a"), fresh("b"), m("c", pool.StatusAlive, "5", "")}, "a", 3, nil},
		{"there is a group already", []pool.Member{fresh("a"), fresh("b"), fresh("c"), m("d", pool.StatusAlive, "3", "1")}, "a", 3, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := firstGroup(tt.members, tt.node, tt.expect)
			if ok != (tt.want != nil) || ok && !slices.Equal(got, tt.want) {
				t.Errorf("got %v, %v; want %v", got, ok, tt.want)
			}
		})
	}
}
