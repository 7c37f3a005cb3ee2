// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/catalog"
)

// Endpoint describes one endpoint, for the reference documentation.
type Endpoint struct {
	// Method is the HTTP method. GET serves HEAD too. It is empty if the
	// endpoint serves more than one method.
	Method string
	// Path may have a parameter: "{name}", or "{name...}" for the rest of the
	// path, slashes included.
	Path string
	// Summary describes the endpoint in one sentence.
	Summary string
	// Local: the endpoint is about the server that receives the request. It
	// does not accept ?dc= of another datacenter.
	Local bool
}

// route is an endpoint with its function. A route with records needs
// Config.Resources.
type route struct {
	Endpoint
	records bool
	handle  func(h *handler, r *http.Request, q query) (response, error)
}

const (
	read  = http.MethodGet
	write = http.MethodPut
	// kvPath is the prefix of the paths of keys. A key is the rest of the path,
	// "//" and ".." included.
	kvPath = "/v1/kv/"
)

// federationRoutes need only a Cluster.
var federationRoutes = []route{
	{Endpoint{Method: read, Path: "/v1/internal/federation-states",
		Summary: "Lists the federation states of all datacenters."}, false, (*handler).federationStates},
	{Endpoint{Method: read, Path: "/v1/internal/federation-states/mesh-gateways",
		Summary: "Lists the gateways of all datacenters."}, false, (*handler).meshGateways},
	{Endpoint{Method: read, Path: "/v1/internal/federation-state/{dc}",
		Summary: "Returns the federation state of one datacenter."}, false, (*handler).federationState},
	{Endpoint{Method: read, Path: "/v1/agent/members",
		Summary: "Lists the members of the LAN pool, or with ?wan of the WAN pool."}, false, (*handler).members},
	{Endpoint{Method: read, Path: "/v1/catalog/datacenters",
		Summary: "Lists the known datacenters: the local one first, then by round-trip time."},
		false, (*handler).datacenters},
	{Endpoint{Method: read, Path: "/v1/status/leader",
		Summary: "Returns the address of the Raft leader."}, false, (*handler).leader},
	{Endpoint{Method: read, Path: "/v1/status/peers",
		Summary: "Lists the addresses of the voters of the Raft group."}, false, (*handler).peers},
	{Endpoint{Method: read, Path: api.StatusPath,
		Summary: "Returns how well this datacenter reaches the others, and the state of the server."},
		false, (*handler).status},
}

// keyRoutes are routed by kvPath: a ServeMux would clean the path.
var keyRoutes = []route{
	{Endpoint{Method: read, Path: kvPath + "{key...}",
		Summary: "Reads a key; with ?recurse all keys with a prefix, with ?keys their names, with ?raw the bare value."},
		true, (*handler).kvGet},
	{Endpoint{Method: write, Path: kvPath + "{key...}",
		Summary: "Writes a key; with ?cas=INDEX only if it was not changed since."}, true, (*handler).kvPut},
	{Endpoint{Method: http.MethodDelete, Path: kvPath + "{key...}",
		Summary: "Deletes a key; with ?recurse all keys with a prefix."}, true, (*handler).kvDelete},
}

var catalogRoutes = []route{
	{Endpoint{Method: write, Path: "/v1/txn",
		Summary: "Performs up to 128 operations on keys, all or none."}, true, (*handler).txn},
	{Endpoint{Method: write, Path: "/v1/catalog/register",
		Summary: "Registers a node, a service on it, and checks."}, true, (*handler).catalogRegister},
	{Endpoint{Method: write, Path: "/v1/catalog/deregister",
		Summary: "Removes a node, a service, or a check."}, true, (*handler).catalogDeregister},
	{Endpoint{Method: read, Path: "/v1/catalog/nodes",
		Summary: "Lists nodes."}, true, (*handler).catalogNodes},
	{Endpoint{Method: read, Path: "/v1/catalog/services",
		Summary: "Lists the names of services, with the tags of each."}, true, (*handler).catalogServices},
	{Endpoint{Method: read, Path: "/v1/catalog/service/{service...}",
		Summary: "Lists the instances of a service."}, true, (*handler).catalogService},
	{Endpoint{Method: read, Path: "/v1/catalog/node/{node...}",
		Summary: "Returns a node and its services, by id."}, true, (*handler).catalogNode},
	{Endpoint{Method: read, Path: "/v1/catalog/node-services/{node...}",
		Summary: "Returns a node and its services, as a list."}, true, (*handler).catalogNodeServices},
	{Endpoint{Method: read, Path: "/v1/health/service/{service...}",
		Summary: "Lists the instances of a service with their nodes and checks; with ?passing only healthy ones."},
		true, (*handler).healthService},
	{Endpoint{Method: read, Path: "/v1/health/node/{node...}",
		Summary: "Lists the checks of a node."}, true, (*handler).healthNode},
	{Endpoint{Method: read, Path: "/v1/health/checks/{service...}",
		Summary: "Lists the checks of a service."}, true, (*handler).healthChecks},
	{Endpoint{Method: read, Path: "/v1/health/state/{state...}",
		Summary: "Lists the checks in a state: any, passing, warning or critical."}, true, (*handler).healthState},
}

