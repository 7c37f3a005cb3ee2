// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// startServerProcess runs the server dc1/node as a process, with its data in dir/data, until the test ends.
func startServerProcess(t testing.TB, dir, node string, files tlsutil.Files, cfg subprocess.ServerConfig) *subprocess.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), refuseLimit)
	defer cancel()
	cfg.Program, cfg.Dir, cfg.DC, cfg.Node, cfg.TLS = []string{wanfedPath(t)}, dir, "dc1", node, files
	s, err := subprocess.StartServer(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func wanfedPath(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("wanfed")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func stopProcess(t testing.TB, p *subprocess.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), refuseLimit)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Errorf("stop %s: %v", p.Name(), err)
	}
}

// tree lists the files below dir.
func tree(t testing.TB, dir string) (all []string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDataDirIsOneNodes: a folder is used by one process, one node and one datacenter, and who is refused changes nothing in
// it.
func TestDataDirIsOneNodes(t *testing.T) {
	t.Parallel()
	c := newPEMFiles(t)
	dir := t.TempDir()
	s := startServerProcess(t, dir, "srv1", c.files("srv1"), subprocess.ServerConfig{})
	data := filepath.Join(dir, "data")
	before := tree(t, data)
	base := append([]string{"server", "--dc", "dc1", "--bind", "127.0.0.1", "--port", "-1", "--http-addr", "127.0.0.1:0",
		"--ca-file", c.path("ca.pem"), "--data-dir", data}, "--node")

	args := append(append([]string{}, base...), append([]string{"srv1"}, c.cert("srv1")...)...)
	execute(t, nil, args...).refused(t, 1, `data dir \S+ is in use by another process; stop that one, or give another --data-dir`)
	select {
	case <-s.Done():
		t.Fatalf("the running server ended: %v", s.Err())
	default:
	}
	stopProcess(t, s.Process)

	args = append(append([]string{}, base...), append([]string{"srv2"}, c.cert("srv2")...)...)
	execute(t, nil, args...).refused(t, 1, `data dir \S+ belongs to node "srv1", not "srv2"; give another --data-dir, or start with --node srv1`)
	args = append(append([]string{}, base...), append([]string{"srv1", "--dc", "dc2"}, c.cert("dc2-srv1")...)...)
	execute(t, nil, args...).refused(t, 1, `data directory \S+ belongs to datacenter "dc1", not "dc2"; choose another --data-dir, or empty this one`)
	if after := tree(t, data); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("files before: %q, after: %q", before, after)
	}
	stopProcess(t, startServerProcess(t, dir, "srv1", c.files("srv1"), subprocess.ServerConfig{}).Process)
}

