// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// FuzzRequest checks that the response to any request has a documented status
// other than 500.
func FuzzRequest(f *testing.F) {
	const node = `{"data":{"address":"x"}}`
	for _, seed := range [][4]string{
		{"GET", "catalog/v1/Node", "prefix=a&pretty", ""},
		{"GET", "catalog/v1/node/a", "uid=u&consistent", ""},
		{"GET", "kv/v1/key/a//b", "owned", ""},
		{"PUT", "catalog/v1/node/a", "version=1", node},
		{"PUT", "catalog/v1/node/a", "dry-run", `{"id":{"name":"a","tenancy":{}},"owner":{"name":"o"},` +
			`"status":{"c":{"conditions":[{}]}},"data":{"@type":"wanfed.v1.Node"}}`},
		{"PUT", "test/v1/anything/a", "partition=p", `{"data":{"id":{"name":"x"},` +
			`"data":{"@type":"type.googleapis.com/wanfed.v1.Node"}},"metadata":{"a":"b"},"create_index":"7"}`},
		{"PUT", "catalog/v1/node/a", "status=k&uid=u",
			`{"observed_generation":"g","updated_at":"2026-01-02T03:04:05Z"}`},
		{"DELETE", "federation/v1/federationstate/a", "namespace=*", ""},
		{"GET", "types", "", ""},
		{"HEAD", "openapi.json", "dc=dc1", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		if strings.Contains(query, "watch") { // a watch does not end by itself
			return
		}
		f := newFixture(t)
		r := httptest.NewRequest("GET", "/", strings.NewReader(body)).WithContext(t.Context())
		r.Method, r.URL = method, &url.URL{Path: "/api/" + path, RawQuery: query}
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK, http.StatusNoContent, http.StatusBadRequest, http.StatusNotFound,
			http.StatusMethodNotAllowed, http.StatusConflict:
		default:
			t.Errorf("response to %s %q ?%q %q = %d %s, want a documented status", method, path, query, body,
				w.Code, w.Body)
		}
	})
}
