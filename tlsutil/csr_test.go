// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"testing"
)

func TestSignCSR(t *testing.T) {
	ca := newCA(t, CARequest{Permit: []string{"example.com", "10.0.0.0/8", "127.0.0.0/8", "::1/128"}})
	req := func(f func(*CertRequest)) CertRequest {
		r := CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1", DNSNames: []string{"api.example.com"},
			IPs: []net.IP{net.IPv4(10, 0, 0, 5)}, CA: ca}
		f(&r)
		return r
	}
	p, err := CreateCSR(req(func(*CertRequest) {}))
	if err != nil {
		t.Fatalf("CreateCSR() = %v, want nil", err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(p.Cert)
	changed := append([]byte{}, block.Bytes...)
	changed[len(changed)-1] ^= 1
	csr := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: der}) }
	for _, tt := range []struct {
		name string
		csr  []byte
		req  CertRequest
		want string // "": signed
	}{
		{"the same names", p.Cert, req(func(*CertRequest) {}), ""},
		{"another node", p.Cert, req(func(r *CertRequest) { r.Node = "srv2" }), `has the name "srv1.server.dc2.wanfed"`},
		{"another role", p.Cert, req(func(r *CertRequest) { r.Role = RoleGateway }), `has the name "srv1.server.dc2.wanfed"`},
		{"another datacenter", p.Cert, req(func(r *CertRequest) { r.DC = "dc1" }), `has the name "srv1.server.dc2.wanfed"`},
		{"a further name", p.Cert, req(func(r *CertRequest) { r.DNSNames = nil }), `has the name "api.example.com"`},
		{"a further address", p.Cert, req(func(r *CertRequest) { r.IPs = nil }), "has the address 10.0.0.5"},
		{"changed", csr(changed), req(func(*CertRequest) {}), "certificate request: "},
		{"type of the key", csr(der), req(func(*CertRequest) {}), "must be ECDSA"},
		{"a certificate", ca.Cert, req(func(*CertRequest) {}), "is not a certificate request"},
		{"no role", p.Cert, req(func(r *CertRequest) { r.Role = "" }), "role"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cert, err := SignCSR(tt.csr, tt.req)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("SignCSR() = %v, want an error with %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatalf("SignCSR() = %v, want nil", err)
			}
			id, _ := loadPair(t, ca.Cert, KeyPair{cert, p.Key})
			if err := id.VerifySubject(RoleServer, "srv1", "dc2"); err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzSignCSR checks that no request panics or obtains another name.
func FuzzSignCSR(f *testing.F) {
	ca := newCA(f, CARequest{DC: "dc2", Parent: newCA(f, CARequest{})})
	r := CertRequest{Role: RoleGateway, DC: "dc2", Node: "gw1", CA: ca}
	p, err := CreateCSR(r)
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(p.Cert)
	f.Add(block.Bytes)
	f.Fuzz(func(t *testing.T, der []byte) {
		cert, err := SignCSR(pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: der}), r)
		if err != nil {
			return
		}
		if leaf := leafOf(t, KeyPair{Cert: cert}); len(leaf.DNSNames) != 2 || leaf.DNSNames[0] != "gw1.gateway.dc2.wanfed" {
			t.Errorf("SignCSR() = certificate of %v", leaf.DNSNames)
		}
	})
}
