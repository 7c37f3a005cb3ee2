// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"math/rand/v2"
	"net/http"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/server/limit"
)

func (h *handler) federationStates(r *http.Request, q query) (answer, error) {
	states, index, err := h.states(r.Context(), q)
	return answer{body: api.FromFederationStates(states), index: index}, err
}

func (h *handler) meshGateways(r *http.Request, q query) (answer, error) {
	states, index, err := h.states(r.Context(), q)
	return answer{body: api.GatewaysByDatacenter(states), index: index}, err
}

func (h *handler) federationState(r *http.Request, q query) (answer, error) {
	states, index, err := h.states(r.Context(), q)
	if err != nil {
		return answer{}, err
	}
	for _, s := range states {
		if s.GetDatacenter() != r.PathValue("dc") {
			continue
		}
		state := api.FromFederationState(s)
		_, lastContact, known := h.src.Leader()
		return answer{
			body:  api.FederationStateResponse{State: &state, Index: index, LastContact: lastContact, KnownLeader: known},
			index: index,
		}, nil
	}
	return answer{index: index}, nil
}

// states reads the federation states; while their index is the one that q names it waits first.
func (h *handler) states(ctx context.Context, q query) ([]*pb.FederationState, uint64, error) {
	if err := q.unknown("filter", "ns", "partition"); err != nil {
		return nil, 0, err
	}
	wctx := ctx
	if q.blocks() {
		var cancel context.CancelFunc
		wctx, cancel = context.WithTimeout(ctx, q.wait+rand.N(api.MaxBlockTime(q.wait)-q.wait+1))
		defer cancel()
	}
	for {
		states, index, err := h.src.FederationStates(ctx)
		if err != nil {
			return nil, 0, err
		}
		index = max(index, 1) // a client that is told 0 would not block, but ask again and again
		if !q.blocks() || index != q.index {
			return states, index, nil
		}
		err = limit.Pause(ctx, func() error { return h.src.WaitFederationStates(wctx, index) })
		switch {
		case ctx.Err() != nil:
			return nil, 0, ctx.Err()
		case wctx.Err() != nil:
			return states, index, nil
		case err != nil:
			return nil, 0, err
		}
	}
}
