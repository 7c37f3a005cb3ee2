// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"net/http"

	"github.com/wanfed/wanfed/kv"
)

// records adds the endpoints that are made of records to mux, and returns what answers all. Without resources there are none.
func (h *handler) records(cfg Config, mux *http.ServeMux) (http.Handler, error) {
	if cfg.Resources == nil {
		return mux, nil
	}
	var err error
	if h.kv, err = kv.New(cfg.Resources, cfg.Backend); err != nil {
		return nil, err
	}
	return h.kvFirst(mux), nil
}