// agentRoutes are about the node of the server that receives the request.
var agentRoutes = []route{
	{Endpoint{Method: read, Path: "/v1/agent/self", Local: true,
		Summary: "Returns the name, datacenter and version of this server."}, true, (*handler).agentSelf},
	{Endpoint{Method: read, Path: "/v1/agent/services", Local: true,
		Summary: "Lists the services of this server's node."}, true, (*handler).agentServices},
	{Endpoint{Method: read, Path: "/v1/agent/service/{id...}", Local: true,
		Summary: "Returns a service of this server's node."}, true, (*handler).agentService},
	{Endpoint{Method: read, Path: "/v1/agent/checks", Local: true,
		Summary: "Lists the checks of this server's node."}, true, (*handler).agentChecks},
	{Endpoint{Method: write, Path: "/v1/agent/service/register", Local: true,
		Summary: "Registers a service on this server's node."}, true, (*handler).agentServiceRegister},
	{Endpoint{Method: write, Path: "/v1/agent/service/deregister/{id...}", Local: true,
		Summary: "Removes a service from this server's node."}, true, (*handler).agentServiceDeregister},
	{Endpoint{Method: write, Path: "/v1/agent/check/register", Local: true,
		Summary: "Registers a check with a TTL on this server's node."}, true, (*handler).agentCheckRegister},
	{Endpoint{Method: write, Path: "/v1/agent/check/deregister/{id...}", Local: true,
		Summary: "Removes a check from this server's node."}, true, (*handler).agentCheckDeregister},
	{Endpoint{Method: write, Path: "/v1/agent/check/pass/{id...}", Local: true,
		Summary: "Reports that a check passes."}, true, reportStatus(catalog.StatusPassing)},
	{Endpoint{Method: write, Path: "/v1/agent/check/warn/{id...}", Local: true,
		Summary: "Reports a warning of a check."}, true, reportStatus(catalog.StatusWarning)},
	{Endpoint{Method: write, Path: "/v1/agent/check/fail/{id...}", Local: true,
		Summary: "Reports that a check fails."}, true, reportStatus(catalog.StatusCritical)},
	{Endpoint{Method: write, Path: "/v1/agent/check/update/{id...}", Local: true,
		Summary: "Reports the status and the output of a check."}, true, (*handler).agentCheckUpdate},
}

// Endpoints returns all endpoints, in the order of the documentation.
func Endpoints() []Endpoint {
	var out []Endpoint
	for _, routes := range [][]route{federationRoutes, keyRoutes, catalogRoutes, agentRoutes} {
		for _, r := range routes {
			out = append(out, r.Endpoint)
		}
	}
	return append(out,
		Endpoint{Path: "/api/", Summary: "Resources of all types, as JSON."},
		Endpoint{Method: read, Path: "/metrics", Local: true, Summary: "Returns metrics in the format of Prometheus."},
	)
}

