// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"cmp"
	"net/http"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/profile"
)

func TestEndpoints_AreServed(t *testing.T) {
	r := newStoreHandler(t)
	seen := map[string]bool{}
	for _, e := range Endpoints() {
		key := e.Method + " " + e.Path
		if e.Summary == "" || !strings.HasSuffix(e.Summary, ".") || seen[key] {
			t.Errorf("endpoint %s = %+v, want a summary that is a sentence, and no duplicate", key, e)
		}
		seen[key] = true
		if e.Path == "/metrics" || e.Path == "/api/" || strings.HasPrefix(e.Path, profile.Path) {
			continue // served by handlers of Config
		}
		path := e.Path
		if i := strings.IndexByte(path, '{'); i >= 0 {
			path = path[:i] + "x"
		}
		w := r.do(t, cmp.Or(e.Method, http.MethodGet), path, "{}")
		if body := w.Body.String(); strings.HasPrefix(body, "no such endpoint") ||
			w.Code == http.StatusMethodNotAllowed {
			t.Errorf("%s %s = %d %s, want an endpoint", e.Method, path, w.Code, body)
		}
	}
}
