// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// restart kills the server of a site. It starts the server again with the same
// address and data directory, and with other flags.
func (l *loopback) restart(s *site, primary *site, args ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	s.server.Kill()
	_, port, err := net.SplitHostPort(s.server.Addr)
	if err != nil {
		l.t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		l.t.Fatal(err)
	}
	cfg := subprocess.ServerConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, s.dc+"-srv1"), DC: s.dc, Node: "srv1",
		TLS:       l.ca.Files(l.t, tlsutil.RoleServer, "srv1", s.dc),
		PrimaryDC: primary.dc, Port: n, LogLevel: "debug", Args: args,
	}
	if s != primary {
		cfg.PrimaryGateways = []string{primary.gateway.WAN}
	}
	if s.server, err = subprocess.StartServer(ctx, cfg); err != nil {
		l.t.Fatal(err)
	}
	l.keep(s.server.Process)
}

// keyring runs "wanfed keyring" as an operator, with the given standard input,
// and returns its output.
func (l *loopback) keyring(s *site, stdin string, args ...string) string {
	l.t.Helper()
	op := l.ca.Files(l.t, tlsutil.RoleOperator, "cli", s.dc)
	cmd := exec.Command(l.bin, append(append([]string{"keyring"}, args...),
		"--datacenter", s.dc, "--server", s.server.Addr, "--ca-file", op.CA, "--cert-file", op.Cert, "--key-file",
		op.Key)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.t.Fatalf("wanfed keyring %s = %v, want nil: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestGossipEncryption_WithoutOutage follows the steps of docs/gossip-keys.md
// in a running federation. It turns encryption of gossip on, one server after
// the other, replaces the key, and turns encryption off again. The two
// datacenters stay federated after each step.
func TestGossipEncryption_WithoutOutage(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)
	keys := []string{filepath.Join(l.dir, "old.key"), filepath.Join(l.dir, "new.key")}
	secrets := []string{l.generateKey(keys[0]), l.generateKey(keys[1])}
	rounds := [][]string{
		{"--encrypt-file", keys[0], "--encrypt-verify-incoming=false", "--encrypt-verify-outgoing=false"},
		{"--encrypt-file", keys[0], "--encrypt-verify-incoming=false"},
		{"--encrypt-file", keys[0]},
	}
	round := func(args []string, clean bool) {
		t.Helper()
		for _, s := range []*site{dc2, dc1} {
			s.server.Kill()
			if clean {
				if err := os.Remove(filepath.Join(l.dir, s.dc+"-srv1", "data", "keyring.json")); err != nil {
					t.Fatal(err)
				}
			}
			l.restart(s, dc1, args...)
			l.federated(dc1, dc2)
			for _, s := range []*site{dc1, dc2} {
				if lines, err := logOf(s.server.Process).lines(`no gossip with`); err != nil || len(lines) > 0 {
					t.Errorf("%s with %v logs %q, %v, want no line", s.dc, args, lines, err)
				}
			}
		}
	}
	for _, args := range rounds {
		round(args, false)
	}
	for _, step := range [][]string{{"install", secrets[1]}, {"use", secrets[1]}, {"remove", secrets[0]}} {
		if out := l.keyring(dc1, step[1], step[0], "-"); !strings.Contains(out, ": 2 of 2 servers have version") {
			t.Errorf("wanfed keyring %s = %s, want 2 of 2 servers with the version", step[0], out)
		}
		l.federated(dc1, dc2)
	}
	keyCount, version := metric(t, dc2.server.HTTP, "wanfed_keyring_keys"),
		metric(t, dc2.server.HTTP, "wanfed_keyring_version")
	if keyCount != 1 || version != 3 {
		t.Errorf("keyring of dc2 has %v keys and version %v, want 1 and 3", keyCount, version)
	}
	round(rounds[1], false)
	round(rounds[0], false)
	round(nil, true)
	if out := l.keyring(dc2, "", "list"); strings.Count(out, " 0 ") < 2 {
		t.Errorf("wanfed keyring list without encryption = %s, want two servers without keys", out)
	}
	for _, s := range []*site{dc1, dc2} {
		checkLogWithout(t, s, secrets)
	}
}

// generateKey creates a key file with "wanfed keyring generate" and returns the
// key.
func (l *loopback) generateKey(path string) string {
	l.t.Helper()
	if out, err := exec.Command(l.bin, "keyring", "generate", "--file", path).CombinedOutput(); err != nil {
		l.t.Fatalf("wanfed keyring generate = %v, want nil: %s", err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

// checkLogWithout fails the test if the log of the server of s contains a
// secret.
func checkLogWithout(t *testing.T, s *site, secrets []string) {
	t.Helper()
	b, err := os.ReadFile(s.server.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		if strings.Contains(string(b), strings.TrimSpace(secret)) {
			t.Errorf("the log of the server of %s contains a key", s.dc)
		}
	}
}
