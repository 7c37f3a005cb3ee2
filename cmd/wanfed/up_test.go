// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// upDir returns a directory with the files of a server and a gateway of dc1.
func upDir(t *testing.T) string {
	t.Helper()
	dir, ca := t.TempDir(), tlstest.NewCA(t)
	base := func(node string, role tlsutil.Role) string {
		f := ca.Files(t, role, node, "dc1")
		return fmt.Sprintf("dc = \"dc1\"\nnode = %q\ndata_dir = %q\nca_file = %q\ncert_file = %q\nkey_file = %q\n",
			node, filepath.Join(dir, "data", node), f.CA, f.Cert, f.Key)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	ln.Close()
	writeFile(t, filepath.Join(dir, "server.hcl"), base("srv1", tlsutil.RoleServer)+
		"bind = \"127.0.0.1\"\nhttp_addr = \"127.0.0.1:0\"\nport = "+port+"\n")
	writeFile(t, filepath.Join(dir, "gateway.hcl"), base("gw1", tlsutil.RoleGateway)+
		"servers = [\"127.0.0.1:"+port+"\"]\nlan = \"127.0.0.1:0\"\nwan = \"127.0.0.1:0\"\n")
	return dir
}

// A hot restart would end the server. At a stop, the server must not end before
// it has ended the registration of the gateway.
func TestUp_Signals(t *testing.T) {
	testutil.Cluster(t)
	log := filepath.Join(t.TempDir(), "log")
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name: "up", Command: []string{wanfedPath(t), "up", "--dir", upDir(t)}, LogPath: log,
		Ready: func(line string) bool { return strings.HasPrefix(line, "wanfed ") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	logged := func(text string) bool {
		all, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(all), text)
	}
	testutil.Eventually(t, processTimeout, func() bool { return logged("msg=registered") }, "the gateway is registered")
	if err := p.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, processTimeout, func() bool { return logged("hot restart refused") }, "the hot restart is refused")
	stopProcess(t, p)
	if !logged("msg=deregistered") || logged("cannot deregister") {
		t.Errorf("log = %s, want deregistered", strings.Join(p.Tail(10), "\n"))
	}
}

// With an invalid file, neither part starts.
func TestUp_InvalidFile(t *testing.T) {
	dir := upDir(t)
	writeFile(t, filepath.Join(dir, "gateway.hcl"), "no_such_setting = 1\n")
	_, code, err := call(t, "up", "--dir", dir)
	if code != exitUsage || err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("wanfed up = %d, %v, want %d and the setting", code, err, exitUsage)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); !os.IsNotExist(err) {
		t.Errorf("Stat(data) = %v, want %v", err, fs.ErrNotExist)
	}
}
