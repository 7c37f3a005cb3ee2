// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"net/http"
	"strings"
)

// missing answers for what no pattern of mux but its own takes: 405 for a path that has other methods, else 404.
func missing(mux *http.ServeMux) http.Handler {
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
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			fail(w, http.StatusMethodNotAllowed, fmt.Sprintf("method %s not allowed: %.200s takes %s", r.Method, r.URL.Path, strings.Join(allowed, ", ")))
			return
		}
		fail(w, http.StatusNotFound, fmt.Sprintf("no such endpoint: %.200q; %s", r.URL.Path, instead(r.URL.Path)))
	})
}

// notHere says what to do instead of what Consul has under a path.
var notHere = []struct{ prefix, instead string }{
	{"/v1/session", noLocks},
	{"/v1/acl", "there are no tokens: who may what is said by certificates"},
	{"/v1/connect", noMesh}, {"/v1/config", noMesh}, {"/v1/discovery-chain", noMesh}, {"/v1/exported-services", noMesh}, {"/v1/imported-services", noMesh},
	{"/v1/peering", noMesh}, {"/v1/health/connect", noMesh}, {"/v1/health/ingress", noMesh}, {"/v1/catalog/connect", noMesh}, {"/v1/catalog/gateway-services", noMesh},
	{"/v1/agent/connect", noMesh},
	{"/v1/query", "wanfed has no prepared queries"},
	{"/v1/event", "wanfed has no user events"},
	{"/v1/coordinate", "round trips are shown by: wanfed status"},
	{"/v1/snapshot", "use: wanfed snapshot"},
	{"/v1/operator/keyring", "use: wanfed keyring"},
	{"/v1/operator", "use: wanfed operator"},
	{"/v1/agent/metrics", "ask /metrics"},
	{"/v1/", "docs/kv-and-catalog.md lists those of Consul that are here"},
	{"/api/", "docs/resources.md lists what is here"},
}

const noMesh = "wanfed has no service mesh"

func instead(path string) string {
	for _, n := range notHere {
		if strings.HasPrefix(path, n.prefix) {
			return n.instead
		}
	}
	return "the API is under /v1/ and /api/, metrics are at /metrics"
}
