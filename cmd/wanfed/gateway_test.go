// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// runningCommand is a command that runs in this process.
type runningCommand struct {
	line   string // the first line of stdout
	stderr *outputBuffer
	stop   func() // ends the context of the command, which must return nil
}

// outputBuffer is the output of a running command.
type outputBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *outputBuffer) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *outputBuffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// awaitLog returns the submatches of the first log line that matches.
func (r *runningCommand) awaitLog(t testing.TB, expr string) []string {
	t.Helper()
	return awaitLine(t, `(?m)^time=\S+ `+expr+`.*$`, 1, r.stderr.String)
}

// adminURL returns the URL of the admin address.
func (r *runningCommand) adminURL(t testing.TB) string {
	t.Helper()
	return r.awaitLog(t, `level=INFO msg="admin address" .*addr=(\S+)`)[1]
}

// addr returns the address of the listener of a standalone gateway.
func (r *runningCommand) addr(t testing.TB) string {
	t.Helper()
	m := regexp.MustCompile(`listening on (\S+),`).FindStringSubmatch(r.line)
	if m == nil {
		t.Fatalf("first line = %q, want the address of the listener", r.line)
	}
	return m[1]
}

// startCommand starts a command and waits for the first line of stdout.
func startCommand(t testing.TB, args ...string) *runningCommand {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, w := io.Pipe()
	r := &runningCommand{stderr: new(outputBuffer)}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(w)
	root.SetErr(r.stderr)
	errc := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		w.CloseWithError(io.ErrUnexpectedEOF)
		errc <- err
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-errc; err != nil {
			t.Errorf("wanfed %s = %v, want nil", strings.Join(args, " "), err)
		}
	})
	t.Cleanup(r.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read the first line of stdout: %v", err)
	}
	r.line = strings.TrimSpace(line)
	return r
}

// reload sends SIGHUP to this process, which runs the command. Tests that call
// reload do not run in parallel.
func reload(t testing.TB) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// upstreamTLS starts a TLS server that sends its name to each client.
func upstreamTLS(t testing.TB, name string, cfg *tls.Config) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return serveConns(t, ln, 10*time.Second, func(c net.Conn) {
		if _, err := io.WriteString(c, name); err != nil {
			return
		}
		// The client closes first. Otherwise its last record would cause a
		// reset.
		c.(*tls.Conn).CloseWrite()
		io.Copy(io.Discard, c)
	})
}

