// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/filter"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
)

// readCatalog responds with the value of result for the catalog. A blocking
// query waits until the value changes.
func (h *handler) readCatalog(
	r *http.Request, q query, result func(s *catalog.Snapshot) (any, error),
) (response, error) {
	return h.readCatalogUntil(r, q, result, bytes.Equal)
}

// readCatalogUntil is readCatalog with another condition for a blocking query:
// it waits until same returns false for the JSON of two values.
func (h *handler) readCatalogUntil(
	r *http.Request, q query, result func(s *catalog.Snapshot) (any, error), same func(before, after []byte) bool,
) (response, error) {
	if err := q.reject("ns", "partition", "peer", "sg"); err != nil {
		return response{}, err
	}
	var last *catalog.Snapshot
	body, index, err := blocking(r.Context(), q,
		func(ctx context.Context, c resource.Consistency) ([]byte, uint64, error) {
			s, err := h.view.At(ctx, c)
			if err != nil {
				return nil, 0, err
			}
			last = s
			value, err := result(s)
			if err != nil {
				return nil, 0, err
			}
			body, err := json.Marshal(value)
			return body, s.Index, err
		},
		func(ctx context.Context, _ uint64) error { return h.view.Wait(ctx, last) },
		same)
	return response{body: encoded{true, body}, index: index}, err
}

// readFiltered is readCatalog with the expression of ?filter=, which applies to
// values of type T.
func readFiltered[T any](
	h *handler, r *http.Request, q query, result func(s *catalog.Snapshot, expr *filter.Expression) (any, error),
) (response, error) {
	expr, err := expressionOf[T](q)
	if err != nil {
		return response{}, err
	}
	return h.readCatalog(r, q, func(s *catalog.Snapshot) (any, error) { return result(s, expr) })
}

// listCatalog responds with the elements of list(s, f) that match ?filter=.
func listCatalog[T any](
	h *handler, r *http.Request, q query, list func(s *catalog.Snapshot, f conditions) []T,
) (response, error) {
	f, err := conditionsOf[T](q)
	if err != nil {
		return response{}, err
	}
	return h.readCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		return matching(f.expr, orEmpty(list(s, f)))
	})
}

func indexesOf(r *pb.Resource) api.Indexes {
	return api.Indexes{Create: r.GetCreateIndex(), Modify: r.GetModifyIndex()}
}

func (h *handler) nodeOf(n *catalog.Node) api.Node {
	return api.FromNode(n.Node, h.DC, indexesOf(n.Resource))
}

func serviceOf(s *catalog.Service) api.Service {
	return api.FromService(s.Service, indexesOf(s.Resource))
}

func (h *handler) catalogServiceOf(s *catalog.Service) api.CatalogService {
	return api.FromCatalogService(s.OnNode.Node, s.Service, h.DC, indexesOf(s.Resource))
}

func checkOf(c *catalog.Check) api.Check {
	var tags []string
	if c.Service != nil {
		tags = c.Service.Tags
	}
	return api.FromCheck(c.Check, tags, indexesOf(c.Resource))
}

func checksOf(all []*catalog.Check) []api.Check {
	out := make([]api.Check, len(all))
	for i, c := range all {
		out[i] = checkOf(c)
	}
	return out
}

func (h *handler) catalogNodes(r *http.Request, q query) (response, error) {
	return listCatalog(h, r, q, func(s *catalog.Snapshot, f conditions) (out []api.Node) {
		for _, n := range s.Nodes {
			if f.node(n) {
				out = append(out, h.nodeOf(n))
			}
		}
		return out
	})
}

// catalogServices responds with the names of all services. Each service has the
// tags of all its instances. As in Consul, a blocking query ends when an
// instance is registered, changed or removed, and not when a check changes.
func (h *handler) catalogServices(r *http.Request, q query) (response, error) {
	f, err := conditionsOf[api.CatalogService](q)
	if err != nil {
		return response{}, err
	}
	var instances, previous []*pb.Service // of the last two snapshots; immutable
	list := func(s *catalog.Snapshot) (any, error) {
		out := map[string][]string{}
		previous, instances = instances, nil
		for _, service := range f.instances(s, "") {
			if f.expr != nil {
				if ok, err := f.expr.Matches(h.catalogServiceOf(service)); err != nil {
					return nil, badRequest{err}
				} else if !ok {
					continue
				}
			}
			instances = append(instances, service.Service)
			name := service.Service.Service
			tags := append(orEmpty(out[name]), service.Tags...)
			slices.Sort(tags)
			out[name] = slices.Compact(tags)
		}
		return out, nil
	}
	return h.readCatalogUntil(r, q, list, func(_, _ []byte) bool { return slices.Equal(previous, instances) })
}