// router returns the handler of all endpoints that cfg allows.
func (h *handler) router(cfg Config) http.Handler {
	mux := http.NewServeMux()
	keys := map[string]http.Handler{}
	for _, routes := range [][]route{federationRoutes, catalogRoutes, agentRoutes, keyRoutes} {
		for _, r := range routes {
			if r.records && cfg.Resources == nil {
				continue
			}
			served := h.serve(r)
			if strings.HasPrefix(r.Path, kvPath) {
				keys[r.Method] = served
			} else {
				mux.Handle(r.Method+" "+r.Path, served)
			}
		}
	}
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", cfg.Metrics)
	}
	if cfg.API != nil {
		mux.Handle("/api/", h.authorizeWrites(cfg.API))
	}
	mux.Handle("/", notFound(mux))
	if len(keys) == 0 {
		return mux
	}
	keys[http.MethodHead] = keys[http.MethodGet]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, kvPath) {
			mux.ServeHTTP(w, r)
		} else if served, ok := keys[r.Method]; ok {
			served.ServeHTTP(w, r)
		} else {
			w.Header().Set("Allow", "GET, HEAD, PUT, DELETE")
			writeError(w, http.StatusMethodNotAllowed, "method "+r.Method+" not allowed")
		}
	})
}

// requireName fails if a path lacks the "{name...}" with which its pattern
// ends.
func (rt route) requireName(r *http.Request) error {
	_, name, ok := strings.Cut(strings.TrimSuffix(rt.Path, "...}"), "{")
	if ok && strings.HasSuffix(rt.Path, "...}") && !strings.HasPrefix(rt.Path, kvPath) && r.PathValue(name) == "" {
		return badRequest{fmt.Errorf("missing %s in the path", name)}
	}
	return nil
}

// checkLocal fails if a request for this server names another datacenter.
func (h *handler) checkLocal(r *http.Request, q query) error {
	if q.dc == "" || q.dc == h.dc {
		return nil
	}
	return badRequest{fmt.Errorf("%s is about the server that receives the request, %s of %s: "+
		"send it to a server of %.63q, or leave dc out", r.URL.Path, h.node, h.dc, q.dc)}
}

// notFound answers requests that no other pattern of mux matches: 405 for a
// path that has other methods, else 404.
func notFound(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
			other := *r
			other.Method = method
			if _, pattern := mux.Handler(&other); pattern != "" && pattern != "/" {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) > 0 {
			methods := strings.Join(allowed, ", ")
			w.Header().Set("Allow", methods)
			writeError(w, http.StatusMethodNotAllowed,
				fmt.Sprintf("method %s not allowed: %.200s takes %s", r.Method, r.URL.Path, methods))
			return
		}
		writeError(w, http.StatusNotFound, fmt.Sprintf("no such endpoint: %.200q; %s", r.URL.Path, remedy(r.URL.Path)))
	})
}

// consulRemedies names what to use instead of endpoints of Consul that wanfed
// does not have, by prefix.
var consulRemedies = []struct{ prefix, remedy string }{
	{"/v1/session", noLocks},
	{"/v1/acl", "wanfed has no tokens: certificates decide who may do what"},
	{"/v1/connect", noMesh},
	{"/v1/config", noMesh},
	{"/v1/discovery-chain", noMesh},
	{"/v1/exported-services", noMesh},
	{"/v1/imported-services", noMesh},
	{"/v1/peering", noMesh},
	{"/v1/health/connect", noMesh},
	{"/v1/health/ingress", noMesh},
	{"/v1/catalog/connect", noMesh},
	{"/v1/catalog/gateway-services", noMesh},
	{"/v1/agent/connect", noMesh},
	{"/v1/query", "wanfed has no prepared queries"},
	{"/v1/event", "wanfed has no user events"},
	{"/v1/coordinate", "round-trip times are shown by: wanfed status"},
	{"/v1/snapshot", "use: wanfed snapshot"},
	{"/v1/operator/keyring", "use: wanfed keyring"},
	{"/v1/operator", "use: wanfed operator"},
	{"/v1/agent/metrics", "use /metrics"},
	{"/v1/", "docs/kv-and-catalog.md lists those of Consul that are here"},
	{"/api/", "docs/resources.md lists what is here"},
}

const (
	noMesh  = "wanfed has no service mesh"
	noLocks = "wanfed has no sessions and locks; cas writes a key only if it was not changed since"
)

func remedy(path string) string {
	for _, c := range consulRemedies {
		if strings.HasPrefix(path, c.prefix) {
			return c.remedy
		}
	}
	return "the API is under /v1/ and /api/, metrics are at /metrics"
}
