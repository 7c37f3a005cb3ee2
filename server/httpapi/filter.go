// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/go-bexpr/grammar"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/catalog"
)

// filter is the conditions of a request for nodes and services.
type filter struct {
	tags    []string
	meta    map[string]string // of the node
	passing bool
	expr    *expression
}

// filterOf returns the filter of a request. ?filter= applies to a T.
func filterOf[T any](q query) (f filter, err error) {
	f.tags, f.meta = q.values["tag"], map[string]string{}
	for _, pair := range q.values["node-meta"] {
		key, value, _ := strings.Cut(pair, ":")
		f.meta[key] = value
	}
	if f.passing, err = q.flag("passing"); err != nil {
		return f, err
	}
	f.expr, err = expressionOf[T](q)
	return f, err
}

// node reports whether a node has the metadata of f.
func (f filter) node(n *catalog.Node) bool {
	for key, want := range f.meta {
		if value, ok := n.Meta[key]; !ok || value != want {
			return false
		}
	}
	return true
}

// service reports whether a service has the tags and the health of f.
func (f filter) service(s *catalog.Service) bool {
	for _, tag := range f.tags {
		if !slices.ContainsFunc(s.Tags, func(own string) bool { return strings.EqualFold(own, tag) }) {
			return false
		}
	}
	return !f.passing || !slices.ContainsFunc(s.AllChecks(), func(c *catalog.Check) bool {
		return c.Status != catalog.StatusPassing
	})
}

// instances returns the instances of service name that match f, ordered by node
// and id. If name is "", it returns the instances of all services.
func (f filter) instances(s *catalog.Snapshot, name string) (out []*catalog.Service) {
	for _, n := range s.Nodes {
		if !f.node(n) {
			continue
		}
		for _, s := range n.Services {
			if (name == "" || s.Service.Service == name) && f.service(s) {
				out = append(out, s)
			}
		}
	}
	return out
}

const (
	// maxExpression bounds ?filter=, in bytes.
	maxExpression = 8 << 10
	// maxParsing bounds the steps of the parser, to about 50 ms. Each pair of
	// nested parentheses multiplies the steps.
	maxParsing = 500_000
)

// expression is the value of ?filter=, in the expression language of Consul's
// API. A nil expression matches every value.
type expression struct {
	eval *bexpr.Evaluator
	text string
}

// expressionOf returns the expression of ?filter=, or nil. The expression
// applies to a T and uses the names of T's JSON.
func expressionOf[T any](q query) (*expression, error) {
	text := q.values.Get("filter")
	if text == "" {
		return nil, nil
	}
	if n := len(text); n > maxExpression {
		return nil, badRequest{fmt.Errorf("the filter has %d bytes: must be at most %d", n, maxExpression)}
	}
	tree, err := grammar.Parse("", []byte(text), grammar.MaxExpressions(maxParsing))
	if err != nil {
		return nil, badRequest{fmt.Errorf("bad filter %q: %w", text, err)}
	}
	eval, err := bexpr.CreateEvaluator(text, bexpr.WithMaxExpressions(maxParsing),
		bexpr.WithHookFn(withAddresses(addressesIn(tree, nil))))
	if err != nil {
		return nil, badRequest{fmt.Errorf("bad filter %q: %w", text, err)}
	}
	expr := &expression{eval, text}
	_, err = expr.matches(*new(T)) // finds unknown names even if no T is stored
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

// matches reports whether the expression is true for value.
func (e *expression) matches(value any) (bool, error) {
	ok, err := e.eval.Evaluate(value)
	if err != nil {
		return false, badRequest{fmt.Errorf("bad filter %q: %w", e.text, err)}
	}
	return ok, nil
}

// matching returns the elements of all that match expr.
func matching[T any](expr *expression, all []T) ([]T, error) {
	if expr == nil {
		return all, nil
	}
	out := []T{}
	for _, value := range all {
		if ok, err := expr.matches(value); err != nil {
			return nil, err
		} else if ok {
			out = append(out, value)
		}
	}
	return out, nil
}