func (h *handler) catalogService(r *http.Request, q query) (response, error) {
	return listCatalog(h, r, q, func(s *catalog.Snapshot, f conditions) (out []api.CatalogService) {
		f.passing = false // only /v1/health/service has ?passing
		for _, service := range f.instances(s, r.PathValue("service")) {
			out = append(out, h.catalogServiceOf(service))
		}
		return out
	})
}

func (h *handler) catalogNode(r *http.Request, q query) (response, error) {
	return readFiltered[api.Service](h, r, q, func(s *catalog.Snapshot, expr *filter.Expression) (any, error) {
		n := s.Node(r.PathValue("node"))
		if n == nil {
			return nil, nil // null, as in Consul
		}
		services, err := matching(expr, servicesOf(n))
		if err != nil {
			return nil, err
		}
		out := api.CatalogNode{Node: new(h.nodeOf(n)), Services: make(map[string]api.Service, len(services))}
		for _, service := range services {
			out.Services[service.ID] = service
		}
		return out, nil
	})
}

// servicesOf returns the services of a node. n may be nil.
func servicesOf(n *catalog.Node) []api.Service {
	out := []api.Service{}
	if n != nil {
		for _, service := range n.Services {
			out = append(out, serviceOf(service))
		}
	}
	return out
}

func (h *handler) catalogNodeServices(r *http.Request, q query) (response, error) {
	return readFiltered[api.Service](h, r, q, func(s *catalog.Snapshot, expr *filter.Expression) (any, error) {
		n := s.Node(r.PathValue("node"))
		services, err := matching(expr, servicesOf(n))
		out := api.CatalogNodeServices{Services: services}
		if n != nil {
			out.Node = new(h.nodeOf(n))
		}
		return out, err
	})
}

func (h *handler) healthService(r *http.Request, q query) (response, error) {
	return listCatalog(h, r, q, func(s *catalog.Snapshot, f conditions) (out []api.ServiceEntry) {
		for _, service := range f.instances(s, r.PathValue("service")) {
			out = append(out, api.ServiceEntry{
				Node: h.nodeOf(service.OnNode), Service: serviceOf(service), Checks: checksOf(service.AllChecks()),
			})
		}
		return out
	})
}

func (h *handler) healthNode(r *http.Request, q query) (response, error) {
	return readFiltered[api.Check](h, r, q, func(s *catalog.Snapshot, expr *filter.Expression) (any, error) {
		return matching(expr, checksOf(s.Node(r.PathValue("node")).AllChecks()))
	})
}

func (h *handler) healthChecks(r *http.Request, q query) (response, error) {
	name := r.PathValue("service")
	return h.listChecks(r, q, func(c *catalog.Check) bool { return c.ServiceName == name })
}

func (h *handler) healthState(r *http.Request, q query) (response, error) {
	state := r.PathValue("state")
	if !slices.Contains([]string{"any", catalog.StatusPassing, catalog.StatusWarning, catalog.StatusCritical}, state) {
		return response{}, badRequest{fmt.Errorf("bad state %q: must be any, passing, warning or critical", state)}
	}
	return h.listChecks(r, q, func(c *catalog.Check) bool { return state == "any" || c.Status == state })
}

// listChecks responds with the checks for which include returns true.
func (h *handler) listChecks(r *http.Request, q query, include func(c *catalog.Check) bool) (response, error) {
	return listCatalog(h, r, q, func(s *catalog.Snapshot, f conditions) (out []api.Check) {
		for _, n := range s.Nodes {
			if !f.node(n) {
				continue
			}
			for _, c := range n.AllChecks() {
				if include(c) {
					out = append(out, checkOf(c))
				}
			}
		}
		return out
	})
}
