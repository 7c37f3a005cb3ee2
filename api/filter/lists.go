// SPDX-License-Identifier: MPL-2.0

package filter

import (
	"strconv"
	"strings"

	"github.com/hashicorp/go-bexpr/grammar"
)

// In Consul, a comparison of a field of a list's elements is true if it is true
// for any element: Checks.Status == critical. The library has only the form with
// a variable: any Checks as c { c.Status == critical }. overLists translates the
// first form into the second one.

// lists has the names of the lists of structs in the types of package api.
var lists = map[string]bool{"Checks": true}

// overLists returns the text of an expression without comparisons of fields of a
// list's elements. It returns false if the expression has none.
func overLists(tree any) (string, bool) {
	var p printer
	p.write(tree, 0)
	return p.text.String(), p.changed
}

// printer writes an expression.
type printer struct {
	text    strings.Builder
	changed bool
}

// The precedence of expressions. A part with a lower precedence than its place
// needs parentheses. Others must not have them: they multiply the time of the
// parser.
const (
	levelCollection = iota
	levelOr
	levelAnd
	levelNot
	levelMatch
)

// write writes an expression at a place with a precedence.
func (p *printer) write(tree any, place int) {
	level := levelMatch
	var parts func()
	switch e := tree.(type) {
	case *grammar.UnaryExpression:
		level, parts = levelNot, func() { p.text.WriteString("not "); p.write(e.Operand, levelNot) }
	case *grammar.BinaryExpression:
		level, parts = levelOr, func() { p.write(e.Left, levelAnd); p.text.WriteString(" or "); p.write(e.Right, levelCollection) }
		if e.Operator == grammar.BinaryOpAnd {
			level, parts = levelAnd, func() { p.write(e.Left, levelNot); p.text.WriteString(" and "); p.write(e.Right, levelAnd) }
		}
	case *grammar.CollectionExpression:
		level, parts = levelCollection, func() {
			p.text.WriteString(strings.ToLower(string(e.Op)) + " " + selector(e.Selector) + " as " + binding(e.NameBinding) + " { ")
			p.write(e.Inner, levelCollection)
			p.text.WriteString(" }")
		}
	case *grammar.MatchExpression:
		path := e.Selector.Path
		parts = func() { p.text.WriteString(match(e, e.Selector)) }
		if len(path) > 1 && lists[path[0]] && strings.Trim(path[1], "0123456789") != "" {
			p.changed = true
			level, parts = levelCollection, func() {
				field := grammar.Selector{Type: grammar.SelectorTypeBexpr, Path: append([]string{"element"}, path[1:]...)}
				p.text.WriteString("any " + path[0] + " as element { " + match(e, field) + " }")
			}
		}
	}
	if level < place {
		p.text.WriteString("(")
		defer p.text.WriteString(")")
	}
	parts()
}

// operators has the text of each operator between selector and value.
var operators = map[grammar.MatchOperator]string{
	grammar.MatchEqual: "==", grammar.MatchNotEqual: "!=", grammar.MatchIsEmpty: "is empty",
	grammar.MatchIsNotEmpty: "is not empty", grammar.MatchMatches: "matches", grammar.MatchNotMatches: "not matches",
	grammar.MatchIsNil: "is nil", grammar.MatchIsNotNil: "is not nil", grammar.MatchContains: "contains",
	grammar.MatchNotContains: "not contains",
}

// match returns the text of a comparison of the value that s selects.
func match(e *grammar.MatchExpression, s grammar.Selector) string {
	switch {
	case e.Operator == grammar.MatchIn:
		return quote(e.Value.Raw) + " in " + selector(s)
	case e.Operator == grammar.MatchNotIn:
		return quote(e.Value.Raw) + " not in " + selector(s)
	case e.Value == nil:
		return selector(s) + " " + operators[e.Operator]
	}
	return selector(s) + " " + operators[e.Operator] + " " + quote(e.Value.Raw)
}

func selector(s grammar.Selector) string {
	if s.Type == grammar.SelectorTypeJsonPointer {
		out := ""
		for _, part := range s.Path {
			if part == "" { // the root
				break
			}
			out += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
		}
		return `"` + out + `"`
	}
	out := s.Path[0]
	for _, part := range s.Path[1:] {
		out += "[" + quote(part) + "]"
	}
	return out
}

// quote returns a literal, in which the parser accepts no escaped quotes.
func quote(s string) string {
	if !strings.ContainsAny(s, "`\r") {
		return "`" + s + "`"
	}
	return strings.ReplaceAll(strconv.Quote(s), `\"`, `\x22`)
}

func binding(b grammar.CollectionNameBinding) string {
	switch b.Mode {
	case grammar.CollectionBindIndex:
		return b.Index + ", _"
	case grammar.CollectionBindValue:
		return "_, " + b.Value
	case grammar.CollectionBindIndexAndValue:
		return b.Index + ", " + b.Value
	}
	return b.Default
}
