// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/profile"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/ui"
	"github.com/wanfed/wanfed/tlsutil"
)

// Endpoint describes one endpoint, for the reference documentation.
type Endpoint struct {
	// Method is the HTTP method, or "" for several methods. GET includes HEAD.
	Method string
	// Path may have a parameter: "{name}", or "{name...}" for the rest of the
	// path, slashes included.
	Path    string
	Summary string // one sentence
	// Local endpoints describe the server that receives the request. They
	// refuse ?dc= with another datacenter.
	Local bool
}

// route is an endpoint with its function.
type route struct {
	Method, Path, Summary string
	handle                func(r *http.Request, q query) (response, error)
}

const (
	read  = http.MethodGet
	write = http.MethodPut
	// kvPath precedes the key in a path. A key may contain "//" and "..".
	kvPath = "/v1/kv/"
)

// federationRoutes need no Config.Resources.
func (h *handler) federationRoutes() []route {
	return []route{
		{read, "/v1/internal/federation-states", "Lists the federation states of all datacenters.",
			h.federationStates},
		{read, "/v1/internal/federation-states/mesh-gateways", "Lists the gateways of all datacenters.",
			h.meshGateways},
		{read, "/v1/internal/federation-state/{dc}", "Returns the federation state of one datacenter.",
			h.federationState},
		{read, "/v1/agent/members", "Lists the members of the LAN pool, or with ?wan of the WAN pool.", h.members},
		{read, "/v1/catalog/datacenters", "Lists the known datacenters: the local one first, then by round-trip time.",
			h.datacenters},
		{read, "/v1/status/leader", "Returns the address of the Raft leader.", h.leader},
		{read, "/v1/status/peers", "Lists the addresses of the voters of the Raft group.", h.peers},
		{read, api.StatusPath, "Returns how well this datacenter reaches the others, and the state of the server; " +
			"with ?watch as a stream of events.", h.status},
		{read, api.ControllersPath, "Lists the controllers of a server, with their queues and errors.", h.controllers},
	}
}

// keyRoutes are not in the ServeMux, which would clean the path of a key.
func (h *handler) keyRoutes() []route {
	return []route{
		{read, kvPath + "{key...}",
			"Reads a key; with ?recurse all keys with a prefix, with ?keys their names, with ?raw the bare value.",
			h.kvGet},
		{write, kvPath + "{key...}",
			"Writes a key; with ?cas=INDEX only if it was not changed since, with ?acquire or ?release locks or unlocks it.",
			h.kvPut},
		{http.MethodDelete, kvPath + "{key...}", "Deletes a key; with ?recurse all keys with a prefix.", h.kvDelete},
	}
}

// sessionRoutes, catalogRoutes, keyRoutes and agentRoutes need Config.Resources.
func (h *handler) sessionRoutes() []route {
	return []route{
		{write, "/v1/txn", "Performs up to 128 operations on keys, all or none.", h.txn},
		{write, "/v1/session/create", "Creates a session and returns its id.", h.sessionCreate},
		{write, "/v1/session/destroy/{id...}", "Ends a session, and releases or deletes its keys.", h.sessionDestroy},
		{write, "/v1/session/renew/{id...}", "Restarts the TTL of a session.", h.sessionRenew},
		{read, "/v1/session/info/{id...}", "Returns a session, in a list.", h.sessionInfo},
		{read, "/v1/session/node/{node...}", "Lists the sessions of a node.", h.sessionNode},
		{read, "/v1/session/list", "Lists all sessions.", h.sessionList},
	}
}

func (h *handler) catalogRoutes() []route {
	return []route{
		{write, "/v1/catalog/register", "Registers a node, a service on it, and checks.", h.catalogRegister},
		{write, "/v1/catalog/deregister", "Removes a node, a service, or a check.", h.catalogDeregister},
		{read, "/v1/catalog/nodes", "Lists nodes.", h.catalogNodes},
		{read, "/v1/catalog/services", "Lists the names of services, with the tags of each.", h.catalogServices},
		{read, "/v1/catalog/service/{service...}", "Lists the instances of a service.", h.catalogService},
		{read, "/v1/catalog/node/{node...}", "Returns a node and its services, by id.", h.catalogNode},
		{read, "/v1/catalog/node-services/{node...}", "Returns a node and its services, as a list.",
			h.catalogNodeServices},
		{read, "/v1/health/service/{service...}",
			"Lists the instances of a service with their nodes and checks; with ?passing only healthy ones.",
			h.healthService},
		{read, "/v1/health/node/{node...}", "Lists the checks of a node.", h.healthNode},
		{read, "/v1/health/checks/{service...}", "Lists the checks of a service.", h.healthChecks},
		{read, "/v1/health/state/{state...}", "Lists the checks in a state: any, passing, warning or critical.",
			h.healthState},
	}
}

