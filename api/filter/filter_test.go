// SPDX-License-Identifier: MPL-2.0

package filter

import (
	"testing"

	"github.com/hashicorp/go-bexpr/grammar"

	"github.com/wanfed/wanfed/api"
)

// TestMatches_Lists compares the fields of the elements of a list.
func TestMatches_Lists(t *testing.T) {
	mixed := api.ServiceEntry{
		Node:   api.Node{Node: "n1", Meta: map[string]string{"a.b": "x`\"y"}},
		Checks: []api.Check{{CheckID: "c", Status: "critical", ServiceTags: []string{"v1"}}, {Status: "passing"}},
	}
	passing := api.ServiceEntry{Node: mixed.Node, Checks: mixed.Checks[1:]}
	none := api.ServiceEntry{Node: mixed.Node}
	for text, want := range map[string][3]bool{ // of mixed, passing, none
		`Checks.Status == critical`:                                                 {true},
		`Checks.Status != passing`:                                                  {true},
		`Checks.Status == "passing"`:                                                {true, true},
		`not Checks.Status == critical`:                                             {false, true, true},
		`not Checks.Status == critical and Node.Node == n1`:                         {false, true, true},
		`Node.Node == n1 and Checks.Status == critical`:                             {true},
		`Checks.Status == critical and Node.Node == n1 or Node.Node == n2`:          {true},
		`Node.Node == n2 and Node.Node == n1 or Checks.Status == critical`:          {true},
		`Checks.Status == critical or Checks.Status == passing or Node.Node == n2`:  {true, true},
		`(Checks.Status == critical or Node.Node == n1) and Node.Node == n2`:        {},
		`not (Checks.Status == critical and Checks.Status == passing)`:              {false, true, true},
		`Checks.Status matches "^cri"`:                                              {true},
		`Checks.Status not matches "^cri"`:                                          {true, true},
		`"v1" in Checks.ServiceTags`:                                                {true},
		`"v1" not in Checks.ServiceTags`:                                            {true, true},
		`Checks.ServiceTags contains v1`:                                            {true},
		`Checks.ServiceTags not contains v1`:                                        {true, true},
		`Checks.ServiceTags is empty`:                                               {true, true},
		`Checks.ServiceTags is not empty`:                                           {true},
		`"/Checks/Status" == critical`:                                              {true},
		`all Checks as c { c.Status == passing }`:                                   {false, true, true},
		`Checks.CheckID == c and (all Node.Meta as k, v { v == "x\u0060\u0022y" })`: {true},
		`Checks.CheckID == c and (any Checks as i, _ { i == 1 })`:                   {true},
		`Checks.CheckID == c and (any Checks as _, v { v.Status == passing })`:      {true},
		"Checks.CheckID == c and Node.Meta[`a.b`] == \"x\\u0060\\u0022y\"":          {true},
		`Checks.CheckID == c and Node.Meta.nothing is empty`:                        {true},
		`Checks.CheckID == c and Node.Meta is not nil`:                              {true},
		`Checks.CheckID == c and (Service.TaggedAddresses.lan.Port == 0)`:           {true},
		`Checks is empty`: {false, false, true},
		`Node.Node != n1 or not (not Checks.CheckID == c or (Node.Node == n2))`:             {true},
		`Node.Node == n2 or (Node.Node == n1 and (Node.Node == n2 or Checks.CheckID == c))`: {true},
	} {
		expr, err := Parse[api.ServiceEntry](text)
		if err != nil {
			t.Errorf("Parse(%s) = %v, want nil", text, err)
			continue
		}
		for i, entry := range []api.ServiceEntry{mixed, passing, none} {
			if ok, err := expr.Matches(entry); ok != want[i] || err != nil {
				t.Errorf("Matches(%s) of entry %d = %v, %v, want %v, nil", text, i, ok, err, want[i])
			}
		}
	}
	for _, text := range []string{`Checks.Nothing == 1`, `any Checks as c { c.Nothing == 1 }`} {
		expr, err := Parse[api.ServiceEntry](text)
		if err == nil {
			_, err = expr.Matches(mixed)
		}
		if err == nil {
			t.Errorf("Matches(%s) = nil, want an error", text)
		}
	}
}

// FuzzOverLists parses the text that overLists returns. Its translation does not
// change it.
func FuzzOverLists(f *testing.F) {
	for _, s := range []string{
		`Checks.Status == critical`, `not (a == 1 or Checks.x is empty) and "v" in Checks.y`, "Checks[`a b`] != \"\\x60\\r\"",
		`all Checks as c { Checks.Status == 1 or (any x as i, _ { i == 1 }) } `, `"/Checks/a~1b" matches 1`,
		`"/x-y/a~1b" == 1 or "" == 1`, `Checks.0.Name == 1`,
		`(a == 1 and b == 2) and (c == 3 or (any d as _, e { not not e is nil }))`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 {
			return
		}
		tree, err := grammar.Parse("", []byte(text), grammar.MaxExpressions(maxParsing))
		if err != nil {
			return
		}
		first, _ := overLists(tree)
		again, err := grammar.Parse("", []byte(first), grammar.MaxExpressions(10*maxParsing))
		if err != nil {
			t.Fatalf("overLists(%q) = %q: %v", text, first, err)
		}
		if second, changed := overLists(again); changed || second != first {
			t.Errorf("overLists(%q) = %q, %v, want no change", first, second, changed)
		}
	})
}
