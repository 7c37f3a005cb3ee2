// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		digests  string // node=digest
		voters   int
		differ   string
		majority bool
	}{
		{"a=1 b=1 c=1", 3, "", true},
		{"a=1 b=2 c=1", 3, "b", true},
		{"a=1 b=1", 3, "", true},           // c does not respond
		{"a=1 b=2", 3, "a b", false},       // c does not respond
		{"a=1 b=2", 2, "a b", false},       // no majority of two
		{"a=1 b=2 c=3", 3, "a b c", false}, // no majority
		{"a=1 b=1 c=2 d=2 e=1", 5, "c d", true},
		{"a=1 b=1", 5, "", false},
		{"a=1", 3, "", false},
	} {
		digests := map[string]string{}
		for pair := range strings.FieldsSeq(test.digests) {
			node, digest, _ := strings.Cut(pair, "=")
			digests[node] = digest
		}
		c := judge(digests, test.voters)
		got := strings.Join(c.Differ, " ")
		if got != test.differ || c.Majority != test.majority || c.Compared != len(digests) {
			t.Errorf("judge(%s, %d) = %+v, want Differ %q, Majority %v", test.digests, test.voters, c,
				test.differ, test.majority)
		}
	}
}

// Without a majority, the status has the digests and the commands of the remedy.
func TestComparison_NoMajority(t *testing.T) {
	c := judge(map[string]string{"srv1": "0123456789abcdef", "srv2": "fedcba9876543210"}, 2)
	c.Index = 7
	for _, want := range []string{
		"0123456789ab on srv1, fedcba987654 on srv2", "transfer-leader srv1", "remove-peer srv2 --force", "index 7",
	} {
		if got := c.Detail(); !strings.Contains(got, want) {
			t.Errorf("Detail() = %q, want %q in it", got, want)
		}
	}
}
