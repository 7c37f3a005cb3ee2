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
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
)

// fromCatalog answers with what of makes of the catalog; it blocks until that is something else.
func (h *handler) fromCatalog(r *http.Request, q query, of func(s *catalog.Snapshot) (any, error)) (answer, error) {
	if err := q.unknown("ns", "partition", "peer", "sg"); err != nil {
		return answer{}, err
	}
	if err := h.resources.Allow(r.Context(), resource.VerbList, catalog.NodeType); err != nil {
		return answer{}, err
	}
	var last *catalog.Snapshot
	body, index, err := blocking(r.Context(), q,
		func(ctx context.Context, c resource.Consistency) ([]byte, uint64, error) {
			s, err := h.view.At(ctx, c)
			if err != nil {
				return nil, 0, err
			}
			last = s
			v, err := of(s)
			if err != nil {
				return nil, 0, err
			}
			b, err := json.Marshal(v)
			return b, s.Index, err
		},
		func(ctx context.Context, _ uint64) error { return h.view.Wait(ctx, last) },
		bytes.Equal)
	return answer{body: encoded{typeJSON, body}, index: index}, err
}

func indexesOf(r *pb.Resource) api.Indexes {
	return api.Indexes{Create: r.GetCreateIndex(), Modify: r.GetModifyIndex()}
}

func (h *handler) nodeOf(n *catalog.Node) api.Node {
	return api.FromNode(n.Node, h.dc, indexesOf(n.Resource))
}

func serviceOf(s *catalog.Service) api.Service {
	return api.FromService(s.Service, indexesOf(s.Resource))
}

func (h *handler) catalogServiceOf(s *catalog.Service) api.CatalogService {
	return api.FromCatalogService(s.OnNode.Node, s.Service, h.dc, indexesOf(s.Resource))
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

func (h *handler) catalogNodes(r *http.Request, q query) (answer, error) {
	f, err := filterOf[api.Node](q)
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		out := []api.Node{}
		for _, n := range s.Nodes {
			if f.node(n) {
				out = append(out, h.nodeOf(n))
			}
		}
		return only(f.expr, out)
	})
}

// catalogServices answers with the tags of each service, of all its instances.
func (h *handler) catalogServices(r *http.Request, q query) (answer, error) {
	f, err := filterOf[api.CatalogService](q)
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		out := map[string][]string{}
		for _, v := range f.instances(s, "") {
			if f.expr != nil {
				if ok, err := f.expr.matches(h.catalogServiceOf(v)); err != nil {
					return nil, err
				} else if !ok {
					continue
				}
			}
			tags := append(orEmpty(out[v.Service.Service]), v.Tags...)
			slices.Sort(tags)
			out[v.Service.Service] = slices.Compact(tags)
		}
		return out, nil
	})
}

func (h *handler) catalogService(r *http.Request, q query) (answer, error) {
	f, err := filterOf[api.CatalogService](q)
	if err != nil {
		return answer{}, err
	}
	f.passing = false // is /v1/health/service's
	name := r.PathValue("service")
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		out := []api.CatalogService{}
		for _, v := range f.instances(s, name) {
			out = append(out, h.catalogServiceOf(v))
		}
		return only(f.expr, out)
	})
}

func (h *handler) catalogNode(r *http.Request, q query) (answer, error) {
	x, err := expressionOf[api.Service](q)
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		n := s.Node(r.PathValue("node"))
		if n == nil {
			return nil, nil // null, as Consul answers
		}
		services, err := only(x, servicesOf(n))
		if err != nil {
			return nil, err
		}
		node := h.nodeOf(n)
		out := api.CatalogNode{Node: &node, Services: make(map[string]api.Service, len(services))}
		for _, v := range services {
			out.Services[v.ID] = v
		}
		return out, nil
	})
}

// servicesOf returns what is on a node, which may be none.
func servicesOf(n *catalog.Node) []api.Service {
	out := []api.Service{}
	if n != nil {
		for _, v := range n.Services {
			out = append(out, serviceOf(v))
		}
	}
	return out
}

func (h *handler) catalogNodeServices(r *http.Request, q query) (answer, error) {
	x, err := expressionOf[api.Service](q)
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		n := s.Node(r.PathValue("node"))
		services, err := only(x, servicesOf(n))
		if err != nil {
			return nil, err
		}
		out := api.CatalogNodeServices{Services: services}
		if n != nil {
			node := h.nodeOf(n)
			out.Node = &node
		}
		return out, nil
	})
}

func (h *handler) healthService(r *http.Request, q query) (answer, error) {
	f, err := filterOf[api.ServiceEntry](q)
	if err != nil {
		return answer{}, err
	}
	name := r.PathValue("service")
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		out := []api.ServiceEntry{}
		for _, v := range f.instances(s, name) {
			out = append(out, api.ServiceEntry{Node: h.nodeOf(v.OnNode), Service: serviceOf(v), Checks: checksOf(v.AllChecks())})
		}
		return only(f.expr, out)
	})
}

func (h *handler) healthNode(r *http.Request, q query) (answer, error) {
	x, err := expressionOf[api.Check](q)
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		return only(x, checksOf(s.Node(r.PathValue("node")).AllChecks()))
	})
}

func (h *handler) healthChecks(r *http.Request, q query) (answer, error) {
	name := r.PathValue("service")
	return h.someChecks(r, q, func(c *catalog.Check) bool { return c.ServiceName == name })
}

func (h *handler) healthState(r *http.Request, q query) (answer, error) {
	state := r.PathValue("state")
	switch state {
	case "any", catalog.StatusPassing, catalog.StatusWarning, catalog.StatusCritical:
	default:
		return answer{}, badRequest{fmt.Errorf("bad state %q: must be any, passing, warning or critical", state)}
	}
	return h.someChecks(r, q, func(c *catalog.Check) bool { return state == "any" || c.Status == state })
}

func (h *handler) someChecks(r *http.Request, q query, which func(c *catalog.Check) bool) (answer, error) {
	f, err := filterOf[api.Check](q)
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		out := []api.Check{}
		for _, n := range s.Nodes {
			if !f.node(n) {
				continue
			}
			for _, c := range n.AllChecks() {
				if which(c) {
					out = append(out, checkOf(c))
				}
			}
		}
		return only(f.expr, out)
	})
}