// serverTLS returns the TLS configuration of a server of dc2.
func serverTLS(t testing.TB) *tls.Config {
	t.Helper()
	f := tlstest.NewCA(t).Files(t, tlsutil.RoleServer, "srv1", "dc2")
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

// readThrough connects to addr with the server name sni, and returns the data
// of the upstream.
func readThrough(addr, sni string) (string, error) {
	cfg := &tls.Config{ServerName: sni, InsecureSkipVerify: true}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", addr, cfg)
	if err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

func get(t testing.TB, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// A standalone gateway reloads its file of routes, and keeps its routes if the
// file has an error.
func TestStandaloneGateway(t *testing.T) {
	cfg := serverTLS(t)
	one, two := upstreamTLS(t, "one", cfg), upstreamTLS(t, "two", cfg)
	file := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, file, `route "*.server.dc2.wanfed" { to = ["`+one+`"] }`)
	gw := startCommand(t, "gateway", "--listen", "127.0.0.1:0", "--listen", "[::1]:0",
		"--routes", file, "--admin-addr", "127.0.0.1:0")
	line := regexp.MustCompile(`^wanfed gateway: listening on (127\.0\.0\.1:\d+), (\[::1\]:\d+), 1 routes$`)
	m := line.FindStringSubmatch(gw.line)
	if m == nil {
		t.Fatalf("first line = %q, want a match of %s", gw.line, line)
	}
	check := func(when, addr, want string) {
		t.Helper()
		if got, err := readThrough(addr, "srv1.server.dc2.wanfed"); got != want {
			t.Errorf("%s: upstream of %s = %q, %v, want %q", when, addr, got, err, want)
		}
	}
	for _, addr := range m[1:] {
		check("after the start", addr, "one")
	}

	writeFile(t, file, `route "*.server.dc2.wanfed" { to = ["nowhere"] }`)
	reload(t)
	gw.awaitLog(t, `level=ERROR msg="cannot reload the routes" err=.*routes\.hcl:1,1: .*nowhere`)
	check("after a file with an error", m[1], "one")
	writeFile(t, file, `route "srv1.server.dc2.wanfed" { to = ["`+two+`"] }`)
	reload(t)
	gw.awaitLog(t, `level=INFO msg="routes changed"`)
	check("after a valid file", m[1], "two")
	_, err := readThrough(m[1], "srv2.server.dc2.wanfed")
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("readThrough() with a name without a route = %v, want unrecognized name", err)
	}

	admin := gw.adminURL(t)
	if code, _ := get(t, admin+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d, want %d", code, http.StatusOK)
	}
	_, metrics := get(t, admin+"/metrics")
	for _, want := range []string{
		`wanfed_gateway_accepted_total{listener="listen"} 5`,
		`wanfed_gateway_refused_total{listener="listen",reason="unknown_sni"} 1`,
		`wanfed_gateway_refused_total{listener="listen",reason="limit"} 0`,
		`wanfed_gateway_routes{listener="listen"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics = %s\nwant %s", metrics, want)
		}
	}
	gw.stop()
	if c, err := net.Dial("tcp", m[1]); err == nil {
		c.Close()
		t.Errorf("Dial(%s) after the end = nil, want an error", m[1])
	}
}

// A gateway without a reachable server logs the failure, serves its admin
// address, and stops. The cluster tests in directory test cover gateways with
// servers.
func TestGateway_ServersDown(t *testing.T) {
	ca := tlstest.NewCA(t)
	f := ca.Files(t, tlsutil.RoleGateway, "gw1", "dc1")
	gw := startCommand(t, "gateway", "--dc", "dc1", "--node", "gw1", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key, "--server", "127.0.0.1:1",
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
	ready, ok := subprocess.ParseGatewayReady(gw.line)
	if !ok || ready.DC != "dc1" || ready.Node != "gw1" ||
		strings.HasSuffix(ready.LAN, ":0") || strings.HasSuffix(ready.WAN, ":0") || ready.LAN == ready.WAN {
		t.Fatalf("first line = %q, want dc1, gw1 and two addresses", gw.line)
	}
	for _, addr := range []string{ready.LAN, ready.WAN} {
		_, err := readThrough(addr, "srv1.server.dc1.wanfed")
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("readThrough(%s) = %v, want unrecognized name", addr, err)
		}
	}
	gw.awaitLog(t, `level=WARN msg="cannot register" dc=dc1 gateway=gw1 `+
		`err="no server of dc1 answers: dial 127\.0\.0\.1:1: .*connection refused"`)
	admin := gw.adminURL(t)
	code, body := get(t, admin+"/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "no server has answered") {
		t.Errorf("/readyz = %d %s, want %d, no server has answered", code, body, http.StatusServiceUnavailable)
	}
	if code, _ := get(t, admin+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz = %d, want %d", code, http.StatusOK)
	}
	var routes map[string][]gateway.Route
	if _, body := get(t, admin+"/routes"); json.Unmarshal([]byte(body), &routes) != nil || len(routes) != 2 {
		t.Errorf("/routes = %s, want the routes of 2 listeners", body)
	}
	if _, body := get(t, admin+"/status"); !strings.Contains(body, "no server of dc1 answers") {
		t.Errorf("/status = %s, want no server of dc1 answers", body)
	}
	checkProfiles(t, ca, admin)
	gw.stop()
}

// checkProfiles requires that the admin address of gateway gw1 of dc1 serves
// profiles over TLS to operators of dc1 and to the holder of its certificate.
func checkProfiles(t *testing.T, ca *tlstest.CA, admin string) {
	t.Helper()
	if code, body := get(t, admin+"/debug/pprof/heap"); code != http.StatusForbidden {
		t.Errorf("profile in plain text = %d %.100s, want %d", code, body, http.StatusForbidden)
	}
	for _, c := range []struct {
		role     tlsutil.Role
		node, dc string
		want     string
	}{
		{tlsutil.RoleOperator, "joe", "dc1", "heap profile:"},
		{tlsutil.RoleGateway, "gw1", "dc1", "heap profile:"},
		{tlsutil.RoleGateway, "gw2", "dc1", "only operators of dc1 may"},
		{tlsutil.RoleOperator, "joe", "dc2", "only operators of dc1 may"},
		{tlsutil.RoleClient, "joe", "dc1", "only operators of dc1 may"},
	} {
		id := ca.Identity(t, c.role, c.node, c.dc)
		url := strings.Replace(admin, "http://", "https://", 1) + "/debug/pprof/heap?debug=1"
		if body, err := fetch(t, url, id.ClientConfig("gw1.gateway.dc1.wanfed")); err != nil || !strings.Contains(body, c.want) {
			t.Errorf("profile for %v = %v %.100s, want %s", id.Peer(), err, body, c.want)
		}
	}
}
