// SPDX-License-Identifier: MPL-2.0

package filter

import (
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/go-bexpr/grammar"

	"github.com/wanfed/wanfed/api"
)

const (
	// MaxLen bounds an expression, in bytes.
	MaxLen = 8 << 10
	// maxParsing bounds the steps of the parser, to about 50 ms. Each pair of
	// nested parentheses multiplies the steps.
	maxParsing = 500_000
)

// Expression is a parsed expression. A nil Expression matches every value.
type Expression struct {
	eval *bexpr.Evaluator
	text string
}

// Parse returns the expression of a text, or nil for an empty text. The
// expression applies to values of type T. Names that T does not have are an
// error, except below the elements of lists and maps.
func Parse[T any](text string) (*Expression, error) {
	if text == "" {
		return nil, nil
	}
	if n := len(text); n > MaxLen {
		return nil, fmt.Errorf("the filter has %d bytes: must be at most %d", n, MaxLen)
	}
	tree, err := grammar.Parse("", []byte(text), grammar.MaxExpressions(maxParsing))
	if err != nil {
		return nil, fmt.Errorf("bad filter %q: %w", text, err)
	}
	translated, ok := overLists(tree)
	if !ok {
		translated = text
	}
	eval, err := bexpr.CreateEvaluator(translated, bexpr.WithMaxExpressions(maxParsing),
		bexpr.WithHookFn(withAddresses(addressesIn(tree, nil))))
	if err != nil {
		return nil, fmt.Errorf("bad filter %q: %w", text, err)
	}
	expr := &Expression{eval, text}
	_, err = expr.Matches(*new(T)) // finds unknown names before the first value
	return expr, err
}

// addressesIn appends the tags of the tagged addresses in an expression. For
// example, Service.TaggedAddresses.lan.Port has the tag lan.
func addressesIn(tree any, tags []string) []string {
	switch e := tree.(type) {
	case *grammar.UnaryExpression:
		return addressesIn(e.Operand, tags)
	case *grammar.BinaryExpression:
		return addressesIn(e.Right, addressesIn(e.Left, tags))
	case *grammar.CollectionExpression:
		return addressesIn(e.Inner, tags)
	case *grammar.MatchExpression:
		for i, part := range e.Selector.Path {
			if strings.HasSuffix(part, "TaggedAddresses") && i+2 < len(e.Selector.Path) {
				tags = append(tags, e.Selector.Path[i+1])
			}
		}
	}
	return tags
}

// withAddresses returns a hook that adds an empty address for each tag that a
// service lacks. Without the hook, the evaluation would fail for such a
// service.
func withAddresses(tags []string) bexpr.ValueTransformationHookFn {
	return func(v reflect.Value) reflect.Value {
		if len(tags) == 0 || !v.IsValid() || v.Type() != reflect.TypeFor[map[string]api.ServiceAddress]() {
			return v
		}
		all := map[string]api.ServiceAddress{}
		for _, tag := range tags {
			all[tag] = api.ServiceAddress{}
		}
		maps.Copy(all, v.Interface().(map[string]api.ServiceAddress))
		return reflect.ValueOf(all)
	}
}

// Matches reports whether the expression is true for value. The error names a
// part of the expression that value does not have.
func (e *Expression) Matches(value any) (bool, error) {
	if e == nil {
		return true, nil
	}
	ok, err := e.eval.Evaluate(value)
	if err != nil {
		return false, fmt.Errorf("bad filter %q: %w", e.text, err)
	}
	return ok, nil
}
