// SPDX-License-Identifier: MPL-2.0

package api

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAgentServices(t *testing.T) {
	var got string
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = r.Method + " " + r.URL.String() + " " + r.Header.Get(HeaderToken) + " " + string(body)
		w.Header().Set(HeaderHash, "abc")
		w.Header().Set(HeaderFiltered, "true")
		w.Write([]byte(`{"ID":"gw1","Port":1}`))
	})
	c.token = "secret"
	want := func(text string, err error) {
		t.Helper()
		if err != nil || got != text {
			t.Errorf("request = %s, %v; want %s", got, err, text)
		}
	}
	ctx := t.Context()
	s, meta, err := c.AgentService(ctx, "a/b", QueryOptions{Hash: "abc", Index: 7, Wait: time.Minute})
	want("GET /v1/agent/service/a%2Fb?hash=abc&wait=1m0s secret ", err)
	if s.ID != "gw1" || meta.Hash != "abc" || !meta.Filtered {
		t.Errorf("AgentService() = %+v, %+v; want gw1, hash abc, filtered", s, meta)
	}
	err = c.RegisterService(ctx, ServiceRegistration{ID: "gw1", Check: ServiceCheck{TTL: time.Second}})
	want(`PUT /v1/agent/service/register?replace-existing-checks=true secret {"Kind":"","ID":"gw1","Name":"",`+
		`"Address":"","Port":0,"TaggedAddresses":null,"Meta":null,"Check":{"Name":"","Status":"","TTL":"1s"}}`, err)
	want("PUT /v1/agent/check/pass/service:gw1 secret ", c.PassCheck(ctx, CheckID("gw1")))
	want("PUT /v1/agent/service/deregister/gw1 secret ", c.DeregisterService(ctx, "gw1"))
}

// Each request reads the token file. Without a token, nothing is sent.
func TestClient_TokenFile(t *testing.T) {
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get(HeaderToken))
		w.Write([]byte(`"10.0.0.1:8300"`))
	}))
	t.Cleanup(srv.Close)
	path := filepath.Join(t.TempDir(), "token")
	c := clientOf(t, ClientConfig{Addr: srv.URL, TokenFile: path})
	for _, tt := range []struct{ content, wantErr string }{
		{"first\n", ""}, {"second", ""}, {" \n", path + " is empty; write the secret id of a token to it"}, {"third", ""},
	} {
		if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := c.Leader(t.Context(), QueryOptions{})
		if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
			t.Errorf("Leader() with token file %q = %v, want %q", tt.content, err, tt.wantErr)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leader(t.Context(), QueryOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Leader() without the file = %v, want fs.ErrNotExist", err)
	}
	if want := []string{"first", "second", "third"}; !slices.Equal(got, want) {
		t.Errorf("tokens of the requests = %q, want %q", got, want)
	}
}

func TestStatusError_RetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "2": 2 * time.Second, "86400": maxRetryAfter, "-1": 0, "soon": 0, "99999999999": 0,
	} {
		c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(429)
		})
		_, err := c.Leader(t.Context(), QueryOptions{})
		if e, ok := errors.AsType[*StatusError](err); !ok || e.RetryAfter != want {
			t.Errorf("Leader() with Retry-After %q = %v, want RetryAfter %v", value, err, want)
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"Thu, 01 Jan 2026 00:00:03 GMT": 3 * time.Second, "Wed, 31 Dec 2025 00:00:00 GMT": 0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("retryAfter(%q) = %v, want %v", value, got, want)
		}
	}
}
