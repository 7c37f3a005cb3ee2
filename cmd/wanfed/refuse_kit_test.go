// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// refuseLimit is how long a process may take to say that it does not start, on a busy machine.
const refuseLimit = 30 * time.Second

// pemFiles is a folder of the PEM files, good and bad, that tests of refusals name.
type pemFiles struct {
	dir string
	ca  *tlstest.CA
}

func newPEMFiles(t testing.TB) pemFiles {
	t.Helper()
	c := pemFiles{t.TempDir(), tlstest.NewCA(t)}
	c.write(t, "ca.pem", c.ca.Pair.Cert)
	other := tlstest.NewCA(t)
	c.write(t, "other-ca.pem", other.Pair.Cert)
	for name, r := range map[string]tlsutil.CertRequest{
		"srv1":      {Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"},
		"srv2":      {Role: tlsutil.RoleServer, DC: "dc1", Node: "srv2"},
		"gw1":       {Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"},
		"gw2":       {Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw2"},
		"dc2-srv1":  {Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"},
		"dc2-gw1":   {Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"},
		"gw-srv1":   {Role: tlsutil.RoleGateway, DC: "dc1", Node: "srv1"}, // of the right name and the wrong role
		"srv-gw1":   {Role: tlsutil.RoleServer, DC: "dc1", Node: "gw1"},
		"cli":       {Role: tlsutil.RoleOperator, DC: "dc1"},
		"long-srv1": {Role: tlsutil.RoleServer, DC: "dc1", Node: strings.Repeat("n", 63)},
	} {
		c.pair(t, name, c.ca.Issue(t, r))
	}
	c.pair(t, "other-srv1", other.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"}))
	c.pair(t, "other-gw1", other.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"}))
	for node, role := range map[string]string{"srv1": "server", "gw1": "gateway"} {
		any := role + ".dc1.wanfed"
		own := node + "." + any
		past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		c.pair(t, "expired-"+node, c.ca.Sign(t, x509.Certificate{DNSNames: []string{own, any}, NotBefore: past.Add(-time.Hour), NotAfter: past}))
		c.pair(t, "early-"+node, c.ca.Sign(t, x509.Certificate{DNSNames: []string{own, any}, NotBefore: future, NotAfter: future.Add(time.Hour)}))
		c.pair(t, "nameless-"+node, c.ca.Sign(t, x509.Certificate{DNSNames: []string{any, "localhost"}}))
		c.pair(t, "lonely-"+node, c.ca.Sign(t, x509.Certificate{DNSNames: []string{own}}))
		c.pair(t, "two-"+node, c.ca.Sign(t, x509.Certificate{DNSNames: []string{own, any, "x" + own}}))
		c.pair(t, "dialing-"+node, c.ca.Sign(t, x509.Certificate{DNSNames: []string{own, any}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}))
	}
	c.write(t, "text", []byte("hello\n"))
	return c
}

func (c pemFiles) path(name string) string { return filepath.Join(c.dir, name) }

func (c pemFiles) write(t testing.TB, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(c.path(name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c pemFiles) pair(t testing.TB, name string, p tlsutil.KeyPair) {
	t.Helper()
	c.write(t, name+".pem", p.Cert)
	c.write(t, name+"-key.pem", p.Key)
}

func (c pemFiles) files(name string) tlsutil.Files {
	return tlsutil.Files{CA: c.path("ca.pem"), Cert: c.path(name + ".pem"), Key: c.path(name + "-key.pem")}
}

// cert are the flags that name a certificate and its key.
func (c pemFiles) cert(name string) []string {
	return []string{"--cert-file", c.path(name + ".pem"), "--key-file", c.path(name + "-key.pem")}
}

// result is what a process that has ended left.
type result struct {
	stdout, stderr string
	code           int
}

// execute runs wanfed as a process to its end, without the settings of this process's environment.
func execute(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), refuseLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "wanfed", args...)
	return executeCmd(t, cmd, env)
}

func executeCmd(t testing.TB, cmd *exec.Cmd, env []string) result {
	t.Helper()
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "WANFED_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// refusal is a call of wanfed that must fail: with one line and the exit status, and with nothing written.
type refusal struct {
	name string
	args []string // after the usual ones, and instead of those of the same name
	env  []string
	code int
	want string // regular expression for all of the line after "wanfed: "
}

// check runs the command and looks at all that it left.
func (r refusal) check(t *testing.T, base ...string) {
	t.Run(r.name, func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		args := append(append([]string{}, base...), "--data-dir", filepath.Join(dir, "data"))
		got := execute(t, r.env, append(args, r.args...)...)
		got.refused(t, r.code, r.want)
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

// refused demands the exit status and, on stderr alone, one line.
func (r result) refused(t testing.TB, code int, want string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit status %d, want %d", r.code, code)
	}
	if r.stdout != "" {
		t.Errorf("stdout: %s", r.stdout)
	}
	line, whole := strings.CutSuffix(r.stderr, "\n")
	if !whole || strings.Contains(line, "\n") {
		t.Errorf("stderr is not one line:\n%s", r.stderr)
	}
	if !regexp.MustCompile(`^wanfed: ` + want + `$`).MatchString(line) {
		t.Errorf("stderr:\n%s\nwant: %s", r.stderr, want)
	}
}

// taken is an address on which somebody else listens.
func taken(t testing.TB) (addr, port string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	_, port, err = net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return ln.Addr().String(), port
}
