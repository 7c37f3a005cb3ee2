// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
)

// fromCatalog answers with what of makes of the catalog; it blocks until that is something else.
func (h *handler) fromCatalog(r *http.Request, q query, of func(s *catalog.Snapshot) any) (answer, error) {
	if err := q.unknown("filter", "ns", "partition", "peer", "sg"); err != nil {
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
			b, err := json.Marshal(of(s))
			return b, s.Index, err
		},
		func(ctx context.Context, _ uint64) error { return h.view.Wait(ctx, last) },
		bytes.Equal)
	return answer{body: encoded{typeJSON, body}, index: index}, err
}

// filter says which nodes and services a request is about.
type filter struct {
	tags    []string
	meta    map[string]string
	passing bool
}

func (q query) filter() (f filter, err error) {
	f.tags, f.meta = q.values["tag"], map[string]string{}
	for _, pair := range q.values["node-meta"] {
		key, value, _ := strings.Cut(pair, ":")
		f.meta[key] = value
	}
	f.passing, err = q.flag("passing")
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
	return !f.passing || !slices.ContainsFunc(s.AllChecks(), func(c *catalog.Check) bool { return c.Status != catalog.StatusPassing })
}

// instances returns the instances of a service that the filter lets through, by node and id; all services' if name is empty.
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

func indexesOf(r *pb.Resource) api.Indexes {
	return api.Indexes{Create: r.GetCreateIndex(), Modify: r.GetModifyIndex()}
}

func (h *handler) nodeOf(n *catalog.Node) api.Node {
	return api.FromNode(n.Node, h.dc, indexesOf(n.Resource))
}

func serviceOf(s *catalog.Service) api.Service {
	return api.FromService(s.Service, indexesOf(s.Resource))
}

func checkOf(c *catalog.Check) api.Check {
	var tags []string
	if c.Of != nil {
		tags = c.Of.Tags
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
	f, err := q.filter()
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		out := []api.Node{}
		for _, n := range s.Nodes {
			if f.node(n) {
				out = append(out, h.nodeOf(n))
			}
		}
		return out
	})
}

// catalogServices answers with the tags of each service, of all its instances.
func (h *handler) catalogServices(r *http.Request, q query) (answer, error) {
	f, err := q.filter()
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		out := map[string][]string{}
		for _, v := range f.instances(s, "") {
			tags := append(orEmpty(out[v.Service.Service]), v.Tags...)
			slices.Sort(tags)
			out[v.Service.Service] = slices.Compact(tags)
		}
		return out
	})
}

func (h *handler) catalogService(r *http.Request, q query) (answer, error) {
	f, err := q.filter()
	if err != nil {
		return answer{}, err
	}
	f.passing = false // is /v1/health/service's
	name := r.PathValue("service")
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		out := []api.CatalogService{}
		for _, v := range f.instances(s, name) {
			out = append(out, api.FromCatalogService(v.On.Node, v.Service, h.dc, indexesOf(v.Resource)))
		}
		return out
	})
}

func (h *handler) catalogNode(r *http.Request, q query) (answer, error) {
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		n := s.Node(r.PathValue("node"))
		if n == nil {
			return nil // null, as Consul answers
		}
		node := h.nodeOf(n)
		out := api.CatalogNode{Node: &node, Services: make(map[string]api.Service, len(n.Services))}
		for _, v := range n.Services {
			out.Services[v.Id] = serviceOf(v)
		}
		return out
	})
}

func (h *handler) catalogNodeServices(r *http.Request, q query) (answer, error) {
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		out := api.CatalogNodeServices{Services: []api.Service{}}
		if n := s.Node(r.PathValue("node")); n != nil {
			node := h.nodeOf(n)
			out.Node = &node
			for _, v := range n.Services {
				out.Services = append(out.Services, serviceOf(v))
			}
		}
		return out
	})
}

func (h *handler) healthService(r *http.Request, q query) (answer, error) {
	f, err := q.filter()
	if err != nil {
		return answer{}, err
	}
	name := r.PathValue("service")
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		out := []api.ServiceEntry{}
		for _, v := range f.instances(s, name) {
			out = append(out, api.ServiceEntry{Node: h.nodeOf(v.On), Service: serviceOf(v), Checks: checksOf(v.AllChecks())})
		}
		return out
	})
}

func (h *handler) healthNode(r *http.Request, q query) (answer, error) {
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
		return checksOf(s.Node(r.PathValue("node")).AllChecks())
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
	f, err := q.filter()
	if err != nil {
		return answer{}, err
	}
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) any {
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
		return out
	})
}
