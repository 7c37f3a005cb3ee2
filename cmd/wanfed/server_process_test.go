// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
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
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// startServerProcess starts a server of dc1 as a process. dir/data has its
// data.
func startServerProcess(
	t testing.TB, dir, node string, files tlsutil.Files, cfg subprocess.ServerConfig,
) *subprocess.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	cfg.Program, cfg.Dir, cfg.DC, cfg.Node, cfg.TLS = []string{wanfedPath(t)}, dir, "dc1", node, files
	s, err := subprocess.StartServer(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// wanfedPath returns the path of the command wanfed, a copy of this test
// binary. See TestMain.
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
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Errorf("Stop() of %s = %v, want nil", p.Name(), err)
	}
}

// serviceManager replaces the service manager for processes that the test
// starts after this call. expectStates waits for states in any order. It fails
// the test if a process reports another state.
func serviceManager(t *testing.T) (expectStates func(want ...string)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })
	manager.SetDeadline(time.Now().Add(processTimeout))
	t.Setenv("NOTIFY_SOCKET", socket)
	return func(want ...string) {
		t.Helper()
		b := make([]byte, 256)
		for len(want) > 0 {
			n, err := manager.Read(b)
			first, _, _ := strings.Cut(string(b[:n]), "\n") // the second line of a reload has its time
			i := slices.Index(want, first)
			if err != nil || i < 0 {
				t.Fatalf("state = %q, %v, want one of %q", b[:n], err, want)
			}
			want = slices.Delete(want, i, i+1)
		}
	}
}