// agentRoutes are local.
func (h *handler) agentRoutes() []route {
	return []route{
		{read, "/v1/agent/self", "Returns the name, datacenter and version of this server.", h.agentSelf},
		{read, api.GatewaySnapshotsPath, "Lists the snapshots of the gateways, and the Envoys connected to this server.",
			h.gatewaySnapshots},
		{read, "/v1/agent/services", "Lists the services of this server's node.", h.agentServices},
		{read, "/v1/agent/service/{id...}", "Returns a service of this server's node.", h.agentService},
		{read, "/v1/agent/checks", "Lists the checks of this server's node.", h.agentChecks},
		{write, "/v1/agent/service/register", "Registers a service on this server's node.", h.agentServiceRegister},
		{write, "/v1/agent/maintenance", "Sets the maintenance mode of this server's node: ?enable=true&reason=TEXT.",
			h.agentMaintenance},
		{write, maintenancePath + "{id...}", "Sets the maintenance mode of a service of this server's node.", h.serviceMaintenance},
		{read, "/v1/agent/health/service/id/{id...}",
			"Returns the health of a service of this server's node, with the status 200, 429 or 503.", h.agentHealthByID},
		{read, "/v1/agent/health/service/name/{name...}",
			"Returns the health of the services of this server's node with a name.", h.agentHealthByName},
		{write, "/v1/agent/service/deregister/{id...}", "Removes a service from this server's node.",
			h.agentServiceDeregister},
		{write, "/v1/agent/check/register", "Registers a check on this server's node.",
			h.agentCheckRegister},
		{write, "/v1/agent/check/deregister/{id...}", "Removes a check from this server's node.",
			h.agentCheckDeregister},
		{write, "/v1/agent/check/pass/{id...}", "Reports that a check passes.", h.setStatus(catalog.StatusPassing)},
		{write, "/v1/agent/check/warn/{id...}", "Reports a warning of a check.", h.setStatus(catalog.StatusWarning)},
		{write, "/v1/agent/check/fail/{id...}", "Reports that a check fails.", h.setStatus(catalog.StatusCritical)},
		{write, "/v1/agent/check/update/{id...}", "Reports the status and the output of a check.",
			h.agentCheckUpdate},
	}
}

// Endpoints returns all endpoints, in the order of the documentation.
func Endpoints() []Endpoint {
	var out []Endpoint
	h := &handler{} // its functions are not called
	for _, r := range slices.Concat(h.federationRoutes(), h.policyRoutes(), h.groupRoutes(),
		h.keyRoutes(), h.sessionRoutes(), h.catalogRoutes()) {
		out = append(out, Endpoint{r.Method, r.Path, r.Summary, false})
	}
	for _, r := range slices.Concat(h.agentRoutes(), h.hostRoutes()) {
		out = append(out, Endpoint{r.Method, r.Path, r.Summary, true})
	}
	return append(out,
		Endpoint{Path: "/api/", Summary: "Resources of all types, as JSON."},
		Endpoint{Method: read, Path: "/metrics", Local: true, Summary: "Returns metrics in the format of Prometheus."},
		Endpoint{Method: read, Path: profile.Path + "{name}", Local: true,
			Summary: "Returns a profile of the Go runtime, to operators of this datacenter."},
	)
}

// router returns the handler of all endpoints that the Config provides.
func (h *handler) router() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, next http.Handler) { mux.Handle(pattern, h.measure(pattern, next)) }
	keys := map[string]http.Handler{}
	for _, r := range h.federationRoutes() {
		handle(r.Method+" "+r.Path, h.serve(r, false, federation))
	}
	if h.Group != nil {
		for _, r := range h.groupRoutes() {
			mux.Handle(r.Method+" "+r.Path, h.serve(r, false, federation))
		}
		for _, r := range h.hostRoutes() {
			mux.Handle(r.Method+" "+r.Path, h.serve(r, true, federation))
		}
	}
	if h.Resources != nil {
		for _, r := range h.policyRoutes() {
			handle(r.Method+" "+r.Path, h.serve(r, false, policy.Type))
		}
		for _, r := range h.sessionRoutes() {
			handle(r.Method+" "+r.Path, h.serve(r, false, nil))
		}
		for _, r := range h.catalogRoutes() {
			handle(r.Method+" "+r.Path, h.serve(r, false, catalog.ServiceType))
		}
		for _, r := range h.agentRoutes() {
			handle(r.Method+" "+r.Path, h.serve(r, true, catalog.ServiceType))
		}
		for _, r := range h.keyRoutes() {
			keys[r.Method] = h.measure(r.Method+" "+r.Path, h.serve(r, false, nil))
		}
	}
	if h.Metrics != nil {
		handle("GET /metrics", h.metrics())
	}
	if h.Profiles != nil {
		handle("GET "+profile.Path, h.profiles())
	}
	if h.API != nil {
		handle("/api/", h.authorizeWrites(h.API))
	}
	if h.UI != nil {
		handle("GET "+ui.Path, h.UI)
		handle("GET /{$}", http.RedirectHandler(ui.Path, http.StatusFound))
	}
	handle("/", notFound(mux))
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

