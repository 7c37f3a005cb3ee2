// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// echoing is a handler whose /api/ says what reached it.
func echoing(t testing.TB, src Cluster) http.Handler {
	t.Helper()
	h, err := New(Config{
		DC: "dc1", Cluster: src, Logger: slog.New(slog.DiscardHandler),
		Peer: func(r *http.Request) (tlsutil.Peer, error) {
			who := r.Header.Get("X-Test-Peer") // stands for the certificate
			if who == "nobody" {
				return tlsutil.Peer{}, errors.New("certificate names nobody")
			}
			role, dc, _ := strings.Cut(who, "/")
			return tlsutil.Peer{Role: tlsutil.Role(role), DC: dc, Node: "n"}, nil
		},
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, _ := tlsutil.PeerFromContext(r.Context())
			b, _ := io.ReadAll(r.Body)
			io.WriteString(w, r.Method+" "+p.String()+" "+string(b))
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestWhoMayWrite(t *testing.T) {
	h := echoing(t, newFakeSource())
	for _, tt := range []struct {
		method, peer string
		tls          bool
		status       int
		body         string
	}{
		{"GET", "client/dc1", false, 200, "GET client/dc1/n x"},
		{"HEAD", "client/dc1", false, 200, ""},
		{"PUT", "cli/dc2", true, 200, "PUT cli/dc2/n x"},
		{"DELETE", "server/dc1", true, 200, "DELETE server/dc1/n x"},
		{"PUT", "client/dc1", false, 403, "a write needs an operator's certificate: make one with wanfed tls cert create --cli --dc dc1, and use https://127.0.0.1:8500"},
		{"POST", "client/dc1", true, 403, "client/dc1/n may not write: make an operator's certificate with: wanfed tls cert create --cli --dc dc1"},
		{"PUT", "gateway/dc1", true, 403, "gateway/dc1/n may not write: make an operator's certificate with: wanfed tls cert create --cli --dc dc1"},
		{"GET", "nobody", true, 403, "certificate names nobody"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), tt.method, "http://127.0.0.1:8500/api/x", strings.NewReader("x"))
		r.Header.Set("X-Test-Peer", tt.peer)
		if tt.tls {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.status || tt.method != "HEAD" && w.Body.String() != tt.body {
			t.Errorf("%s by %s: %d %q, want %d %q", tt.method, tt.peer, w.Code, w.Body, tt.status, tt.body)
		}
	}
}

// What another datacenter hands on is its caller's: who serves it does not look for a certificate.
func TestServeKeepsThePeer(t *testing.T) {
	h := echoing(t, newFakeSource())
	ctx := tlsutil.WithPeer(context.Background(), tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc2", Node: "joe"})
	for method, status := range map[string]int32{"PUT": 405, "PATCH": 400, "": 200} { // 405: it was let in, and there is no such write
		resp, err := Serve(ctx, h, &pb.QueryRequest{Path: "/v1/status/leader", Method: method, Body: []byte("x")})
		if err != nil || resp.Status != status {
			t.Errorf("%q: %d %q, %v, want %d", method, resp.GetStatus(), resp.GetBody(), err, status)
		}
	}
}
