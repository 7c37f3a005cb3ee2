// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"net/http"
	"strings"
)

// notGRPC answers who calls the HTTP port by gRPC in a way that its client understands: that is a mistake in an address.
func notGRPC(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			next.ServeHTTP(w, r)
			return
		}
		// A response that has no body begins and ends with these.
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", "12") // UNIMPLEMENTED
		h.Set("Grpc-Message", "this is the HTTP API, for people and tools; call the server port (8300 if not set otherwise), or a gateway")
	})
}
