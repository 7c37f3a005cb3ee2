// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"net/http"

	"github.com/wanfed/wanfed/tlsutil"
)

// identified puts who asks into the request's context. What another datacenter hands on has it already.
func (h *handler) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if _, ok := tlsutil.PeerFromContext(ctx); !ok && h.peer != nil {
			p, err := h.peer(r)
			if err != nil {
				fail(w, http.StatusForbidden, err.Error())
				return
			}
			r = r.WithContext(tlsutil.WithPeer(ctx, p))
		}
		next.ServeHTTP(w, r)
	})
}

// guarded refuses what is no read unless somebody asks who may write at all; which records is for their types to say.
func (h *handler) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reads(r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		switch p, _ := tlsutil.PeerFromContext(r.Context()); {
		case p.Role == tlsutil.RoleOperator || p.Role == tlsutil.RoleServer && p.DC == h.dc:
			next.ServeHTTP(w, r)
		case p.Role == tlsutil.RoleServer: // it may read for anybody, and write for its operators alone
			fail(w, http.StatusForbidden, fmt.Sprintf("%v may not write in %s for itself", p, h.dc))
		case r.TLS == nil:
			fail(w, http.StatusForbidden, fmt.Sprintf("a write needs an operator's certificate: make one with wanfed tls cert create --cli --dc %s, "+
				"and ask https://%s", h.dc, r.Host))
		default:
			fail(w, http.StatusForbidden, fmt.Sprintf("%v may not write: make an operator's certificate with: wanfed tls cert create --cli --dc %s", p, h.dc))
		}
	})
}

func reads(method string) bool { return method == http.MethodGet || method == http.MethodHead }
