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

// The endpoints of the agent are about the node of the server that is asked, and so of no other datacenter.

// here serves an endpoint that is not handed on.
func (h *handler) here(e endpoint) http.Handler {
	serve := h.serve(e)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dc := r.URL.Query().Get("dc"); dc != "" && dc != h.dc {
			fail(w, http.StatusBadRequest, fmt.Sprintf("%s is about the server that is asked, %s of %s: ask a server of %.63q, or leave dc out",
				r.URL.Path, h.node, h.dc, dc))
			return
		}
		serve.ServeHTTP(w, r)
	})
}

func (h *handler) agentSelf(*http.Request, query) (answer, error) {
	var member any = struct{}{}
	for _, m := range h.src.Members(false) {
		if m.Name == h.node {
			member = m
		}
	}
	return answer{body: map[string]any{
		"Config": map[string]any{
			"Datacenter": h.dc, "NodeName": h.node, "Server": true, "Version": version.Version, "Revision": version.Get().Commit,
		},
		"Member": member,
	}}, nil
}

// onOwnNode answers with what of makes of this server's node, nil if nothing is registered there.
func (h *handler) onOwnNode(r *http.Request, q query, of func(n *catalog.Node) (any, error)) (answer, error) {
	return h.fromCatalog(r, q, func(s *catalog.Snapshot) (any, error) { return of(s.Node(h.node)) })
}

func (h *handler) agentServices(r *http.Request, q query) (answer, error) {
	x, err := expressionOf[api.Service](q)
	if err != nil {
		return answer{}, err
	}
	return h.onOwnNode(r, q, func(n *catalog.Node) (any, error) {
		services, err := only(x, servicesOf(n))
		out := make(map[string]agentService, len(services))
		for _, v := range services {
			out[v.ID] = agentService{v, h.dc}
		}
		return out, err
	})
}

// agentService is a service as the agent's endpoints show it.
type agentService struct {
	api.Service
	Datacenter string
}

func (h *handler) agentService(r *http.Request, q query) (answer, error) {
	if err := q.unknown("hash"); err != nil { // who blocks by hash would ask again and again
		return answer{}, err
	}
	id := r.PathValue("id")
	found := false
	a, err := h.onOwnNode(r, q, func(n *catalog.Node) (any, error) {
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

func (h *handler) agentChecks(r *http.Request, q query) (answer, error) {
	x, err := expressionOf[api.Check](q)
	if err != nil {
		return answer{}, err
	}
	return h.onOwnNode(r, q, func(n *catalog.Node) (any, error) {
		checks, err := only(x, checksOf(n.AllChecks()))
		out := make(map[string]api.Check, len(checks))
		for _, c := range checks {
			out[c.CheckID] = c
		}
		return out, err
	})
}

func (h *handler) agentServiceRegister(r *http.Request, q query) (answer, error) {
	var body serviceBody
	if err := decodeBody(q.body, &body); err != nil {
		return answer{}, err
	}
	e, err := h.agentEntry(body)
	if err != nil {
		return answer{}, badRequest{err}
	}
	if e.ReplaceChecks, err = q.flag("replace-existing-checks"); err != nil {
		return answer{}, err
	}
	return h.agentRegister(r, e)
}

// agentEntry makes what a service registers. Its checks have the ids that Consul gives them.
func (h *handler) agentEntry(body serviceBody) (e catalog.Entry, err error) {
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

func (h *handler) agentCheckRegister(r *http.Request, q query) (answer, error) {
	var body agentCheckBody
	if err := decodeBody(q.body, &body); err != nil {
		return answer{}, err
	}
	if body.ID == "" && body.CheckID == "" && body.Name == "" {
		return answer{}, badRequest{errors.New("must provide the name of the check")}
	}
	c, err := body.record(h.node, nil, body.Name)
	if err != nil {
		return answer{}, badRequest{err}
	}
	c.ServiceId = body.ServiceID
	return h.agentRegister(r, catalog.Entry{Checks: []*pb.Check{c}})
}

// agentRegister registers at this server's node, which is registered with its first service.
func (h *handler) agentRegister(r *http.Request, e catalog.Entry) (answer, error) {
	e.FromAgent = true
	e.Node = &pb.Node{Node: h.node, Address: h.address, Datacenter: h.dc, TaggedAddresses: map[string]string{catalog.TagLAN: h.address}}
	err := held(r.Context(), func(ctx context.Context) error { return h.writer.Register(ctx, e) })
	return answer{body: encoded{}}, registerError(err)
}

func (h *handler) agentServiceDeregister(r *http.Request, _ query) (answer, error) {
	id := r.PathValue("id")
	if err := h.present(r.Context(), func(n *catalog.Node) bool { return n.Service(id) != nil }); err != nil {
		return answer{}, statusIfMissing(err, fmt.Sprintf("Unknown service ID %q. Ensure that the service ID is passed, not the service name.", id))
	}
	err := held(r.Context(), func(ctx context.Context) error { return h.writer.Deregister(ctx, h.node, id, "") })
	return answer{body: encoded{}}, err
}

func (h *handler) agentCheckDeregister(r *http.Request, _ query) (answer, error) {
	id := r.PathValue("id")
	if err := h.present(r.Context(), func(n *catalog.Node) bool { return n.Check(id) != nil }); err != nil {
		return answer{}, statusIfMissing(err, unknownCheck(id))
	}
	err := held(r.Context(), func(ctx context.Context) error { return h.writer.Deregister(ctx, h.node, "", id) })
	return answer{body: encoded{}}, err
}

// present returns a resource.ErrNotFound if this server's node has not what is asked for.
func (h *handler) present(ctx context.Context, has func(n *catalog.Node) bool) error {
	return held(ctx, func(ctx context.Context) error {
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

// agentReport answers /v1/agent/check/pass, warn and fail: the note is the output.
func (h *handler) agentReport(status string) endpoint {
	return func(r *http.Request, q query) (answer, error) {
		return h.reportCheck(r, catalog.CheckUpdate{Status: status, Output: q.values.Get("note")})
	}
}

func (h *handler) agentCheckUpdate(r *http.Request, q query) (answer, error) {
	var body struct{ Status, Output string }
	if err := decodeBody(q.body, &body); err != nil {
		return answer{}, err
	}
	return h.reportCheck(r, catalog.CheckUpdate{Status: strings.ToLower(body.Status), Output: body.Output})
}

func (h *handler) reportCheck(r *http.Request, rep catalog.CheckUpdate) (answer, error) {
	rep.Node, rep.CheckID = h.node, r.PathValue("id")
	err := h.resources.Allow(r.Context(), resource.VerbWrite, catalog.CheckType)
	if err == nil {
		err = held(r.Context(), func(ctx context.Context) error { return h.report(ctx, rep) })
	}
	return answer{body: encoded{}}, statusIfMissing(err, unknownCheck(rep.CheckID))
}
