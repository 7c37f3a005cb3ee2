// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/filter"
	"github.com/wanfed/wanfed/catalog"
)

// conditions are the conditions of a request for nodes and services.
type conditions struct {
	tags    []string
	meta    map[string]string // of the node
	passing bool
	expr    *filter.Expression
}

// conditionsOf returns the conditions of a request. ?filter= applies to a T.
func conditionsOf[T any](q query) (f conditions, err error) {
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
func (f conditions) node(n *catalog.Node) bool {
	for key, want := range f.meta {
		if value, ok := n.Meta[key]; !ok || value != want {
			return false
		}
	}
	return true
}

// service reports whether a service has the tags and the health of f.
func (f conditions) service(s *catalog.Service) bool {
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
func (f conditions) instances(s *catalog.Snapshot, name string) (out []*catalog.Service) {
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

// expressionOf returns the expression of ?filter=, or nil. The expression
// applies to a T and uses the names of T's JSON.
func expressionOf[T any](q query) (*filter.Expression, error) {
	expr, err := filter.Parse[T](q.values.Get("filter"))
	if err != nil {
		return nil, badRequest{err}
	}
	return expr, nil
}

// matching returns the elements of all that match expr.
func matching[T any](expr *filter.Expression, all []T) ([]T, error) {
	if expr == nil {
		return all, nil
	}
	out := []T{}
	for _, value := range all {
		if ok, err := expr.Matches(value); err != nil {
			return nil, badRequest{err}
		} else if ok {
			out = append(out, value)
		}
	}
	return out, nil
}
