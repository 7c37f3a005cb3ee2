// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// envoySettings returns valid settings with a certificate.
func envoySettings(t *testing.T) EnvoySettings {
	files := tlstest.NewCA(t).Files(t, tlsutil.RoleGateway, "gw1", "dc1")
	s := DefaultEnvoySettings()
	s.DC, s.Node, s.DataDir = "dc1", "gw1", t.TempDir()
	s.CAFile, s.CertFile, s.KeyFile = files.CA, files.Cert, files.Key
	s.Servers, s.LAN, s.WAN = []string{"127.0.0.1:1", "srv2.example:8300"}, "127.0.0.1:8444", "127.0.0.1:8443"
	return s
}

func TestEnvoySettings_Check(t *testing.T) {
	s := envoySettings(t)
	if err := s.Check(); err != nil {
		t.Errorf("Check() = %v, want nil", err)
	}
	s.LAN, s.AdminAddr, s.MaxConns, s.AccessLog = "host:1", "", 0, 101
	err := s.Check()
	for _, want := range []string{`lan "host:1" is not ip:port`, "admin_addr is required", "max_conns 0",
		"access_log_percent 101"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want an error with %s", err, want)
		}
	}
}

// writeBootstrap writes the bootstrap to a file and returns its path.
func writeBootstrap(t *testing.T, s EnvoySettings) (path string) {
	t.Helper()
	b, err := s.Bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBootstrap_EnvoyAccepts(t *testing.T) {
	envoy := testutil.Envoy(t)
	s := envoySettings(t)
	s.WANBind = "127.0.0.1:9443"
	out, err := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "-c", writeBootstrap(t, s)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "OK") {
		t.Errorf("envoy --mode validate = %v, want nil and OK; output:\n%s", err, out)
	}
}

// RunEnvoy ends with an error if Envoy cannot start or ends.
func TestRunEnvoy_EnvoyFails(t *testing.T) {
	s := envoySettings(t)
	script := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		script:   "envoy ended: exit status 3",
		"absent": `install Envoy 1.40, or name its binary with --envoy`,
	} {
		s.Envoy = path
		var out bytes.Buffer
		err := RunEnvoy(t.Context(), EnvoyConfig{Settings: s, Stdout: &out, Stderr: t.Output()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("RunEnvoy() with %s = %v, want an error with %q", path, err, want)
		}
		if out.Len() > 0 {
			t.Errorf("stdout with %s = %q, want none", path, out.String())
		}
	}
}
