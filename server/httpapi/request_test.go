// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRejectToken sends ACL tokens in all forms of Consul's clients. A token is
// refused before the request has an effect, and the response does not have it.
func TestRejectToken(t *testing.T) {
	r := newStoreHandler(t)
	for _, tt := range []struct {
		header, value, query string
		status               int
	}{
		{"X-Consul-Token", "5e1cf4f1", "", http.StatusForbidden},
		{"Authorization", "Bearer 5e1cf4f1", "", http.StatusForbidden},
		{"Authorization", "bearer 5e1cf4f1", "", http.StatusForbidden},
		{"", "", "token=5e1cf4f1", http.StatusForbidden},
		{"", "", "Token=5e1cf4f1", http.StatusForbidden},
		{"", "", "token=&token=5e1cf4f1", http.StatusForbidden},
		{"", "", "t%6fken=5e1cf4f1&dc=dc2", http.StatusForbidden},
		{"X-Consul-Token", "", "", http.StatusOK},
		{"Authorization", "Basic eDp5", "", http.StatusOK},
		{"Authorization", "Bearer ", "token=", http.StatusOK},
	} {
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			req := httptest.NewRequest(method, "http://localhost/v1/kv/"+t.Name()+"?"+tt.query, strings.NewReader("v"))
			if tt.header != "" {
				req.Header.Set(tt.header, tt.value)
			}
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req.WithContext(t.Context()))
			refused := tt.status == http.StatusForbidden
			if w.Code != tt.status || strings.Contains(w.Body.String(), "5e1cf4f1") ||
				strings.Contains(w.Body.String(), "ACL tokens are not supported") != refused {
				t.Errorf("%s with %s %q and ?%s = %d %s, want %d", method, tt.header, tt.value, tt.query, w.Code, w.Body, tt.status)
			}
		}
		if tt.status == http.StatusForbidden {
			if w := r.do(t, http.MethodGet, "/v1/kv/"+t.Name(), ""); w.Code != http.StatusNotFound {
				t.Fatalf("key after a refused request with %+v = %d, want %d", tt, w.Code, http.StatusNotFound)
			}
		}
	}
}

func TestRedactToken(t *testing.T) {
	for raw, want := range map[string]string{
		"":                             "",
		"dc=dc2&index=7":               "dc=dc2&index=7",
		"token=SECRET":                 "token=...",
		"dc=dc2&Token=SECRET&pretty":   "dc=dc2&Token=...&pretty",
		"t%6fken=SECRET&a=%20":         "t%6fken=...&a=%20",
		"%zz=SECRET":                   "%zz=...",
		"tokens=1&key=token":           "tokens=1&key=token",
		"token=SECRET&token=SECRET2&b": "token=...&token=...&b",
	} {
		if got := redactToken(raw); got != want {
			t.Errorf("redactToken(%q) = %q, want %q", raw, got, want)
		}
	}
}
