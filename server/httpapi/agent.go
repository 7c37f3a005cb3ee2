// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/filter"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource"
)

func (h *handler) agentSelf(*http.Request, query) (response, error) {
	var member any = struct{}{}
	for _, m := range h.Cluster.Members(false) {
		if m.Name == h.Node {
			member = m
		}
	}
	config := map[string]any{
		"Datacenter": h.DC, "NodeName": h.Node, "Server": true, "Version": version.Version,
		"Revision": version.Get().Commit,
	}
	return response{body: map[string]any{"Config": config, "Member": member}}, nil
}

func (h *handler) gatewaySnapshots(*http.Request, query) (response, error) {
	return response{body: orEmpty(h.GatewaySnapshots())}, nil
}

// readOwnNode responds with the value that result returns for this server's
// node and the expression of ?filter=, which applies to values of type T. n has
// only what is registered, as at an agent of Consul.
func readOwnNode[T any](
	h *handler, r *http.Request, q query, result func(n *catalog.Node, expr *filter.Expression) (any, error),
) (response, error) {
	return readFiltered[T](h, r, q, func(s *catalog.Snapshot, expr *filter.Expression) (any, error) {
		return result(registered(s.Node(h.Node)), expr)
	})
}

// registered returns node n without the service and the check of the server
// itself. n may be nil.
func registered(n *catalog.Node) *catalog.Node {
	if n == nil {
		return &catalog.Node{}
	}
	return &catalog.Node{
		Node: n.Node, Resource: n.Resource,
		Services: slices.DeleteFunc(slices.Clone(n.Services), func(s *catalog.Service) bool { return s.Resource == nil }),
		Checks:   slices.DeleteFunc(slices.Clone(n.Checks), func(c *catalog.Check) bool { return c.Resource == nil }),
	}
}

func (h *handler) agentServices(r *http.Request, q query) (response, error) {
	return readOwnNode[api.Service](h, r, q, func(n *catalog.Node, expr *filter.Expression) (any, error) {
		services, err := matching(expr, servicesOf(n))
		out := make(map[string]agentService, len(services))
		for _, s := range services {
			out[s.ID] = agentService{s, h.DC}
		}
		return out, err
	})
}

// agentService is a service in a response of the agent.
type agentService struct {
	api.Service
	Datacenter string
}

func (h *handler) agentService(r *http.Request, q query) (response, error) {
	if err := q.reject("hash"); err != nil { // without support, a client that blocks by hash would poll
		return response{}, err
	}
	id, found := r.PathValue("id"), false
	resp, err := h.readCatalog(r, q, func(s *catalog.Snapshot) (any, error) {
		service := registered(s.Node(h.Node)).Service(id)
		if found = service != nil; !found {
			return nil, nil
		}
		return agentService{serviceOf(service), h.DC}, nil
	})
	if err == nil && !found {
		err = statusError{http.StatusNotFound, fmt.Sprintf("unknown service ID: %q", id)}
	}
	return resp, err
}

func (h *handler) agentChecks(r *http.Request, q query) (response, error) {
	return readOwnNode[api.Check](h, r, q, func(n *catalog.Node, expr *filter.Expression) (any, error) {
		checks, err := matching(expr, checksOf(n.AllChecks()))
		out := make(map[string]api.Check, len(checks))
		for _, c := range checks {
			out[c.CheckID] = c
		}
		return out, err
	})
}

func (h *handler) agentServiceRegister(r *http.Request, q query) (response, error) {
	var body serviceBody
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	reg, err := h.agentRegistration(body)
	if err != nil {
		return response{}, badRequest{err}
	}
	if reg.ReplaceChecks, err = q.flag("replace-existing-checks"); err != nil {
		return response{}, err
	}
	return h.agentRegister(r, reg)
}

