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

// runningCommand is a command that runs inside the test.
type runningCommand struct {
	line   string // the first on stdout
	stderr *lines
	stop   func() // as SIGTERM does; waits for the end, which must be without an error
}

// lines keeps what is written and lets a test wait for a line.
type lines struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{} // a wake-up for the one that waits
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
	return l.b.Write(b)
}

// wait returns the submatches of the first line that matches.
func (l *lines) wait(t testing.TB, expr string) []string {
	t.Helper()
	re := regexp.MustCompile("(?m)^" + expr + ".*$")
	for timeout := time.After(20 * time.Second); ; {
		l.mu.Lock()
		m := re.FindStringSubmatch(l.b.String())
		l.mu.Unlock()
		if m != nil {
			return m
		}
		select {
		case <-l.changed:
		case <-timeout:
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Fatalf("no line matches %s:\n%s", expr, l.b.String())
		}
	}
}

func startCommand(t testing.TB, args ...string) *runningCommand {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, w := io.Pipe()
	r := &runningCommand{stderr: &lines{changed: make(chan struct{}, 1)}}
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
			t.Errorf("wanfed %s: %v", strings.Join(args, " "), err)
		}
	})
	t.Cleanup(r.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no line on stdout: %v", err)
	}
	r.line = strings.TrimSpace(line)
	return r
}

// upstreamTLS is a TLS server that says its name to whoever connects.
func upstreamTLS(t testing.TB, name string, cfg *tls.Config) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.WriteString(c, name); err != nil {
					return
				}
				// The client closes first: if it did so later than this, its last record would be answered with a reset.
				c.(*tls.Conn).CloseWrite()
				io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// ask connects to addr and returns what stands behind it under the name sni.
func ask(addr, sni string) (string, error) {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", addr, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
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

// TestGatewayAlone runs a gateway on a file of routes and changes the file. It has a signal sent to this process, so it
// does not run in parallel with another that takes it.
func TestGatewayAlone(t *testing.T) {
	f := tlstest.NewCA(t).Files(t, tlsutil.RoleServer, "srv1", "dc2")
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}}
	one, two := upstreamTLS(t, "one", cfg), upstreamTLS(t, "two", cfg)
	file := filepath.Join(t.TempDir(), "routes.hcl")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`route "*.server.dc2.wanfed" { to = ["` + one + `"] }`)
	gw := startCommand(t, "gateway", "--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--routes", file, "--admin-addr", "127.0.0.1:0")
	m := regexp.MustCompile(`^wanfed gateway: listening on (127\.0\.0\.1:\d+), (\[::1\]:\d+), 1 routes$`).FindStringSubmatch(gw.line)
	if m == nil {
		t.Fatalf("first line: %s", gw.line)
	}
	for _, addr := range m[1:] {
		if got, err := ask(addr, "srv1.server.dc2.wanfed"); got != "one" {
			t.Errorf("through %s: %q, %v", addr, got, err)
		}
	}

	hup := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	write(`route "*.server.dc2.wanfed" { to = ["nowhere"] }`)
	hup()
	gw.stderr.wait(t, `time=\S+ level=ERROR msg="cannot reload the routes" err=.*routes\.hcl:1,1: .*nowhere`)
	if got, err := ask(m[1], "srv1.server.dc2.wanfed"); got != "one" {
		t.Errorf("after a bad file: %q, %v", got, err)
	}
	write(`route "srv1.server.dc2.wanfed" { to = ["` + two + `"] }`)
	hup()
	gw.stderr.wait(t, `time=\S+ level=INFO msg="routes changed"`)
	if got, err := ask(m[1], "srv1.server.dc2.wanfed"); got != "two" {
		t.Errorf("after a new file: %q, %v", got, err)
	}
	if _, err := ask(m[1], "srv2.server.dc2.wanfed"); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("name without a route: %v", err)
	}

	admin := gw.stderr.wait(t, `time=\S+ level=INFO msg="admin address" addr=(\S+)`)[1]
	if code, _ := get(t, admin+"/readyz"); code != 200 {
		t.Errorf("/readyz: %d", code)
	}
	_, metrics := get(t, admin+"/metrics")
	for _, want := range []string{
		`wanfed_gateway_accepted_total{listener="listen"} 5`, `wanfed_gateway_refused_total{listener="listen",reason="unknown_sni"} 1`,
		`wanfed_gateway_refused_total{listener="listen",reason="limit"} 0`, `wanfed_gateway_routes{listener="listen"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	gw.stop()
	if c, err := net.Dial("tcp", m[1]); err == nil {
		c.Close()
		t.Error("something listens after the end")
	}
}

// TestGatewayWithoutServers starts a gateway whose servers are all down: it must say so, answer its admin address, and end.
// Gateways with servers are in package test.
func TestGatewayWithoutServers(t *testing.T) {
	f := tlstest.NewCA(t).Files(t, tlsutil.RoleGateway, "gw1", "dc1")
	gw := startCommand(t, "gateway", "--dc", "dc1", "--node", "gw1", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key, "--server", "127.0.0.1:1",
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
	ready, ok := subprocess.ParseGatewayReady(gw.line)
	if !ok || ready.DC != "dc1" || ready.Node != "gw1" || strings.HasSuffix(ready.LAN, ":0") || strings.HasSuffix(ready.WAN, ":0") || ready.LAN == ready.WAN {
		t.Fatalf("first line: %s", gw.line)
	}
	for _, addr := range []string{ready.LAN, ready.WAN} {
		if _, err := ask(addr, "srv1.server.dc1.wanfed"); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("through %s: %v", addr, err)
		}
	}
	gw.stderr.wait(t, `time=\S+ level=WARN msg="cannot register" dc=dc1 gateway=gw1 err="no server of dc1 answers: dial 127\.0\.0\.1:1: .*connection refused"`)
	admin := gw.stderr.wait(t, `time=\S+ level=INFO msg="admin address" .*addr=(\S+)`)[1]
	if code, body := get(t, admin+"/readyz"); code != 503 || !strings.Contains(body, "no server has answered") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, _ := get(t, admin+"/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
	var routes map[string][]gateway.Route
	if _, body := get(t, admin+"/routes"); json.Unmarshal([]byte(body), &routes) != nil || len(routes) != 2 {
		t.Errorf("/routes: %s", body)
	}
	if _, body := get(t, admin+"/status"); !strings.Contains(body, "no server of dc1 answers") {
		t.Errorf("/status: %s", body)
	}
	gw.stop()
}
