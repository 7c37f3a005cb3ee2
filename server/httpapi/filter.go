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

// filter selects nodes and services.
type filter struct {
	tags    []string
	meta    map[string]string
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

func (f filter) node(n *catalog.Node) bool {
	for key, value := range f.meta {
		if got, ok := n.Meta[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func (f filter) service(s *catalog.Service) bool {
	for _, tag := range f.tags {
		if !slices.ContainsFunc(s.Tags, func(t string) bool { return strings.EqualFold(t, tag) }) {
			return false
		}
	}
	return !f.passing || !slices.ContainsFunc(s.AllChecks(), func(c *catalog.Check) bool {
		return c.Status != catalog.StatusPassing
	})
}

// instances returns the instances of a service that match f, ordered by node
// and id. An empty name stands for all services.
func (f filter) instances(s *catalog.Snapshot, name string) (out []*catalog.Service) {
	for _, n := range s.Nodes {
		if !f.node(n) {
			continue
		}
		for _, v := range n.Services {
			if (name == "" || v.Service.Service == name) && f.service(v) {
				out = append(out, v)
			}
		}
	}
	return out
}

const (
	// maxExpression bounds ?filter=, in bytes.
	maxExpression = 8 << 10
	// maxParsing bounds the steps of the parser: about 50 ms. Each pair of
	// nested parentheses multiplies them.
	maxParsing = 500_000
)

// expression is the value of ?filter=, in the language of Consul's API. A nil
// expression matches everything.
type expression struct {
	eval *bexpr.Evaluator
	text string
}

// expressionOf returns the expression of ?filter=, or nil. It applies to a T
// and has the names of T's JSON.
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
	x := &expression{eval, text}
	_, err = x.matches(*new(T)) // finds a name that T does not have, even if no T is stored
	return x, err
}

// addressesIn appends the tags of tagged addresses that an expression refers
// to: Service.TaggedAddresses.lan.Port refers to lan.
func addressesIn(tree any, tags []string) []string {
	var path []string
	switch e := tree.(type) {
	case *grammar.UnaryExpression:
		return addressesIn(e.Operand, tags)
	case *grammar.BinaryExpression:
		return addressesIn(e.Right, addressesIn(e.Left, tags))
	case *grammar.CollectionExpression:
		return addressesIn(e.Inner, tags)
	case *grammar.MatchExpression:
		path = e.Selector.Path
	}
	for i, part := range path {
		if strings.HasSuffix(part, "TaggedAddresses") && i+2 < len(path) {
			tags = append(tags, path[i+1])
		}
	}
	return tags
}

// withAddresses returns a hook that adds an empty address for each of tags that
// a service lacks. Without the address, the evaluation would fail.
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

// matches reports whether the expression is true for v.
func (x *expression) matches(v any) (bool, error) {
	ok, err := x.eval.Evaluate(v)
	if err != nil {
		return false, badRequest{fmt.Errorf("bad filter %q: %w", x.text, err)}
	}
	return ok, nil
}

// matching returns the elements of all that match x.
func matching[T any](x *expression, all []T) ([]T, error) {
	if x == nil {
		return all, nil
	}
	out := []T{}
	for _, v := range all {
		ok, err := x.matches(v)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, v)
		}
	}
	return out, nil
}
