// SPDX-License-Identifier: MPL-2.0

//go:build unix

package enroll

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// signing is an authority whose command has the CAs of dc1.
type signing struct {
	Authority
	root, ca tlsutil.KeyPair
	key      crypto.Signer
	csr      *x509.CertificateRequest
}

// newSigning returns an authority with the command argv. Environment variables of
// the test name the directory of its CAs.
func newSigning(t *testing.T, argv ...string) *signing {
	t.Helper()
	root, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{DC: "dc1", Parent: root})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("SIGNER_DIR", dir)
	for name, b := range map[string][]byte{RootCert: root.Cert, RootKey: root.Key, DatacenterCert: ca.Cert, DatacenterKey: ca.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key := newKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := tlsutil.ParseCSR(der)
	if err != nil {
		t.Fatal(err)
	}
	return &signing{Authority{
		Dir: t.TempDir(), DC: "dc1", Life: time.Hour,
		Command: NewSignerCommand(argv, func() ([]byte, error) { return root.Cert, nil }),
	}, root, ca, key, csr}
}

const opensslSigner = "../contrib/signer/openssl.sh"

// TestSignerCommand_OpenSSL issues certificates of all roles with the script of
// contrib/signer and the program openssl.
func TestSignerCommand_OpenSSL(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl")
	}
	s := newSigning(t, opensslSigner)
	roots, err := tlsutil.ParseCerts(s.root.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for role, node := range map[string]string{RoleServer: "srv2", RoleGateway: "gw2", RoleOperator: "ann", RoleDatacenter: ""} {
		t.Run(role, func(t *testing.T) {
			dc := "dc1"
			if role == RoleDatacenter {
				dc = "dc2"
			}
			if err := s.CanSign(role); err != nil {
				t.Errorf("CanSign() = %v, want nil", err)
			}
			cert, err := s.issue(t.Context(), role, dc, node, s.csr)
			if err != nil {
				t.Fatal(err)
			}
			chain, err := tlsutil.ParseCerts(cert)
			if err != nil {
				t.Fatal(err)
			}
			if role == RoleDatacenter {
				leaf, err := tlsutil.CreateCert(tlsutil.CertRequest{
					Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1", CA: tlsutil.KeyPair{Cert: cert}, Signer: s.key,
				})
				if err != nil {
					t.Fatalf("CreateCert() with the new CA = %v, want nil", err)
				}
				if chain, err = tlsutil.ParseCerts(leaf.Cert); err != nil {
					t.Fatal(err)
				}
				dc, node, role = "dc2", "srv1", RoleServer
			} else if !tlsutil.Enrolled(chain[0]) {
				t.Error("Enrolled() = false, want a certificate that renews itself")
			}
			if err := tlsutil.Verify(chain, roots, tlsutil.DefaultDomain, time.Now()); err != nil {
				t.Errorf("Verify() = %v, want nil", err)
			}
			want := tlsutil.Peer{Role: certRoles[role], DC: dc, Node: node}
			if p, err := tlsutil.PeerFromCert(chain[0], tlsutil.DefaultDomain); p != want || err != nil {
				t.Errorf("PeerFromCert() = %v, %v, want %v", p, err, want)
			}
		})
	}
}