// agentRegistration returns the registration of a service. Checks have the same
// ids as in Consul.
func (h *handler) agentRegistration(body serviceBody) (reg catalog.Registration, err error) {
	if reg.Service, err = body.toProto(h.Node); err != nil {
		return reg, err
	}
	if body.Check != nil {
		body.Checks = append([]agentCheckBody{*body.Check}, body.Checks...)
	}
	for i, c := range body.Checks {
		id := "service:" + reg.Service.Id
		if len(body.Checks) > 1 {
			id = fmt.Sprintf("service:%s:%d", reg.Service.Id, i+1)
		}
		check, err := c.toProto(h.Node, reg.Service, id)
		if err != nil {
			return reg, err
		}
		reg.Checks = append(reg.Checks, check)
	}
	return reg, nil
}

func (h *handler) agentCheckRegister(r *http.Request, q query) (response, error) {
	var body agentCheckBody
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	if body.ID == "" && body.CheckID == "" && body.Name == "" {
		return response{}, badRequest{errors.New("must provide the name of the check")}
	}
	c, err := body.toProto(h.Node, nil, body.Name)
	if err != nil {
		return response{}, badRequest{err}
	}
	c.ServiceId = body.ServiceID
	return h.agentRegister(r, catalog.Registration{Checks: []*pb.Check{c}})
}

// agentRegister registers reg on this server's node. The first registration
// also creates the node.
func (h *handler) agentRegister(r *http.Request, reg catalog.Registration) (response, error) {
	if err := h.checkProbes(reg.Checks); err != nil {
		return response{}, badRequest{err}
	}
	reg.FromAgent = true
	reg.Node = &pb.Node{
		Node: h.Node, Address: h.Address, Datacenter: h.DC,
		TaggedAddresses: map[string]string{catalog.TagLAN: h.Address},
	}
	err := untilLeader(r.Context(), func(ctx context.Context) error { return h.writer.Register(ctx, reg) })
	return response{body: encoded{}}, registerError(err)
}

func (h *handler) agentServiceDeregister(r *http.Request, _ query) (response, error) {
	id := r.PathValue("id")
	return h.agentDeregister(r, id, "", unknownService(id))
}

func unknownService(id string) string {
	return fmt.Sprintf("Unknown service ID %q. Ensure that the service ID is passed, not the service name.", id)
}

func (h *handler) agentCheckDeregister(r *http.Request, _ query) (response, error) {
	id := r.PathValue("id")
	return h.agentDeregister(r, "", id, unknownCheck(id))
}

// agentDeregister removes a service or a check from this server's node. If the
// node does not have it, the response is 404, and unknown is its text.
func (h *handler) agentDeregister(r *http.Request, service, check, unknown string) (response, error) {
	err := untilLeader(r.Context(), func(ctx context.Context) error {
		s, err := h.stored.At(ctx, resource.Strong)
		if err != nil {
			return err
		}
		if n := s.Node(h.Node); n.Service(service) == nil && n.Check(check) == nil {
			return statusError{http.StatusNotFound, unknown}
		}
		return h.writer.Deregister(ctx, h.Node, service, check)
	})
	return response{body: encoded{}}, err
}

func unknownCheck(id string) string {
	return fmt.Sprintf("Unknown check ID %q. Ensure that the check ID is passed, not the check name.", id)
}

// setStatus returns the function of /v1/agent/check/pass, warn and fail. The
// parameter note is the output of the check.
func (h *handler) setStatus(status string) func(r *http.Request, q query) (response, error) {
	return func(r *http.Request, q query) (response, error) {
		return h.updateCheck(r, status, q.values.Get("note"))
	}
}

func (h *handler) agentCheckUpdate(r *http.Request, q query) (response, error) {
	var body struct{ Status, Output string }
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	return h.updateCheck(r, strings.ToLower(body.Status), body.Output)
}

func (h *handler) updateCheck(r *http.Request, status, output string) (response, error) {
	update := catalog.CheckUpdate{Node: h.Node, CheckID: r.PathValue("id"), Status: status, Output: output}
	err := h.Resources.Allow(r.Context(), resource.VerbWrite, catalog.CheckType, catalog.CheckName(h.Node, update.CheckID))
	if err == nil {
		err = untilLeader(r.Context(), func(ctx context.Context) error { return h.Report(ctx, update) })
	}
	if errors.Is(err, resource.ErrNotFound) {
		err = statusError{http.StatusNotFound, unknownCheck(update.CheckID)}
	}
	return response{body: encoded{}}, err
}
