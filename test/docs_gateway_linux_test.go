// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// newMachine returns a reader for a machine that has the addresses of a page, in
// a namespace of its own. The machine has an empty /var/lib, and a copy-on-write
// /etc. The program is the first in its PATH.
func newMachine(t *testing.T, addrs ...string) (r *reader, ns string) {
	t.Helper()
	testutil.Cluster(t)
	return newMachineIn(t, lab.NewNetwork(t), "machine", addrs...)
}

// newMachineIn is newMachine in a network, in which the machine has a name.
func newMachineIn(t *testing.T, network *lab.Network, name string, addrs ...string) (r *reader, ns string) {
	t.Helper()
	testutil.Cluster(t)
	for _, tool := range []string{"nsenter", "curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the %s command", tool)
		}
	}
	ns = network.Namespace(name)
	for _, addr := range addrs {
		network.Address(ns, "lo", addr+"/32")
	}
	const mount = `mount -t tmpfs tmpfs /var/lib && cd /var/lib && mkdir upper work &&
		mount -t overlay overlay -o lowerdir=/etc,upperdir=upper,workdir=work /etc &&
		mkdir /etc/wanfed && echo ready && exec sleep infinity`
	ctx, cancel := context.WithTimeout(t.Context(), promptly)
	defer cancel()
	dir := t.TempDir()
	holder, err := subprocess.Start(ctx, subprocess.Config{
		Name: "machine", Command: []string{"ip", "netns", "exec", ns, "sh", "-c", mount},
		LogPath: filepath.Join(dir, "machine.log"), Ready: func(line string) bool { return line == "ready" },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(holder.Kill)
	bin := filepath.Dir(lab.Binary(t))
	r = &reader{
		T: t, dir: dir, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")),
		machine: []string{"nsenter", "--target", strconv.Itoa(holder.Pid()), "--net", "--mount", "--wd=" + dir},
	}
	return r, ns
}

// TestDocs_Envoy executes docs/envoy.md and docs/gateway-configuration.md on one
// machine, which already has a CA and a server.
func TestDocs_Envoy(t *testing.T) {
	t.Parallel()
	envoy := testutil.Envoy(t)
	r, _ := newMachine(t, "10.0.0.5", "198.51.100.1")
	if err := os.Symlink(envoy, filepath.Join(r.dir, "envoy")); err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "PATH="+r.dir+":"+filepath.Dir(lab.Binary(t))+":"+os.Getenv("PATH"))
	r.run("wanfed tls ca create", "...")
	r.run("wanfed tls cert create --server --datacenter dc1 --node srv1", "...")
	r.run("wanfed server --dc dc1 --node srv1 --data-dir /var/lib/wanfed/server --advertise 10.0.0.5 "+
		"--ca-file wanfed-agent-ca.pem --cert-file dc1-server-wanfed-0.pem --key-file dc1-server-wanfed-0-key.pem", "...")
	before := r.commands
	r.read("../docs/envoy.md")
	r.read("../docs/gateway-configuration.md")
	if n := r.commands - before; n != 6 || r.untested != 0 {
		t.Errorf("pages have %d tested commands and %d others, want 6 and 0", n, r.untested)
	}
}

// TestDocs_Consul executes docs/consul.md on a machine with a fake Consul agent
// (package consultest). The agent of dc1 has a server at the same address, and a
// gateway of dc2, behind which a TLS server has the certificate of a server of
// dc2.
func TestDocs_Consul(t *testing.T) {
	t.Parallel()
	r, ns := newMachine(t, "10.0.0.5", "198.51.100.1", "203.0.113.2")
	const token, tokenFile, other = "5e1cf4f1-0000", "/etc/wanfed/consul-token", "203.0.113.2:8443"
	agent := consultest.NewAgent(t, "dc1")
	agent.Set(map[string]string{"srv1": "10.0.0.5:8300"},
		map[string][]consultest.Gateway{"dc2": {{Node: "gw2", WAN: other}}})
	agent.SetToken(token)
	serveIn(t, ns, "127.0.0.1:8500", nil, agent)
	files := tlstest.NewCAFrom(t, tlsutil.CARequest{Domain: "consul"}).Files(t, tlsutil.RoleServer, "srv1", "dc2")
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	serveIn(t, ns, other, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert},
		http.NotFoundHandler())
	r.run(fmt.Sprintf("install -m 0600 <(echo %s) %s", token, tokenFile), "")
	r.commands = 0
	r.read("../docs/consul.md")
	if r.commands != 7 || r.untested != 4 {
		t.Errorf("page has %d tested commands and %d others, want 7 and 4", r.commands, r.untested)
	}
	if body, status := agent.Registration("gw1"); body["Address"] != "10.0.0.5" || status != "passing" {
		t.Errorf("Registration() = %v, %s; want that of the page, passing", body, status)
	}
}

// serveIn serves HTTP inside a namespace until the end of the test, with TLS if
// cfg is not nil.
func serveIn(t *testing.T, ns, addr string, cfg *tls.Config, h http.Handler) {
	t.Helper()
	ln, err := lab.ListenIn(ns, addr)
	if err != nil {
		t.Fatal(err)
	}
	if cfg != nil {
		ln = tls.NewListener(ln, cfg)
	}
	srv := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(quiet.Handler(), slog.LevelError)}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close(); <-served })
}
