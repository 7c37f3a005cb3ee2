// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestHTTPSocket proves that a server with http_plain = false serves callers
// without a certificate only at its Unix socket, whose file has the mode and the
// group of the settings, and that they may not write there.
func TestHTTPSocket(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	socket, log := filepath.Join(l.dir, "http.sock"), filepath.Join(l.dir, "audit.log")
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	s, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, "srv1"), DC: "dc1", Node: "srv1",
		TLS: l.files(tlsutil.RoleServer, "srv1", "dc1"), Port: unusedPort(t), LogLevel: "info",
		Args: []string{"--http-plain=false", "--http-socket", socket, "--http-socket-mode", "0620", "--audit-log", log},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.keep(s.Process)
	if !strings.HasPrefix(s.HTTP, "https://") {
		t.Errorf("URL of the HTTP API = %s, want https", s.HTTP)
	}
	resp, err := http.Get(strings.Replace(s.HTTP, "https:", "http:", 1) + "/v1/status/leader")
	if err == nil { // the response of a TLS port to plain HTTP
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("request without TLS = %s, want 400 or no response", resp.Status)
		}
	}
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o620 {
		t.Errorf("mode of the socket = %v, %v, want 0620", st.Mode(), err)
	}
	testutil.Await(t, waitLimit, "a list by the socket", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, l.bin, "policy", "list", "--output", "json", "--http-addr", "unix://"+socket).CombinedOutput()
		if err == nil && strings.TrimSpace(string(out)) != "[]" {
			t.Errorf("wanfed policy list = %s, want no policy", out)
		}
		return err
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://localhost/v1/kv/a", strings.NewReader("1"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err = client.Do(req); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if out, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(out), "a write needs an operator's certificate") {
		t.Errorf("write by the socket = %s, %v, want a refusal", out, err)
	}
	testutil.Await(t, waitLimit, "line of the refusal", func(context.Context) error {
		b, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(b), `"address":"unix","method":"PUT /v1/kv/a","outcome":"denied"`) {
			err = os.ErrNotExist
		}
		return err
	})
}
