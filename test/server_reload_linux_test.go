// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestServer_SIGHUP sends SIGHUP to a server. The server applies settings that
// can change while it runs, names those that need a restart, and keeps the old
// settings if the file is invalid. It never ends.
func TestServer_SIGHUP(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	file := filepath.Join(l.dir, "server.hcl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`log_level = "info"`)
	s := l.newDiskServer(t, "srv1", func(c *subprocess.ServerConfig) {
		c.Args, c.LogLevel = []string{"--config-file", file}, ""
	})
	s.start()
	s.awaitPut("a leader")
	log := logOf(s.server.Process)
	reload := func(want string) {
		t.Helper()
		log.mark(t)
		if err := syscall.Kill(s.server.Process.Pid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		log.await(t, want)
	}

	reload(`level=INFO msg="settings reloaded" changed=""`)
	write("log_level = \"debug\"\ndead_server_after = \"1h\"\nmesh_gateway_mode = \"remote\"")
	reload(`level=WARN msg="settings need a restart" settings=mesh_gateway_mode`)
	log.await(t, `level=INFO msg="settings reloaded" changed="dead_server_after, log_level"`)
	write("log_level = \"loud\"")
	reload(`level=ERROR msg="cannot reload the settings" err=".*loud`)

	write("")
	issued := l.ca.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"})
	tlstest.Write(t, s.config.TLS, l.ca.Pair.Cert, issued)
	reload(`level=INFO msg="settings reloaded" changed="dead_server_after, log_level"`)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	c, err := dial(ctx, s.server.Addr, l.client(t, tlsutil.RoleOperator, "op", "dc1", "server.dc1.wanfed", "h2"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	block, _ := pem.Decode(issued.Cert)
	if got := c.ConnectionState().PeerCertificates[0].Raw; !bytes.Equal(got, block.Bytes) {
		t.Error("the server presents the old certificate, want the one that was issued before the reload")
	}
	if status, answer, _ := s.request(http.MethodPut, "after", []byte("x")); status != http.StatusOK {
		t.Errorf("write after four reloads = %d %s, want 200", status, answer)
	}
}
