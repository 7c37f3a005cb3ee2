// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/kv"
)

// records adds the endpoints that are made of records to mux, and returns what answers all. Without resources there are none.
func (h *handler) records(cfg Config, mux *http.ServeMux) (http.Handler, error) {
	if cfg.Resources == nil {
		return mux, nil
	}
	if cfg.Node == "" || cfg.Report == nil {
		return nil, errors.New("resources without Node or Report")
	}
	var err error
	if h.kv, err = kv.New(cfg.Resources, cfg.Backend); err != nil {
		return nil, err
	}
	h.resources, h.node, h.address, h.report = cfg.Resources, cfg.Node, cfg.Address, cfg.Report
	h.view = catalog.NewView(cfg.Backend)
	h.writer = catalog.NewWriter(cfg.Resources, h.view)
	for pattern, e := range map[string]endpoint{
		"PUT /v1/txn":                             h.txn,
		"PUT /v1/catalog/register":                h.catalogRegister,
		"PUT /v1/catalog/deregister":              h.catalogDeregister,
		"GET /v1/catalog/nodes":                   h.catalogNodes,
		"GET /v1/catalog/services":                h.catalogServices,
		"GET /v1/catalog/service/{service...}":    h.catalogService,
		"GET /v1/catalog/node/{node...}":          h.catalogNode,
		"GET /v1/catalog/node-services/{node...}": h.catalogNodeServices,
		"GET /v1/health/service/{service...}":     h.healthService,
		"GET /v1/health/node/{node...}":           h.healthNode,
		"GET /v1/health/checks/{service...}":      h.healthChecks,
		"GET /v1/health/state/{state...}":         h.healthState,
	} {
		mux.Handle(pattern, h.serve(named(pattern, e)))
	}
	for pattern, e := range map[string]endpoint{
		"GET /v1/agent/self":                       h.agentSelf,
		"GET /v1/agent/services":                   h.agentServices,
		"GET /v1/agent/service/{id...}":            h.agentService,
		"GET /v1/agent/checks":                     h.agentChecks,
		"PUT /v1/agent/service/register":           h.agentServiceRegister,
		"PUT /v1/agent/service/deregister/{id...}": h.agentServiceDeregister,
		"PUT /v1/agent/check/register":             h.agentCheckRegister,
		"PUT /v1/agent/check/deregister/{id...}":   h.agentCheckDeregister,
		"PUT /v1/agent/check/pass/{id...}":         h.agentReport(catalog.StatusPassing),
		"PUT /v1/agent/check/warn/{id...}":         h.agentReport(catalog.StatusWarning),
		"PUT /v1/agent/check/fail/{id...}":         h.agentReport(catalog.StatusCritical),
		"PUT /v1/agent/check/update/{id...}":       h.agentCheckUpdate,
	} {
		mux.Handle(pattern, h.here(named(pattern, e)))
	}
	return h.kvFirst(mux), nil
}

// named refuses a path that leaves out the name with which its pattern ends, if that ends with one.
func named(pattern string, e endpoint) endpoint {
	_, key, ok := strings.Cut(strings.TrimSuffix(pattern, "...}"), "{")
	if !ok {
		return e
	}
	return func(r *http.Request, q query) (answer, error) {
		if r.PathValue(key) == "" {
			return answer{}, badRequest{fmt.Errorf("missing %s in the path", key)}
		}
		return e(r, q)
	}
}
