// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

func TestServerReady(t *testing.T) {
	want := ServerReady{DC: "dc1", Node: "srv1", Addr: "127.0.0.1:41234", HTTP: "http://127.0.0.1:41235"}
	line := "wanfed server dc1/srv1: server port 127.0.0.1:41234, http http://127.0.0.1:41235"
	if got := want.String(); got != line {
		t.Errorf("String() = %q, want %q", got, line)
	}
	if got, ok := ParseServerReady(line); !ok || got != want {
		t.Errorf("ParseServerReady(%q) = %+v, %v, want %+v", line, got, ok, want)
	}
	v6 := ServerReady{DC: "dc-2", Node: "n", Addr: "[::1]:8300", HTTP: "https://[::1]:8500"}
	if got, ok := ParseServerReady(v6.String()); !ok || got != v6 {
		t.Errorf("ParseServerReady(%q) = %+v, %v, want %+v, true", v6, got, ok, v6)
	}
	for _, s := range []string{"", "wanfed", "wanfed server dc1: server port x", line + "\nmore", "x" + line} {
		if got, ok := ParseServerReady(s); ok {
			t.Errorf("ParseServerReady(%q) = %+v, want none", s, got)
		}
	}
}

func TestServerArgs(t *testing.T) {
	c := ServerConfig{
		Dir: "d", DC: "dc2", Node: "srv1", TLS: tlsutil.Files{CA: "ca", Cert: "cert", Key: "key"},
		PrimaryDC: "dc1", PrimaryGateways: []string{"a:1", "b:2"},
		BootstrapExpect: 3, RetryJoin: []string{"c:3"}, LogLevel: "debug", Args: []string{"--domain", "consul"},
	}
	want := "server --dc dc2 --node srv1 --data-dir " + filepath.Join("d", "data") +
		" --ca-file ca --cert-file cert --key-file key --bind 127.0.0.1 --port -1 --http-addr 127.0.0.1:0" +
		" --primary-datacenter dc1 --primary-gateway a:1 --primary-gateway b:2 --bootstrap-expect 3 --retry-join c:3" +
		" --log-level debug --domain consul"
	if got := strings.Join(c.args(), " "); got != want {
		t.Errorf("args() = %s\nwant %s", got, want)
	}
}

func TestPKI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	p, err := NewPKI(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway} {
		f, err := p.Issue(role, "dc2", "n1")
		if err != nil {
			t.Fatal(err)
		}
		id, err := tlsutil.Load(f, tlsutil.DefaultDomain, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := id.Peer(), (tlsutil.Peer{Role: role, DC: "dc2", Node: "n1"}); got != want {
			t.Errorf("Peer() = %v, want %v", got, want)
		}
	}
	if _, err := p.Issue(tlsutil.RoleServer, "DC2", "n1"); err == nil {
		t.Error("Issue() for datacenter DC2 = nil, want an error")
	}
}

func TestStart_SettingsNotInherited(t *testing.T) {
	t.Setenv("WANFED_DC", "dc9")
	p, err := Start(t.Context(), childConfig(t.TempDir(), "steady"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if slices.Contains(p.cmd.Env, "WANFED_DC=dc9") || !slices.Contains(p.cmd.Env, childEnv+"=steady") {
		t.Errorf("environment of the child = %q, want %s=steady and no WANFED_DC", p.cmd.Env, childEnv)
	}
	if got := os.Getenv("WANFED_DC"); got != "dc9" {
		t.Errorf("WANFED_DC of the parent = %q, want dc9", got)
	}
}
