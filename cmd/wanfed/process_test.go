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

// processTimeout limits one wait for a process on a busy machine.
const processTimeout = 30 * time.Second

// pemFiles is a directory of valid and invalid PEM files for tests of errors.
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
		"gw-srv1":   {Role: tlsutil.RoleGateway, DC: "dc1", Node: "srv1"}, // the right name, the wrong role
		"srv-gw1":   {Role: tlsutil.RoleServer, DC: "dc1", Node: "gw1"},
		"cli":       {Role: tlsutil.RoleOperator, DC: "dc1"},
		"long-srv1": {Role: tlsutil.RoleServer, DC: "dc1", Node: strings.Repeat("n", 63)},
	} {
		c.pair(t, name, c.ca.Issue(t, r))
	}
	c.pair(t, "other-srv1", other.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"}))
	c.pair(t, "other-gw1", other.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"}))
	for node, role := range map[string]string{"srv1": "server", "gw1": "gateway"} {
		group := role + ".dc1.wanfed" // the name that all nodes of the role have
		name := node + "." + group
		past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		for prefix, cert := range map[string]x509.Certificate{
			"expired":  {DNSNames: []string{name, group}, NotBefore: past.Add(-time.Hour), NotAfter: past},
			"early":    {DNSNames: []string{name, group}, NotBefore: future, NotAfter: future.Add(time.Hour)},
			"no-node":  {DNSNames: []string{group, "localhost"}},
			"no-group": {DNSNames: []string{name}},
			"two":      {DNSNames: []string{name, group, "x" + name}},
			"client-only": {
				DNSNames: []string{name, group}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			},
		} {
			c.pair(t, prefix+"-"+node, c.ca.Sign(t, cert))
		}
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

// certFlags returns the flags for a certificate and its key.
func (c pemFiles) certFlags(name string) []string {
	return []string{"--cert-file", c.path(name + ".pem"), "--key-file", c.path(name + "-key.pem")}
}

// result is the output and exit status of a process.
type result struct {
	stdout, stderr string
	code           int
}

// execute runs wanfed as a process, without the settings in the environment of
// the test.
func execute(t testing.TB, env []string, args ...string) result {
	t.Helper()
	return executeProgram(t, env, append([]string{"wanfed"}, args...)...)
}

// executeProgram is execute for a command line that begins with a program.
func executeProgram(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
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

// startError is a command that must fail at its start, with one line of output
// and without files.
type startError struct {
	name string
	args []string // appended to the common arguments
	env  []string
	code int    // exit status
	want string // regular expression of the whole line after "wanfed: "
}

// check runs the command.
func (r startError) check(t *testing.T, base ...string) {
	t.Run(r.name, func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		args := append(append([]string{}, base...), "--data-dir", filepath.Join(dir, "data"))
		got := execute(t, r.env, append(args, r.args...)...)
		got.checkError(t, r.code, r.want)
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("files after the command = %v, %v, want none", files, err)
		}
	})
}

// checkError checks the exit status, the only line on stderr, and that stdout
// is empty.
func (r result) checkError(t testing.TB, code int, want string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit status = %d, want %d", r.code, code)
	}
	if r.stdout != "" {
		t.Errorf("stdout = %s, want nothing", r.stdout)
	}
	line, complete := strings.CutSuffix(r.stderr, "\n")
	if !complete || strings.Contains(line, "\n") {
		t.Errorf("stderr =\n%s\nwant one line", r.stderr)
	}
	if !regexp.MustCompile(`^wanfed: ` + want + `$`).MatchString(line) {
		t.Errorf("stderr =\n%s\nwant a match of %s", r.stderr, want)
	}
}

// usedAddress returns an address on which the test listens.
func usedAddress(t testing.TB) (addr, port string) {
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
