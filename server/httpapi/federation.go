// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func (h *handler) federationStates(r *http.Request, q query) (response, error) {
	states, index, err := h.states(r.Context(), q)
	return response{body: api.FromFederationStates(states), index: index}, err
}

func (h *handler) meshGateways(r *http.Request, q query) (response, error) {
	states, index, err := h.states(r.Context(), q)
	return response{body: api.GatewaysByDatacenter(states), index: index}, err
}

func (h *handler) federationState(r *http.Request, q query) (response, error) {
	states, index, err := h.states(r.Context(), q)
	if err != nil {
		return response{}, err
	}
	i := slices.IndexFunc(states, func(s *pb.FederationState) bool { return s.GetDatacenter() == r.PathValue("dc") })
	if i < 0 {
		return response{index: index}, nil
	}
	_, lastContact, known := h.Cluster.Leader()
	return response{index: index, body: api.FederationStateResponse{
		State: new(api.FromFederationState(states[i])), Index: index, LastContact: lastContact, KnownLeader: known,
	}}, nil
}

// states returns the federation states of this server's store. A blocking query
// waits for any write.
func (h *handler) states(ctx context.Context, q query) ([]*pb.FederationState, uint64, error) {
	if err := q.reject("filter", "ns", "partition"); err != nil {
		return nil, 0, err
	}
	return blockingAt(ctx, q, resource.Eventual,
		func(ctx context.Context, _ resource.Consistency) ([]*pb.FederationState, uint64, error) {
			return h.Cluster.FederationStates(ctx)
		},
		h.Cluster.WaitFederationStates,
		func(a, b []*pb.FederationState) bool { return false })
}

func (h *handler) members(_ *http.Request, q query) (response, error) {
	wan, err := q.flag("wan")
	if err != nil {
		return response{}, err
	}
	expr, err := expressionOf[api.Member](q)
	if err != nil {
		return response{}, err
	}
	members, err := matching(expr, h.Cluster.Members(wan))
	return response{body: orEmpty(members)}, err
}

func (h *handler) datacenters(*http.Request, query) (response, error) {
	return response{body: orEmpty(h.Cluster.Datacenters())}, nil
}

func (h *handler) leader(*http.Request, query) (response, error) {
	addr, _, _ := h.Cluster.Leader()
	return response{body: addr}, nil
}

func (h *handler) peers(*http.Request, query) (response, error) {
	return response{body: orEmpty(h.Cluster.Peers())}, nil
}

func (h *handler) status(r *http.Request, q query) (response, error) {
	watch, err := q.flag("watch")
	switch {
	case err != nil:
		return response{}, err
	case watch && (isForwarded(r.Context()) || r.Method == http.MethodHead):
		return response{}, badRequest{errors.New("a watch of the status needs GET at a server of the datacenter itself")}
	case watch:
		return response{stream: h.watchStatus}, nil
	}
	s, err := h.currentStatus(r)
	if isForwarded(r.Context()) {
		s.Datacenters = withoutErrors(s.Datacenters)
	}
	return response{body: s}, err
}

// withoutErrors returns datacenters without the addresses to which this server
// could not connect, for a caller in another datacenter. Another datacenter
// names these addresses: it could see which ports are open here.
func withoutErrors(datacenters []api.DatacenterStatus) []api.DatacenterStatus {
	out := slices.Clone(datacenters)
	for i := range out {
		d := &out[i]
		if d.Own {
			continue
		}
		d.Paths, d.LastError = nil, ""
		if d.Cause != "" || d.Advice != "" {
			d.Cause, d.Advice = "only servers of the responding datacenter show the cause", "repeat the command there"
		}
	}
	return out
}

func (h *handler) controllers(*http.Request, query) (response, error) {
	if h.Controllers == nil {
		return response{body: []api.Controller{}}, nil
	}
	return response{body: h.Controllers()}, nil
}
