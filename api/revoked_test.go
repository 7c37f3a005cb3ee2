// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestClient_RevokedServer checks that an open request ends when the certificate
// of the server is revoked.
func TestClient_RevokedServer(t *testing.T) {
	ca := tlstest.NewCA(t)
	server, client := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1"), ca.Identity(t, tlsutil.RoleSync, "s1", "dc1")
	open := make(chan string, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		open <- r.Proto
		<-r.Context().Done()
	}))
	srv.TLS, srv.EnableHTTP2 = server.ServerConfig("h2"), true
	srv.StartTLS()
	defer srv.Close()
	c, err := NewClient(ClientConfig{Addr: srv.URL, Identity: client, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- client.Run(ctx) }()
	defer func() { cancel(); <-watched }()
	failed := make(chan error, 1)
	go func() {
		_, err := c.Status(t.Context(), QueryOptions{})
		failed <- err
	}()
	if proto := <-open; proto != "HTTP/2.0" {
		t.Errorf("request by %s, want HTTP/2.0", proto)
	}
	l, err := tlsutil.Revoke(tlsutil.RevokeRequest{
		CA: ca.Pair, Names: []string{"srv1.server.dc1.wanfed"}, Before: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := client.AddRevocations(l.PEM()); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("Status() = %v, want the revocation", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the request ended after %v, want at most 5s", took)
	}
	if _, err := c.Status(t.Context(), QueryOptions{}); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("Status() over a new connection = %v, want the revocation", err)
	}
}
