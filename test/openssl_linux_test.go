// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/pem"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

// seeWithOpenSSL runs the openssl commands of the documentation. They connect
// to a server of the other datacenter through the local gateway.
func seeWithOpenSSL(t *testing.T, l *loopback, dc1, dc2 *site) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("needs the openssl command (Debian package openssl)")
	}
	files := l.ca.Files(t, tlsutil.RoleOperator, "cli", "dc2")
	for _, test := range []struct {
		file    string
		gateway *site
		sni     string
		more    []string // further arguments
	}{
		{"how-it-works.md", dc2, "srv1.server.dc1.wanfed", nil},
		{"by-hand.md", dc1, "srv1.server.dc2.wanfed", []string{"-verify_return_error"}},
	} {
		t.Run(test.file, func(t *testing.T) {
			args := openSSLCommand(t, test.file)
			if i := slices.Index(args, "-servername"); i < 0 || args[i+1] != test.sni {
				t.Fatalf("command %v does not use the server name %s", args, test.sni)
			}
			for flag, value := range map[string]string{
				"-connect": test.gateway.gateway.LAN, "-CAfile": files.CA, "-cert": files.Cert, "-key": files.Key,
			} {
				i := slices.Index(args, flag)
				if i < 0 {
					t.Fatalf("%v has no %s", args, flag)
				}
				args[i+1] = value
			}
			args = append(args, test.more...)
			out, err := runOpenSSL(t, args)
			if err != nil || !strings.Contains(out, "Verify return code: 0 (ok)") ||
				!strings.Contains(out, "ALPN protocol: h2") {
				t.Fatalf("%v = %v, want a verified connection with ALPN h2:\n%s", args, err, out)
			}
			block, _ := pem.Decode([]byte(out))
			if block == nil {
				t.Fatalf("no certificate in:\n%s", out)
			}
			certs, err := tlsutil.ParseCerts(pem.EncodeToMemory(block))
			if err != nil || certs[0].DNSNames[0] != test.sni {
				t.Errorf("certificate of %v, %v, want %s", certs[0].DNSNames, err, test.sni)
			}

			const unknown = "srv9.server.dc9.wanfed"
			args[slices.Index(args, "-servername")+1] = unknown
			log := logOf(test.gateway.gateway.Process).mark(t)
			out, err = runOpenSSL(t, args)
			if err == nil || !strings.Contains(out, "unrecognized name") || strings.Contains(out, "BEGIN CERTIFICATE") {
				t.Errorf("%v = %v, want the alert unrecognized name:\n%s", args, err, out)
			}
			if all, err := log.lines(`msg="connection refused".* listener=lan .*sni=` + unknown +
				` reason=unknown_sni `); err != nil || len(all) != 1 {
				t.Errorf("log lines = %q, %v, want one", all, err)
			}
		})
	}
	if !strings.Contains(readDoc(t, "how-it-works.md"), "-servername srv9.server.dc9.wanfed") {
		t.Error("how-it-works.md lacks the example with an unknown name")
	}
}

// openSSLCommand returns the words of the openssl command in a document.
func openSSLCommand(t *testing.T, file string) []string {
	t.Helper()
	line := regexp.MustCompile(`\$ (openssl s_client (?:.*\\\n)*.*) </dev/null`).FindStringSubmatch(readDoc(t, file))
	if line == nil {
		t.Fatalf("%s has no openssl command", file)
	}
	return strings.Fields(strings.ReplaceAll(line[1], "\\\n", " "))
}

// runOpenSSL runs a command and returns its output.
func runOpenSSL(t *testing.T, args []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput() // stdin is /dev/null
	return string(out), err
}