// TestSignerCommand_Refuses checks that a certificate that was not requested is
// not used.
func TestSignerCommand_Refuses(t *testing.T) {
	s := newSigning(t, "/bin/sh", "-c", "cat $SIGNER_DIR/output")
	otherRoot, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	otherCA, err := tlsutil.CreateCA(tlsutil.CARequest{DC: "dc1", Parent: otherRoot})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(r *tlsutil.CertRequest)
		want   string // "": the certificate is used
	}{
		"as requested":   {func(*tlsutil.CertRequest) {}, ""},
		"shorter life":   {func(r *tlsutil.CertRequest) { r.Life = time.Minute }, ""},
		"longer life":    {func(r *tlsutil.CertRequest) { r.Life = 2 * time.Hour }, "it expires at"},
		"other key":      {func(r *tlsutil.CertRequest) { r.PublicKey = newKey(t).Public() }, "another public key"},
		"other node":     {func(r *tlsutil.CertRequest) { r.Node = "gw3" }, "its DNS names are"},
		"other role":     {func(r *tlsutil.CertRequest) { r.Role = tlsutil.RoleOperator }, "extended key usages"},
		"more names":     {func(r *tlsutil.CertRequest) { r.DNSNames = []string{"localhost"} }, "its DNS names are"},
		"more addresses": {func(r *tlsutil.CertRequest) { r.IPs = []net.IP{net.IPv4(127, 0, 0, 1)} }, "its addresses are"},
		"no unit":        {func(r *tlsutil.CertRequest) { r.Enrolled = false }, "organizational units"},
		"untrusted CA":   {func(r *tlsutil.CertRequest) { r.CA, r.Signer = otherCA, nil }, "is signed by another CA"},
		"other validity": {func(r *tlsutil.CertRequest) { r.Now = time.Now().Add(10 * time.Minute) }, "it expires at"},
	} {
		t.Run(name, func(t *testing.T) {
			r := CertRequest(tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw2"}, "", time.Hour)
			r.CA, r.PublicKey = s.ca, s.csr.PublicKey
			c.change(&r)
			p, err := tlsutil.CreateCert(r)
			if err != nil {
				t.Fatal(err)
			}
			s.refuses(t, RoleGateway, p.Cert, c.want)
		})
	}
	// The certificate of a CA, and what is none.
	s.refuses(t, RoleGateway, s.ca.Cert, "another public key")
	s.refuses(t, RoleGateway, s.ca.Key, "is a private key")
	s.refuses(t, RoleGateway, nil, "is not PEM")
	s.refuses(t, RoleGateway, slices.Repeat(s.ca.Cert, 6), "has 6 certificates")
	s.refuses(t, RoleGateway, make([]byte, maxCommandOutput+1), "more than 65536 bytes")
	for name, c := range map[string]struct {
		r    tlsutil.CARequest
		want string
	}{
		"as requested":     {tlsutil.CARequest{}, ""},
		"shorter":          {tlsutil.CARequest{Days: 2}, ""},
		"other datacenter": {tlsutil.CARequest{DC: "dc3"}, "name constraints"},
		"more networks":    {tlsutil.CARequest{Permit: []string{"10.0.0.0/8"}}, "name constraints"},
		"other domain":     {tlsutil.CARequest{Permit: []string{"example.com"}}, "name constraints"},
	} {
		t.Run("CA "+name, func(t *testing.T) {
			if c.r.DC == "" {
				c.r.DC = "dc2"
			}
			c.r.Parent, c.r.PublicKey = s.root, s.csr.PublicKey
			p, err := tlsutil.CreateCA(c.r)
			if err != nil {
				t.Fatal(err)
			}
			s.refuses(t, RoleDatacenter, p.Cert, c.want)
		})
	}
	leaf, err := tlsutil.CreateCert(tlsutil.CertRequest{
		Role: tlsutil.RoleServer, DC: "dc1", Node: "n", CA: s.ca, PublicKey: s.csr.PublicKey,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.refuses(t, RoleDatacenter, leaf.Cert, "is not a CA")
}

// refuses checks what happens if the output of the command is output.
func (s *signing) refuses(t *testing.T, role string, output []byte, want string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(os.Getenv("SIGNER_DIR"), "output"), output, 0o600); err != nil {
		t.Fatal(err)
	}
	dc, node := "dc1", "gw2"
	if role == RoleDatacenter {
		dc, node = "dc2", ""
	}
	cert, err := s.issue(t.Context(), role, dc, node, s.csr)
	switch {
	case want == "" && err != nil:
		t.Errorf("issue() = %v, want nil", err)
	case want != "" && (cert != nil || !errors.Is(err, errSigner) || !strings.Contains(err.Error(), want)):
		t.Errorf("issue() = %q, %v, want an error with %q", cert, err, want)
	case want != "" && strings.Contains(err.Error(), "\n"):
		t.Errorf("issue() = %q, want one line", err)
	}
}

// TestSignerCommand_Slots checks that no more than maxCommands run, that a client
// does not wait longer than its context, and that a run frees its slot.
func TestSignerCommand_Slots(t *testing.T) {
	s := newSigning(t, "/bin/sh", "-c", "exec sleep 600")
	for range maxCommands {
		s.Command.slots <- struct{}{} // as a run does
	}
	short, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	_, err := s.issue(short, RoleGateway, "dc1", "gw2", s.csr)
	if err == nil || !strings.Contains(err.Error(), "4 runs of it have not ended") {
		t.Errorf("issue() with all slots taken = %v, want an error about them", err)
	}
	<-s.Command.slots
	ending, end := context.WithTimeout(t.Context(), 50*time.Millisecond) // during the program
	defer end()
	_, err = s.issue(ending, RoleGateway, "dc1", "gw2", s.csr)
	if !errors.Is(err, errSigner) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("issue() = %v, want the end of the context", err)
	}
	if n := len(s.Command.slots); n != maxCommands-1 {
		t.Errorf("%d slots are taken after the run, want %d", n, maxCommands-1)
	}
}

// TestRedeem_SignerCommand enrolls a gateway at a server without keys of a CA.
func TestRedeem_SignerCommand(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl")
	}
	r := newRig(t)
	t.Setenv("SIGNER_DIR", r.service.cfg.Authority.Dir)
	r.service.cfg.Authority.Dir = t.TempDir()
	r.service.cfg.Authority.Command = NewSignerCommand([]string{opensslSigner}, r.service.cfg.CAs)
	for _, c := range []struct{ dc, role string }{{"dc1", RoleGateway}, {"dc2", RoleDatacenter}} {
		if _, err := r.redeem(r.token(c.dc, c.role, time.Minute, 1)); err != nil {
			t.Errorf("Redeem() for %s in %s = %v, want nil", c.role, c.dc, err)
		}
	}
}