// federation is the type of federation states. The members, the status and the
// metrics of the server are data of the same kind.
var federation = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}

func (h *handler) metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.authorizeRead(r, federation); err != nil {
			writeFailure(w, r, err)
			return
		}
		h.Metrics.ServeHTTP(w, r)
	})
}

// profiles serves profiles to operators of this datacenter, and to holders of
// the certificate of this server.
func (h *handler) profiles() http.Handler {
	own := tlsutil.Peer{Role: tlsutil.RoleServer, DC: h.DC, Node: h.Node}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, _ := tlsutil.PeerFromContext(r.Context()) // without a caller it is refused
		if err := profile.Authorize(caller, own); err != nil {
			writeFailure(w, r, fmt.Errorf("%w: %w", resource.ErrDenied, err))
			return
		}
		if err := h.checkLocal(r, query{dc: r.URL.Query().Get("dc")}); err != nil {
			writeFailure(w, r, err)
			return
		}
		h.Profiles.ServeHTTP(w, r)
	})
}

// requireName returns an error if the pattern ends with "{name...}" and the
// path has no name.
func (rt route) requireName(r *http.Request) error {
	_, name, ok := strings.Cut(strings.TrimSuffix(rt.Path, "...}"), "{")
	if ok && strings.HasSuffix(rt.Path, "...}") && !strings.HasPrefix(rt.Path, kvPath) && r.PathValue(name) == "" {
		return badRequest{fmt.Errorf("missing %s in the path", name)}
	}
	return nil
}

// checkLocal returns an error if a request for this server names another
// datacenter.
func (h *handler) checkLocal(r *http.Request, q query) error {
	if q.dc == "" || q.dc == h.DC {
		return nil
	}
	return badRequest{fmt.Errorf("%s is about the server that receives the request, %s of %s: "+
		"send it to a server of %.63q, or leave dc out", r.URL.Path, h.Node, h.DC, q.dc)}
}

// maintenancePath precedes the id of a service.
const maintenancePath = "/v1/agent/service/maintenance/"

// notFound responds to requests that match no other pattern of mux: with 405 if
// the path has other methods, otherwise with 404.
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

// consulRemedies are texts about endpoints of Consul that wanfed does not have,
// by prefix.
var consulRemedies = []struct{ prefix, remedy string }{
	{"/v1/acl", "wanfed has no tokens: certificates decide who may do what"},
	{"/v1/connect", noMesh},
	{"/v1/config", noMesh},
	{"/v1/discovery-chain", noMesh},
	{"/v1/exported-services", noMesh},
	{"/v1/imported-services", noMesh},
	{"/v1/peering", "wanfed has no cluster peering: datacenters join one federation"},
	{"/v1/health/connect", noMesh},
	{"/v1/health/ingress", noMesh},
	{"/v1/catalog/connect", noMesh},
	{"/v1/catalog/gateway-services", noMesh},
	{"/v1/agent/connect", noMesh},
	{"/v1/query", "wanfed has no prepared queries"},
	{"/v1/event", "wanfed has no user events"},
	{"/v1/snapshot", "use: wanfed snapshot"},
	{"/v1/operator/keyring", "use: wanfed keyring"},
	{"/v1/operator/raft", "use: wanfed operator raft"},
	{"/v1/operator", "of Consul's operator endpoints, wanfed has only commands: wanfed operator raft, wanfed keyring"},
	{"/v1/agent/reload", "use: systemctl reload, or SIGHUP to the server"},
	{"/v1/agent/join", "servers join by retry_join and by the federation: see wanfed join"},
	{"/v1/agent/leave", "stop the server: it leaves by itself"},
	{"/v1/agent/force-leave", "use: wanfed operator raft remove-peer"},
	{"/v1/", "wanfed has only a part of Consul's endpoints"},
}

const noMesh = "wanfed has no service mesh"

func remedy(path string) string {
	for _, c := range consulRemedies {
		if strings.HasPrefix(path, c.prefix) {
			return c.remedy
		}
	}
	return "the API is under /v1/ and /api/, metrics are at /metrics"
}
