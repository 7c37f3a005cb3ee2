// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// The agent requires TLS with a client certificate, and a token.
func TestConsulAgent_TLSAndToken(t *testing.T) {
	ca := tlstest.NewCAFrom(t, tlsutil.CARequest{Domain: "consul"})
	f := ca.Files(t, tlsutil.RoleServer, "srv1", "dc1")
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Pair.Cert)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Consul-Token") != "secret" {
			http.Error(w, "ACL not found", http.StatusForbidden)
			return
		}
		w.Write([]byte(`["dc1"]`))
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	client := ca.Files(t, tlsutil.RoleClient, "", "dc1")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONSUL_CACERT", client.CA)
	t.Setenv("CONSUL_CLIENT_CERT", client.Cert)
	t.Setenv("CONSUL_CLIENT_KEY", client.Key)
	t.Setenv("CONSUL_TLS_SERVER_NAME", "server.dc1.consul")
	t.Setenv("CONSUL_HTTP_TOKEN_FILE", token)
	for name, tt := range map[string]struct{ key, value, want string }{
		"all":                 {},
		"wrong token":         {"CONSUL_HTTP_TOKEN", "other", "403"},
		"wrong server name":   {"CONSUL_TLS_SERVER_NAME", "other.consul", "not other.consul"},
		"no client cert":      {"CONSUL_CLIENT_CERT", "", "one is set without the other"},
		"absent client cert":  {"CONSUL_CLIENT_CERT", "/absent", "CONSUL_CLIENT_CERT /absent"},
		"CA without a PEM":    {"CONSUL_CACERT", token, "CONSUL_CACERT: " + token},
		"token file is empty": {"CONSUL_HTTP_TOKEN_FILE", os.DevNull, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CONSUL_HTTP_ADDR", srv.URL)
			if tt.key != "" {
				t.Setenv(tt.key, tt.value)
			}
			err := readDatacenters(t, Settings{Consul: consulFromEnv})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Datacenters() = %v, want %q", err, tt.want)
			}
		})
	}
}

// readDatacenters calls the Consul agent of the settings.
func readDatacenters(t testing.TB, s Settings) error {
	t.Helper()
	agent, err := s.consulAgent()
	if err != nil {
		return err
	}
	defer agent.Close()
	_, err = agent.Datacenters(t.Context(), api.QueryOptions{})
	return err
}

func TestDomain(t *testing.T) {
	for _, tt := range []struct{ consul, domain, want string }{
		{"", "", "wanfed"}, {"env", "", "consul"}, {"", "example", "example"}, {"env", "example", "example"},
	} {
		if got := (Settings{Consul: tt.consul, Domain: tt.domain}).domain(); got != tt.want {
			t.Errorf("domain() with consul %q and domain %q = %s, want %s", tt.consul, tt.domain, got, tt.want)
		}
	}
}