func TestServer_NotifiesServiceManager(t *testing.T) {
	testutil.Cluster(t)
	expectStates := serviceManager(t)
	c := newPEMFiles(t)
	s := startServerProcess(t, t.TempDir(), "srv1", c.files("srv1"), subprocess.ServerConfig{})
	expectStates("READY=1")
	stopProcess(t, s.Process)
	expectStates("STOPPING=1")
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

// A server refuses the data directory of another process, node or datacenter,
// and does not change it.
func TestDataDir_OfAnotherNode(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	c := newPEMFiles(t)
	dir := t.TempDir()
	s := startServerProcess(t, dir, "srv1", c.files("srv1"), subprocess.ServerConfig{})
	data := filepath.Join(dir, "data")
	testutil.Eventually(t, processTimeout, func() bool {
		_, err := os.Stat(filepath.Join(data, "raft", "joining"))
		return errors.Is(err, fs.ErrNotExist)
	}, "the server has formed its group")
	base := []string{
		"server", "--dc", "dc1", "--bind", "127.0.0.1", "--port", "-1", "--http-addr", "127.0.0.1:0",
		"--ca-file", c.path("ca.pem"), "--data-dir", data,
	}
	start := func(cert string, args ...string) result {
		t.Helper()
		return execute(t, nil, slices.Concat(base, args, c.certFlags(cert))...)
	}
	start("srv1", "--node", "srv1").checkError(t, 1,
		`data dir \S+ is in use by another process; stop that one, or give another --data-dir`)
	select {
	case <-s.Done():
		t.Fatalf("running server = ended with %v, want running", s.Err())
	default:
	}
	stopProcess(t, s.Process)

	before := tree(t, data) // a running server may have a file that is being replaced
	start("srv2", "--node", "srv2").checkError(t, 1,
		`data dir \S+ belongs to node "srv1", not "srv2"; give another --data-dir, or start with --node srv1`)
	start("dc2-srv1", "--node", "srv1", "--dc", "dc2").checkError(t, 1,
		`data directory \S+ belongs to datacenter "dc1", not "dc2"; choose another --data-dir, or empty this one`)
	if after := tree(t, data); !slices.Equal(after, before) {
		t.Errorf("files after the failed starts = %q, want %q", after, before)
	}
	stopProcess(t, startServerProcess(t, dir, "srv1", c.files("srv1"), subprocess.ServerConfig{}).Process)
}

const keyModeWarning = "private key file can be read by group or others; make it 0600"

// A key file that others can read causes one warning of each process and of
// "wanfed validate", and no error.
func TestKeyFile_ReadableByOthers(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("this system has no such file modes")
	}
	c := newPEMFiles(t)
	for _, name := range []string{"srv1", "gw1"} {
		if err := os.Chmod(c.path(name+"-key.pem"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := startServerProcess(t, t.TempDir(), "srv1", c.files("srv1"), subprocess.ServerConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{wanfedPath(t)}, Dir: t.TempDir(),
		DC: "dc1", Node: "gw1", TLS: c.files("gw1"), Servers: []string{s.Addr},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Kill()
	file := filepath.Join(t.TempDir(), "server.hcl")
	f := c.files("srv1")
	writeFile(t, file, fmt.Sprintf("dc = \"dc1\"\nnode = \"srv1\"\ndata_dir = \"data\"\n"+
		"ca_file = %q\ncert_file = %q\nkey_file = %q\n", f.CA, f.Cert, f.Key))
	r := execute(t, nil, "validate", file)
	if r.code != 0 || r.stdout != file+": valid\n" || strings.Count(r.stderr, "\n") != 1 ||
		!strings.Contains(r.stderr, keyModeWarning) {
		t.Errorf("wanfed validate = %+v, want valid with one warning", r)
	}
	warning := regexp.MustCompile(`level=WARN msg="` + keyModeWarning + `".* file=\S+-key\.pem mode=0644\n`)
	for _, p := range []*subprocess.Process{g.Process, s.Process} {
		stopProcess(t, p)
		b, err := os.ReadFile(p.LogPath())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(warning.FindAll(b, -1)); n != 1 {
			t.Errorf("warnings of %s = %d, want 1:\n%s", p.Name(), n, b)
		}
	}
}

// A key file that the user may not read is an error with a remedy. The command
// runs without the capability of root to read all files.
func TestKeyFile_Unreadable(t *testing.T) {
	t.Parallel()
	c := newPEMFiles(t)
	if err := os.Chmod(c.path("srv1-key.pem"), 0); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"server", "--dc", "dc1", "--node", "srv1", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--ca-file", c.path("ca.pem")}, c.certFlags("srv1")...)
	executeWithout(t, "-dac_override,-dac_read_search", args...).checkError(t, 1,
		`key file \S+/srv1-key\.pem may not be read by this user; change its owner or mode`)
}

// executeWithout runs wanfed without some Linux capabilities if the test runs
// as root. Otherwise it is execute.
func executeWithout(t *testing.T, capabilities string, args ...string) result {
	t.Helper()
	args = append([]string{"wanfed"}, args...)
	if os.Geteuid() == 0 {
		if _, err := exec.LookPath("setpriv"); err != nil {
			t.Skip("needs setpriv (Debian package util-linux), or a user other than root")
		}
		args = append([]string{"setpriv", "--bounding-set=" + capabilities}, args...)
	}
	return executeProgram(t, nil, args...)
}

// Without the capability, a port below 1024 is refused with a remedy.
func TestPort_Privileged(t *testing.T) {
	t.Parallel()
	first, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if n, _ := strconv.Atoi(strings.TrimSpace(string(first))); err != nil || n <= 1 {
		t.Skip("all users may use all ports of this machine")
	}
	c := newPEMFiles(t)
	common := []string{"--dc", "dc1", "--data-dir", filepath.Join(t.TempDir(), "data"), "--ca-file", c.path("ca.pem")}
	server := slices.Concat([]string{"server", "--node", "srv1", "--bind", "127.0.0.1", "--port", "1"},
		common, c.certFlags("srv1"))
	executeWithout(t, "-net_bind_service", server...).checkError(t, 1,
		`port of 127\.0\.0\.1:1 is not allowed for this user: choose a port above 1023 with --port or --bind, or .*`)
	gateway := slices.Concat([]string{"gateway", "--node", "gw1", "--server", "127.0.0.1:1",
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:1"}, common, c.certFlags("gw1"))
	executeWithout(t, "-net_bind_service", gateway...).checkError(t, 1,
		`wan 127\.0\.0\.1:1: this user may not use the port; choose one above 1023, let systemd open the socket, or .*`)
}

// checkHTTPS sends requests with several client certificates. Only a
// certificate of the same CA gets a response.
func checkHTTPS(t *testing.T, c pemFiles, port string, valid *tls.Config) {
	t.Helper()
	const path = "/v1/catalog/datacenters"
	url := "https://127.0.0.1:" + port + path
	without := valid.Clone()
	without.GetClientCertificate = nil
	otherCA := valid.Clone()
	pair, err := tls.LoadX509KeyPair(c.path("other-srv1.pem"), c.path("other-srv1-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	otherCA.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }

	if body, err := fetch(t, url, valid); err != nil || body != `["dc1"]` {
		t.Errorf("response to a valid certificate = %q, %v, want [\"dc1\"]", body, err)
	}
	for what, cfg := range map[string]*tls.Config{"no certificate": without, "a certificate of another CA": otherCA} {
		if body, err := fetch(t, url, cfg); err == nil {
			t.Errorf("response to %s = %q, want an error", what, body)
		}
	}
	body, err := fetch(t, "http://127.0.0.1:"+port+path, nil)
	if err == nil && !strings.HasPrefix(body, "This port speaks HTTPS") {
		t.Errorf("response without TLS = %q, want an error or This port speaks HTTPS", body)
	}
}

// On an address other than loopback, the HTTP API serves only clients with a
// certificate. Refused connections are counted and logged.
func TestHTTPS_RequiresClientCertificate(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	c := newPEMFiles(t)
	s := startServerProcess(t, t.TempDir(), "srv1", c.files("srv1"),
		subprocess.ServerConfig{HTTPAddr: "https://0.0.0.0:0"})
	port := s.HTTP[strings.LastIndexByte(s.HTTP, ':')+1:]
	id, err := tlsutil.Load(c.files("cli"), "wanfed", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	valid := id.ClientConfig("")
	checkHTTPS(t, c, port, valid)

	wanted := []string{"certificate_missing", "certificate_foreign_ca", "plain_text"}
	testutil.Eventually(t, processTimeout, func() bool { // the server counts after it responds
		metrics, err := fetch(t, "https://127.0.0.1:"+port+"/metrics", valid)
		return err == nil && !slices.ContainsFunc(wanted, func(reason string) bool {
			return !strings.Contains(metrics, `wanfed_http_refused_total{reason="`+reason+`"} 1`)
		})
	}, "each of %v counted once", wanted)

	members := []string{"members", "--http-addr", "https://127.0.0.1:" + port, "--ca-file", c.path("ca.pem")}
	r := execute(t, nil, slices.Concat(members, c.certFlags("cli"))...)
	if r.code != 0 || !strings.Contains(r.stdout, "srv1") {
		t.Errorf("wanfed members = %+v, want srv1", r)
	}
	execute(t, nil, slices.Concat(members, c.certFlags("other-srv1"))...).checkError(t, 1,
		`cert other-srv1\.pem: certificate of srv1\.server\.dc1\.wanfed is signed by another CA .*`)

	stopProcess(t, s.Process)
	checkRefusalLog(t, s.LogPath())
}

// checkRefusalLog checks that the log has one line per refused connection, and
// no lines of other loggers.
func checkRefusalLog(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if !strings.HasPrefix(line, "time=") && !strings.HasPrefix(line, "wanfed server ") {
			t.Errorf("line of output = %s, want a line of the log", line)
		}
	}
	for _, want := range []string{
		`msg="connection refused: no usable client certificate" dc=dc1 node=srv1 component=http`,
		`msg="connection refused: client certificate of another CA" dc=dc1 node=srv1 component=http`,
		`msg="connection refused: plain text on the TLS port" dc=dc1 node=srv1 component=http`,
	} {
		if n := strings.Count(string(b), want); n != 1 {
			t.Errorf("lines with %q = %d, want 1:\n%s", want, n, b)
		}
	}
}

// fetch returns the body of a response of any status.
func fetch(t testing.TB, url string, cfg *tls.Config) (string, error) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr, Timeout: processTimeout}).Get(url)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), errors.Join(err, resp.Body.Close())
}
