// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

func get(ctx context.Context, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, Path+path, nil)
	Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	return w
}

func TestHandler_Responses(t *testing.T) {
	const compressed = "\x1f\x8b" // a profile for go tool pprof
	for _, tt := range []struct {
		method, path string
		status       int
		prefix       string
	}{
		{path: "", status: 200, prefix: "heap"},
		{path: "heap", status: 200, prefix: compressed},
		{path: "heap?debug=1", status: 200, prefix: "heap profile:"},
		{path: "goroutine?debug=2", status: 200, prefix: "goroutine "},
		{path: "allocs", status: 200, prefix: compressed},
		{path: "profile?seconds=1", status: 200, prefix: compressed},
		{path: "mutex?seconds=1", status: 200, prefix: compressed},
		{path: "block?seconds=1", status: 200, prefix: compressed},
		{path: "trace?seconds=1", status: 200, prefix: "go 1."},
		{path: "heap?debug=3", status: 400, prefix: "debug="},
		{path: "profile?seconds=0", status: 400, prefix: `seconds="0" is not a number from 1 to 60`},
		{path: "profile?seconds=61", status: 400, prefix: "seconds="},
		{path: "trace?seconds=11", status: 400, prefix: `seconds="11" is not a number from 1 to 10`},
		{path: "cmdline", status: 404},
		{path: "symbol", status: 404},
		{method: http.MethodPost, path: "profile", status: 405},
	} {
		w := get(t.Context(), tt.method, tt.path)
		if w.Code != tt.status || !strings.HasPrefix(w.Body.String(), tt.prefix) {
			t.Errorf("%s = %d %.60q, want %d %q", tt.path, w.Code, w.Body, tt.status, tt.prefix)
		}
	}
}

// A process records one profile at a time. A client that disconnects ends its
// profile.
func TestHandler_OneAtATime(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ctx, disconnect := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); get(ctx, "", "mutex?seconds=60") }()
		synctest.Wait() // the first one records
		for _, path := range []string{"profile", "mutex", "block", "trace"} {
			if w := get(t.Context(), "", path); w.Code != http.StatusTooManyRequests {
				t.Errorf("%s during another profile = %d, want %d", path, w.Code, http.StatusTooManyRequests)
			}
		}
		if w := get(t.Context(), "", "heap"); w.Code != http.StatusOK {
			t.Errorf("heap during another profile = %d, want %d", w.Code, http.StatusOK)
		}
		start := time.Now()
		disconnect()
		<-done
		if took := time.Since(start); took > 0 {
			t.Errorf("the profile ended %v after its client, want 0", took)
		}
		if w := get(t.Context(), "", "block?seconds=1"); w.Code != http.StatusOK || !bytes.HasPrefix(w.Body.Bytes(), []byte{0x1f}) {
			t.Errorf("block after the profile = %d %.20q, want a profile", w.Code, w.Body)
		}
	})
}

func TestAuthorize(t *testing.T) {
	own := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"}
	for _, tt := range []struct {
		peer tlsutil.Peer
		ok   bool
	}{
		{own, true},
		{tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}, true},
		{tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc2", Node: "joe"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv2"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleUser, DC: "dc1", Node: "joe"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc1", Node: "srv1"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleAnonymous, DC: "dc1", Node: "srv1"}, false},
		{tlsutil.Peer{}, false},
	} {
		if err := Authorize(tt.peer, own); (err == nil) != tt.ok {
			t.Errorf("Authorize(%v) = %v, want success: %t", tt.peer, err, tt.ok)
		}
	}
}
