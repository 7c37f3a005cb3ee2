// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/test/lab"
)

// TestSignerCommand runs a federation whose keys of CAs are encrypted, and then
// at a program with OpenSSL alone. The program issues the CA of a new datacenter,
// and the certificates of a gateway that renews it.
func TestSignerCommand(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl")
	}
	const life = 10 * time.Second
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("198.51.100.%d/24", i) }, 3)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443")
	ca, signer := m[0].dir+"/data/server/ca", t.TempDir()
	for _, name := range []string{enroll.RootKey, enroll.DatacenterKey} {
		if b, err := os.ReadFile(filepath.Join(ca, name)); err != nil || !strings.Contains(string(b), "BEGIN ENCRYPTED PRIVATE KEY") {
			t.Errorf("%s = %s, %v, want an encrypted key", name, b, err)
		}
	}
	if st, err := os.Stat(m[0].dir + "/ca-passphrase"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of ca-passphrase = %v, %v, want 0600", st, err)
	}

	// The server without keys of CAs issues nothing, and with the command it does.
	for _, name := range []string{enroll.RootCert, enroll.RootKey, enroll.DatacenterCert, enroll.DatacenterKey} {
		if err := os.Rename(filepath.Join(ca, name), filepath.Join(signer, name)); err != nil {
			t.Fatal(err)
		}
	}
	m[0].wanfed("this server cannot sign CAs of datacenters", "token", "issue", "--dc", "dc2")
	script, err := filepath.Abs("../contrib/signer/openssl.sh")
	if err != nil {
		t.Fatal(err)
	}
	conf := m[0].dir + "/server.hcl"
	b, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^issuing_key_passphrase_file.*\n`).ReplaceAllString(string(b), "")
	if text == string(b) {
		t.Errorf("server.hcl has no issuing_key_passphrase_file:\n%s", b)
	}
	text += fmt.Sprintf("cert_life = %q\nsigner_command = [\"env\", \"SIGNER_DIR=%s\", \"OPENSSL_ARGS=-passin file:%s\", %q]\n",
		life, signer, m[0].dir+"/ca-passphrase", script)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m[0].restartServer()
	m[1].wanfed("", "join", m[0].wanfed("", "token", "issue", "--dc", "dc2"), "--wan", "198.51.100.2:8443")
	m[2].wanfed("", "join", m[0].wanfed("", "token", "issue", "--role", "gateway"), "--wan", "198.51.100.3:8443")
	renewed := regexp.MustCompile(`msg="certificate renewed"`)
	for until := time.Now().Add(life); len(linesOf(t, m[2].dir+"/data/gateway.log", renewed)) == 0; {
		if time.Now().After(until) {
			log, _ := os.ReadFile(m[0].dir + "/data/server.log")
			t.Fatalf("gw2 has not renewed its certificate:\n%s", log)
		}
		time.Sleep(50 * time.Millisecond) // another process has no event to wait for
	}
}

// restartServer ends the server of wanfed init, and starts it again.
func (e enrolled) restartServer() {
	e.Helper()
	text, err := os.ReadFile(e.dir + "/data/server.pid")
	if err != nil {
		e.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGTERM)
	}
	if err != nil {
		e.Fatal(err)
	}
	for syscall.Kill(pid, 0) == nil {
		time.Sleep(10 * time.Millisecond) // it is not a child of the test
	}
	log, err := os.OpenFile(e.dir+"/data/server.log", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		e.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("ip", "netns", "exec", e.ns, lab.Binary(e.T), "server", "--config-file", e.dir+"/server.hcl")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if exec.Command("ip", "netns", "exec", e.ns, lab.Binary(e.T), "status", "--exit-code", "--dir", e.dir).Run() == nil {
			return
		}
	}
	b, _ := os.ReadFile(log.Name())
	e.Fatalf("the server is not ok after a restart:\n%s", b)
}
