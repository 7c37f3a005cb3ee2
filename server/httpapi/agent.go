// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"net/http"

	"github.com/wanfed/wanfed/api"
)

func (h *handler) members(_ *http.Request, q query) (answer, error) {
	wan, err := q.flag("wan")
	if err != nil {
		return answer{}, err
	}
	x, err := expressionOf[api.Member](q)
	if err != nil {
		return answer{}, err
	}
	members, err := only(x, h.src.Members(wan))
	return answer{body: orEmpty(members)}, err
}

func (h *handler) datacenters(*http.Request, query) (answer, error) {
	return answer{body: orEmpty(h.src.Datacenters())}, nil
}

func (h *handler) leader(*http.Request, query) (answer, error) {
	addr, _, _ := h.src.Leader()
	return answer{body: addr}, nil
}

func (h *handler) peers(*http.Request, query) (answer, error) {
	return answer{body: orEmpty(h.src.Peers())}, nil
}

func (h *handler) status(r *http.Request, _ query) (answer, error) {
	s, err := h.src.Status(r.Context())
	s.Datacenters = orEmpty(s.Datacenters)
	s.Components = orEmpty(s.Components)
	return answer{body: s}, err
}

// orEmpty makes an empty list of none: null in JSON surprises programs.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
