// SPDX-License-Identifier: MPL-2.0

package monitor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// start runs a Server until the end of the test and returns its URL.
func start(t testing.TB, cfg monitor.Config) string {
	t.Helper()
	s, err := monitor.Listen(cfg, func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return s.URL()
}

// get returns the status and the body of a response.
func get(t testing.TB, client *http.Client, method, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServer_Responses(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := tlstest.NewCA(t)
	id := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(monitor.Build(id))
	var notReady error
	url := start(t, monitor.Config{
		Addr: "https://127.0.0.1:0", TokenFile: token, Identity: id, Metrics: metrics,
		Ready: func() error { return notReady },
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Pair.Cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "srv1.server.dc1.wanfed"}}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	for _, c := range []struct {
		name, method, path, token string
		ready                     error
		status                    int
		want                      string
	}{
		{name: "health", path: "/healthz", status: 200, want: "ok\n"},
		{name: "ready", path: "/readyz", status: 200, want: "ok\n"},
		{name: "not ready", path: "/readyz", ready: errors.New("no leader"), status: 503, want: "no leader\n"},
		{name: "metrics", path: "/metrics", token: "s3cret", status: 200, want: "wanfed_certificate_expiry_timestamp_seconds"},
		{name: "no token", path: "/metrics", status: 401, want: "metrics require the header Authorization"},
		{name: "another token", path: "/metrics", token: "s3cret2", status: 401, want: "metrics require"},
		{name: "another path", path: "/v1/kv/a", status: 404},
		{name: "a write", method: http.MethodPost, path: "/healthz", status: 405},
	} {
		t.Run(c.name, func(t *testing.T) {
			notReady = c.ready
			status, body := get(t, client, c.method, url+c.path, c.token)
			if status != c.status || !strings.Contains(body, c.want) {
				t.Errorf("response = %d %q, want %d with %q", status, body, c.status, c.want)
			}
		})
	}
	problems, err := testutil.GatherAndLint(metrics)
	if err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
	}
}

func TestListen_TokenFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ name, path, want string }{
		{"missing", filepath.Join(dir, "missing"), "does not exist"},
		{"readable by others", file("open", "a", 0o644), "chmod 0600"},
		{"empty", file("empty", "\n", 0o600), "is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := monitor.Listen(monitor.Config{Addr: "127.0.0.1:0", TokenFile: c.path}, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Listen() = %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ addr, token, want string }{
		{"", "", ""},
		{"0.0.0.0:9102", "file", ""},
		{"https://[::]:9102", "", ""},
		{"", "file", "no effect without monitor_addr"},
		{"ftp://a:1", "", "neither http nor https"},
		{"a", "", "has no port"},
		{"a:x", "", "port is not a number"},
	} {
		err := monitor.Check(c.addr, c.token)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check(%q, %q) = %v, want %q", c.addr, c.token, err, c.want)
		}
	}
}
