// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource"
)

func (h *handler) agentSelf(*http.Request, query) (response, error) {
	var member any = struct{}{}
	for _, m := range h.cluster.Members(false) {
		if m.Name == h.node {
			member = m
		}
	}
	config := map[string]any{
		"Datacenter": h.dc, "NodeName": h.node, "Server": true, "Version": version.Version,
		"Revision": version.Get().Commit,
	}
	return response{body: map[string]any{"Config": config, "Member": member}}, nil
}

// readOwnNode responds with the value of result for this server's node. The
// node is nil if nothing is registered on it.
func (h *handler) readOwnNode(
	r *http.Request, q query, result func(n *catalog.Node) (any, error),
) (response, error) {
	return h.readCatalog(r, q, func(s *catalog.Snapshot) (any, error) { return result(s.Node(h.node)) })
}

func (h *handler) agentServices(r *http.Request, q query) (response, error) {
	x, err := expressionOf[api.Service](q)
	if err != nil {
		return response{}, err
	}
	return h.readOwnNode(r, q, func(n *catalog.Node) (any, error) {
		services, err := matching(x, servicesOf(n))
		out := make(map[string]agentService, len(services))
		for _, v := range services {
			out[v.ID] = agentService{v, h.dc}
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
	if err := q.reject("hash"); err != nil { // a client that blocks by hash would poll
		return response{}, err
	}
	id := r.PathValue("id")
	found := false
	a, err := h.readOwnNode(r, q, func(n *catalog.Node) (any, error) {
		v := n.Service(id)
		found = v != nil
		if v == nil {
			return nil, nil
		}
		return agentService{serviceOf(v), h.dc}, nil
	})
	if err == nil && !found {
		err = statusError{http.StatusNotFound, fmt.Sprintf("unknown service ID: %q", id)}
	}
	return a, err
}

func (h *handler) agentChecks(r *http.Request, q query) (response, error) {
	x, err := expressionOf[api.Check](q)
	if err != nil {
		return response{}, err
	}
	return h.readOwnNode(r, q, func(n *catalog.Node) (any, error) {
		checks, err := matching(x, checksOf(n.AllChecks()))
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
	e, err := h.agentEntry(body)
	if err != nil {
		return response{}, badRequest{err}
	}
	if e.ReplaceChecks, err = q.flag("replace-existing-checks"); err != nil {
		return response{}, err
	}
	return h.agentRegister(r, e)
}

// agentEntry returns the registration in a request. Checks get the same ids as
// in Consul.
func (h *handler) agentEntry(body serviceBody) (e catalog.Registration, err error) {
	if e.Service, err = body.record(h.node); err != nil {
		return e, err
	}
	if body.Check != nil {
		body.Checks = append([]agentCheckBody{*body.Check}, body.Checks...)
	}
	for i, c := range body.Checks {
		id := "service:" + e.Service.Id
		if len(body.Checks) > 1 {
			id = fmt.Sprintf("service:%s:%d", e.Service.Id, i+1)
		}
		rec, err := c.record(h.node, e.Service, id)
		if err != nil {
			return e, err
		}
		e.Checks = append(e.Checks, rec)
	}
	return e, nil
}

func (h *handler) agentCheckRegister(r *http.Request, q query) (response, error) {
	var body agentCheckBody
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	if body.ID == "" && body.CheckID == "" && body.Name == "" {
		return response{}, badRequest{errors.New("must provide the name of the check")}
	}
	c, err := body.record(h.node, nil, body.Name)
	if err != nil {
		return response{}, badRequest{err}
	}
	c.ServiceId = body.ServiceID
	return h.agentRegister(r, catalog.Registration{Checks: []*pb.Check{c}})
}

// agentRegister registers e on this server's node, and the node with its first
// service.
func (h *handler) agentRegister(r *http.Request, e catalog.Registration) (response, error) {
	e.FromAgent = true
	e.Node = &pb.Node{
		Node: h.node, Address: h.address, Datacenter: h.dc,
		TaggedAddresses: map[string]string{catalog.TagLAN: h.address},
	}
	err := untilLeader(r.Context(), func(ctx context.Context) error { return h.writer.Register(ctx, e) })
	return response{body: encoded{}}, registerError(err)
}

func (h *handler) agentServiceDeregister(r *http.Request, _ query) (response, error) {
	id := r.PathValue("id")
	if err := h.present(r.Context(), func(n *catalog.Node) bool { return n.Service(id) != nil }); err != nil {
		return response{}, statusIfMissing(err, fmt.Sprintf(
			"Unknown service ID %q. Ensure that the service ID is passed, not the service name.", id))
	}
	err := untilLeader(r.Context(), func(ctx context.Context) error { return h.writer.Deregister(ctx, h.node, id, "") })
	return response{body: encoded{}}, err
}

func (h *handler) agentCheckDeregister(r *http.Request, _ query) (response, error) {
	id := r.PathValue("id")
	if err := h.present(r.Context(), func(n *catalog.Node) bool { return n.Check(id) != nil }); err != nil {
		return response{}, statusIfMissing(err, unknownCheck(id))
	}
	err := untilLeader(r.Context(), func(ctx context.Context) error { return h.writer.Deregister(ctx, h.node, "", id) })
	return response{body: encoded{}}, err
}

// present returns a resource.ErrNotFound unless has returns true for this
// server's node.
func (h *handler) present(ctx context.Context, has func(n *catalog.Node) bool) error {
	return untilLeader(ctx, func(ctx context.Context) error {
		s, err := h.view.At(ctx, resource.Strong)
		if err == nil && !has(s.Node(h.node)) {
			err = resource.ErrNotFound
		}
		return err
	})
}

func statusIfMissing(err error, text string) error {
	if errors.Is(err, resource.ErrNotFound) {
		return statusError{http.StatusNotFound, text}
	}
	return err
}

func unknownCheck(id string) string {
	return fmt.Sprintf("Unknown check ID %q. Ensure that the check ID is passed, not the check name.", id)
}

// reportStatus returns the function of /v1/agent/check/pass, warn and fail. The
// note is the output of the check.
func reportStatus(status string) func(h *handler, r *http.Request, q query) (response, error) {
	return func(h *handler, r *http.Request, q query) (response, error) {
		return h.reportCheck(r, catalog.CheckUpdate{Status: status, Output: q.values.Get("note")})
	}
}

func (h *handler) agentCheckUpdate(r *http.Request, q query) (response, error) {
	var body struct{ Status, Output string }
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	return h.reportCheck(r, catalog.CheckUpdate{Status: strings.ToLower(body.Status), Output: body.Output})
}

func (h *handler) reportCheck(r *http.Request, rep catalog.CheckUpdate) (response, error) {
	rep.Node, rep.CheckID = h.node, r.PathValue("id")
	err := h.resources.Allow(r.Context(), resource.VerbWrite, catalog.CheckType)
	if err == nil {
		err = untilLeader(r.Context(), func(ctx context.Context) error { return h.report(ctx, rep) })
	}
	return response{body: encoded{}}, statusIfMissing(err, unknownCheck(rep.CheckID))
}