// TestOpenKeyIsWarnedAbout: a key that others may read is no fault, but one line of the log.
func TestOpenKeyIsWarnedAbout(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files have no such modes here")
	}
	c := newPEMFiles(t)
	for _, name := range []string{"srv1", "gw1"} {
		if err := os.Chmod(c.path(name+"-key.pem"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	warning := regexp.MustCompile(`level=WARN msg="private key file can be read by group or others; make it 0600".* file=\S+-key\.pem mode=0644\n`)
	dir := t.TempDir()
	s := startServerProcess(t, dir, "srv1", c.files("srv1"), subprocess.ServerConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), refuseLimit)
	defer cancel()
	g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{wanfedPath(t)}, Dir: t.TempDir(), DC: "dc1", Node: "gw1", TLS: c.files("gw1"), Servers: []string{s.Addr},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Kill()
	file := filepath.Join(t.TempDir(), "server.hcl")
	f := c.files("srv1")
	err = os.WriteFile(file, fmt.Appendf(nil, "dc = \"dc1\"\nnode = \"srv1\"\ndata_dir = \"data\"\nca_file = %q\ncert_file = %q\nkey_file = %q\n", f.CA, f.Cert, f.Key), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if r := execute(t, nil, "validate", file); r.code != 0 || r.stdout != file+": valid\n" || strings.Count(r.stderr, "\n") != 1 ||
		!strings.Contains(r.stderr, "private key file can be read by group or others; make it 0600") {
		t.Errorf("validate: %+v", r)
	}
	for _, p := range []*subprocess.Process{g.Process, s.Process} {
		stopProcess(t, p)
		b, err := os.ReadFile(p.LogPath())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(warning.FindAll(b, -1)); n != 1 {
			t.Errorf("%s warned %d times, want once:\n%s", p.Name(), n, b)
		}
	}
}

// TestUnreadableKey runs as root without the capability to read every file, or as somebody else.
func TestUnreadableKey(t *testing.T) {
	t.Parallel()
	c := newPEMFiles(t)
	if err := os.Chmod(c.path("srv1-key.pem"), 0); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"server", "--dc", "dc1", "--node", "srv1", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--ca-file", c.path("ca.pem")}, c.cert("srv1")...)
	executeWithout(t, "-dac_override,-dac_read_search", args...).refused(t, 1,
		`key file \S+/srv1-key\.pem may not be read by this user; change its owner or mode`)
}

// executeWithout is execute for somebody else than root, or for root without some capabilities.
func executeWithout(t *testing.T, capabilities string, args ...string) result {
	t.Helper()
	args = append([]string{"wanfed"}, args...)
	if os.Geteuid() == 0 {
		if _, err := exec.LookPath("setpriv"); err != nil {
			t.Skip("needs setpriv (Debian package util-linux), or another user than root")
		}
		args = append([]string{"setpriv", "--bounding-set=" + capabilities}, args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), refuseLimit)
	defer cancel()
	return executeCmd(t, exec.CommandContext(ctx, args[0], args[1:]...), nil)
}

// TestPortOfRoot: so is who may not take a port below 1024.
func TestPortOfRoot(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if n, _ := strconv.Atoi(strings.TrimSpace(string(first))); err != nil || n <= 1 {
		t.Skip("every user may take every port here")
	}
	c := newPEMFiles(t)
	common := []string{"--dc", "dc1", "--data-dir", filepath.Join(t.TempDir(), "data"), "--ca-file", c.path("ca.pem")}
	server := append(append([]string{"server", "--node", "srv1", "--bind", "127.0.0.1", "--port", "1"}, common...), c.cert("srv1")...)
	executeWithout(t, "-net_bind_service", server...).refused(t, 1,
		`port of 127\.0\.0\.1:1 is not allowed for this user: choose one above 1023 with --port or --bind, or .*`)
	gateway := append(append([]string{"gateway", "--node", "gw1", "--server", "127.0.0.1:1", "--lan", "127.0.0.1:0", "--wan", "127.0.0.1:1"}, common...), c.cert("gw1")...)
	executeWithout(t, "-net_bind_service", gateway...).refused(t, 1,
		`wan 127\.0\.0\.1:1: this user may not use the port; choose one above 1023, let systemd open the socket, or .*`)
}

// TestHTTPSDemandsACertificate: beyond loopback the HTTP API is for holders of a certificate only, and says who was refused.
func TestHTTPSDemandsACertificate(t *testing.T) {
	t.Parallel()
	c := newPEMFiles(t)
	s := startServerProcess(t, t.TempDir(), "srv1", c.files("srv1"), subprocess.ServerConfig{HTTPAddr: "https://0.0.0.0:0"})
	port := s.HTTP[strings.LastIndexByte(s.HTTP, ':')+1:]
	url := "https://127.0.0.1:" + port + "/v1/catalog/datacenters"

	identity := func(files tlsutil.Files) *tlsutil.Identity {
		id, err := tlsutil.Load(files, "wanfed", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	good := identity(c.files("cli")).ClientConfig("")
	bare := good.Clone()
	bare.GetClientCertificate = nil
	foreign := good.Clone()
	pair, err := tls.LoadX509KeyPair(c.path("other-srv1.pem"), c.path("other-srv1-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	foreign.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }

	if body, err := fetch(t, url, good); err != nil || body != `["dc1"]` {
		t.Errorf("with a certificate: %q, %v", body, err)
	}
	for what, cfg := range map[string]*tls.Config{"without a certificate": bare, "with one of another CA": foreign} {
		if body, err := fetch(t, url, cfg); err == nil {
			t.Errorf("%s the answer is %q", what, body)
		}
	}
	if body, err := fetch(t, "http://127.0.0.1:"+port+"/v1/catalog/datacenters", nil); err == nil && !strings.HasPrefix(body, "This port speaks HTTPS") {
		t.Errorf("without TLS the answer is %q", body)
	}

	wanted := []string{"certificate_missing", "certificate_foreign_ca", "plain_text"}
	counted := func() bool { // a moment after the client was told
		metrics, err := fetch(t, "https://127.0.0.1:"+port+"/metrics", good)
		return err == nil && !slices.ContainsFunc(wanted, func(reason string) bool {
			return !strings.Contains(metrics, `wanfed_http_refused_total{reason="`+reason+`"} 1`)
		})
	}
	for limit := time.After(refuseLimit); !counted(); {
		select {
		case <-limit:
			t.Fatalf("not all of %v are counted", wanted)
		default:
		}
	}

	r := execute(t, nil, append([]string{"members", "--http-addr", "https://127.0.0.1:" + port, "--ca-file", c.path("ca.pem")}, c.cert("cli")...)...)
	if r.code != 0 || !strings.Contains(r.stdout, "srv1") {
		t.Errorf("wanfed members: %+v", r)
	}
	r = execute(t, nil, append([]string{"members", "--http-addr", "https://127.0.0.1:" + port, "--ca-file", c.path("ca.pem")}, c.cert("other-srv1")...)...)
	r.refused(t, 1, `cert other-srv1\.pem: certificate of srv1\.server\.dc1\.wanfed is signed by another CA .*`)

	stopProcess(t, s.Process)
	b, err := os.ReadFile(s.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if !strings.HasPrefix(line, "time=") && !strings.HasPrefix(line, "wanfed server ") {
			t.Errorf("not a line of the log: %s", line)
		}
	}
	for _, want := range []string{
		`msg="connection refused: no usable client certificate" dc=dc1 node=srv1 component=http`,
		`msg="connection refused: client certificate of another CA" dc=dc1 node=srv1 component=http`,
		`msg="connection refused: plain text on the TLS port" dc=dc1 node=srv1 component=http`,
	} {
		if n := strings.Count(string(b), want); n != 1 {
			t.Errorf("%d lines of the log say %q, want one:\n%s", n, want, b)
		}
	}
}

// fetch returns the body of an answer, whatever its status.
func fetch(t testing.TB, url string, cfg *tls.Config) (string, error) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr, Timeout: refuseLimit}).Get(url)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), errors.Join(err, resp.Body.Close())
}
