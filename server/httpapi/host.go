// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// checkHost refuses requests by a DNS name that is none of names and not localhost. A web page that makes its own name
// resolve to 127.0.0.1 would otherwise read the API with its visitor's browser (DNS rebinding): the browser then sends the
// page's name as Host, and no page can have an IP address of ours, or localhost, as its name.
func checkHost(names []string, next http.Handler) http.Handler {
	names = slices.Clone(names)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowedHost(r.Host, names) {
			fail(w, http.StatusForbidden, fmt.Sprintf(
				"host %.300q is no name of this server; ask it by an IP address or as %s", r.Host, strings.Join(append([]string{"localhost"}, names...), ", ")))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowedHost takes the Host of a request, with or without port. None at all (HTTP/1.0) is not from a browser.
func allowedHost(hostport string, names []string) bool {
	if hostport == "" || hostport == "localhost" {
		return true
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Zone() == "" // clients leave a zone out; it could hold any text
	}
	host = strings.TrimSuffix(host, ".")
	return slices.ContainsFunc(append(names[:len(names):len(names)], "localhost"), func(name string) bool {
		return strings.EqualFold(strings.TrimSuffix(name, "."), host)
	})
}
