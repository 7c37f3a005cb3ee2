// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestRevokedServer_Clients checks that a sync daemon and a command close their
// open connections to a server whose certificate is revoked. The daemon receives
// the list from the servers, the command by its file.
func TestRevokedServer_Clients(t *testing.T) {
	testutil.Cluster(t)
	l := newLoopback(t)
	l.log = "info"
	dc1 := l.start("dc1", "")
	l.federated(dc1)
	h := &holder{t: t, l: l, name: "client", ca: l.ca}
	address := strings.Replace(dc1.server.HTTP, "http", "https", 1)
	start := func(f tlsutil.Files, args ...string) *logFile {
		t.Helper()
		path := filepath.Join(t.TempDir(), "log")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd := exec.Command(l.bin, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), out, out
		cmd.Env = append(os.Environ(), "WANFED_HTTP_ADDR="+address, "WANFED_CA_FILE="+f.CA, "WANFED_CERT_FILE="+f.Cert,
			"WANFED_KEY_FILE="+f.Key)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return &logFile{path: path}
	}
	operator := h.files(tlsutil.RoleOperator, "dc1")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), l.bin, args...)
		cmd.Env = append(os.Environ(), "WANFED_HTTP_ADDR="+address, "WANFED_CA_FILE="+operator.CA,
			"WANFED_CERT_FILE="+operator.Cert, "WANFED_KEY_FILE="+operator.Key)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("wanfed %s = %v: %s", strings.Join(args, " "), err, out)
		}
	}

	sync, config := h.files(tlsutil.RoleSync, "dc1"), filepath.Join(t.TempDir(), "sync.hcl")
	text := fmt.Sprintf("port = 0\nconsul {\n  address = %q\n}\nwanfed {\n  ca = %q\n  cert = %q\n  key = %q\n}\n"+
		"task {\n  name = \"none\"\n  driver = \"exec\"\n  condition \"services\" {\n    names = [\"none\"]\n  }\n"+
		"  exec {\n    command = [\"true\"]\n  }\n}\n", address, sync.CA, sync.Cert, sync.Key)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := start(sync, "sync", "--config-file", config)
	daemon.await(t, `: api `)
	watching := h.files(tlsutil.RoleOperator, "dc1")
	run("kv", "put", "seen", "1")
	command := start(watching, "resource", "watch", "kv/v1/Entry")
	command.await(t, "seen")

	dir := t.TempDir()
	ca, key, list := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"), filepath.Join(dir, "ca.crl")
	if err := l.ca.Pair.Save(ca, key); err != nil {
		t.Fatal(err)
	}
	run("tls", "revoke", "--ca-file", ca, "--ca-key-file", key, "--name", "srv1.server.dc1.wanfed",
		"--before", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := os.WriteFile(tlsutil.RevocationFile(watching.CA), b, 0o600); err != nil {
		t.Fatal(err)
	}
	command.await(t, "certificate of srv1.server.dc1.wanfed is revoked")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the connection of the command ended after %v, want at most 5s", took)
	}
	began = time.Now()
	run("tls", "publish", list)
	daemon.await(t, `msg="connections closed: certificate of the peer is no longer valid" peer=srv1.server.dc1`)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the connections of the daemon ended after %v, want at most 5s", took)
	}
	daemon.await(t, "certificate of srv1.server.dc1.wanfed is revoked")
}
