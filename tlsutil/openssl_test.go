// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpenSSL checks that OpenSSL accepts the CA, the certificates and the
// keys, with strict checks of RFC 5280.
func TestOpenSSL(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	run := func(t *testing.T, args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), openssl, args...).CombinedOutput()
		return string(out), err
	}
	long := strings.Repeat("n", 63)
	for _, constrained := range []bool{false, true} {
		dir := t.TempDir()
		ca := newCA(t, CARequest{Unconstrained: !constrained})
		caFile := filepath.Join(dir, "ca.pem")
		if err := ca.Save(caFile, filepath.Join(dir, "ca-key.pem")); err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprintf("constrained=%v/ca", constrained), func(t *testing.T) {
			if out, err := run(t, "verify", "-x509_strict", "-check_ss_sig", "-CAfile", caFile, caFile); err != nil {
				t.Errorf("openssl verify = %v, want nil: %s", err, out)
			}
			out, _ := run(t, "x509", "-in", caFile, "-noout", "-text")
			checkContains(t, out, "CA:TRUE, pathlen:1", "Digital Signature, Certificate Sign, CRL Sign",
				"ASN1 OID: prime256v1", "ecdsa-with-SHA256")
			if strings.Contains(out, "X509v3 Name Constraints: critical") != constrained {
				t.Errorf("openssl x509 prints %s, want critical name constraints: %t", out, constrained)
			}
		})
		for _, r := range []CertRequest{
			{Role: RoleServer, DC: "dc1", Node: "srv1", IPs: []net.IP{net.ParseIP("10.0.0.1")},
				DNSNames: []string{"api.wanfed"}},
			{Role: RoleGateway, DC: "dc1", Node: "gw1"},
			{Role: RoleGateway, DC: long, Node: long},
			{Role: RoleClient, DC: "dc1"},
			{Role: RoleOperator, DC: "dc1"},
		} {
			r.CA = ca
			t.Run(fmt.Sprintf("constrained=%v/%s", constrained, r.Role), func(t *testing.T) {
				p := newCert(t, r)
				cert, key, err := p.SaveNumbered(filepath.Join(dir, "x"))
				if err != nil {
					t.Fatal(err)
				}
				purposes := map[string]bool{"sslclient": true, "sslserver": r.Role.accepts()}
				for purpose, ok := range purposes {
					out, err := run(t, "verify", "-x509_strict", "-purpose", purpose, "-CAfile", caFile, cert)
					if (err == nil) != ok {
						t.Errorf("openssl verify -purpose %s = %v, want success: %t: %s", purpose, err, ok, out)
					}
				}
				leaf := leafOf(t, p)
				out, err := run(t, "verify", "-x509_strict", "-CAfile", caFile, "-verify_hostname",
					leaf.DNSNames[0], cert)
				if err != nil {
					t.Errorf("openssl verify -verify_hostname %s = %v, want nil: %s", leaf.DNSNames[0], err, out)
				}
				out, _ = run(t, "x509", "-in", cert, "-noout", "-text")
				var sans []string
				for _, s := range leaf.DNSNames {
					sans = append(sans, "DNS:"+s)
				}
				if r.Role == RoleServer {
					sans = append(sans, "IP Address:127.0.0.1", "IP Address:0:0:0:0:0:0:0:1")
				}
				checkContains(t, out, "CA:FALSE", strings.Join(sans, ", "),
					"X509v3 Key Usage: critical\n                Digital Signature\n", "TLS Web Client Authentication")
				pub, err := run(t, "pkey", "-in", key, "-pubout")
				if err != nil {
					t.Errorf("openssl pkey = %v, want nil: %s", err, pub)
				}
				if got, err := run(t, "x509", "-in", cert, "-noout", "-pubkey"); err != nil || got != pub {
					t.Errorf("public key of the certificate = %s, %v, want %s", got, err, pub)
				}
			})
		}
	}
}

func checkContains(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("openssl prints %s, want %q", out, w)
		}
	}
}
