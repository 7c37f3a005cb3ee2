// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// typeCSR is the type of the PEM block of a certificate request.
const typeCSR = "CERTIFICATE REQUEST"

// CreateCSR creates an ECDSA P-256 key, and a certificate request (PKCS #10) in
// place of a certificate, with the names that CreateCert would use. The fields
// of r about the CA and the validity are not used.
func CreateCSR(r CertRequest) (KeyPair, error) {
	if err := r.Validate(); err != nil {
		return KeyPair{}, err
	}
	r = r.withDefaults()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("create a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: r.commonName()}, DNSNames: r.dnsNames(), IPAddresses: r.ips(),
	}, key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("create the certificate request: %w", err)
	}
	p := KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: der})}
	p.Key, err = EncodeKey(key)
	return p, err
}

// SignCSR creates the certificate of r for the key of a certificate request in
// PEM. A name in the request that the certificate of r would not have is an
// error.
func SignCSR(text []byte, r CertRequest) (cert []byte, err error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != typeCSR {
		return nil, fmt.Errorf("is not a certificate request: no PEM block %q", typeCSR)
	}
	csr, err := ParseCSR(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	d := r.withDefaults()
	if err := CheckCSRNames(csr, d.dnsNames(), d.ips()); err != nil {
		return nil, err
	}
	r.PublicKey = csr.PublicKey
	p, err := CreateCert(r)
	return p.Cert, err
}

// CheckCSRNames returns an error if csr has a name that is not in names, or an
// address that is not in ips.
func CheckCSRNames(csr *x509.CertificateRequest, names []string, ips []net.IP) error {
	for _, name := range csr.DNSNames {
		if !slices.Contains(names, strings.ToLower(name)) {
			return fmt.Errorf("the certificate request has the name %.100q, which is not one of %s", name, strings.Join(names, ", "))
		}
	}
	for _, ip := range csr.IPAddresses {
		if !slices.ContainsFunc(ips, ip.Equal) {
			return fmt.Errorf("the certificate request has the address %v, which the certificate may not have", ip)
		}
	}
	if len(csr.URIs)+len(csr.EmailAddresses) > 0 {
		return errors.New("the certificate request has names other than DNS names and addresses")
	}
	return nil
}

// ParseCSR parses a PKCS #10 request in DER, and verifies the signature of its
// holder and the type of its key. The caller decides about its names.
func ParseCSR(der []byte) (*x509.CertificateRequest, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	switch key := csr.PublicKey.(type) {
	case ed25519.PublicKey:
		return csr, nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
			return csr, nil
		}
	}
	return nil, fmt.Errorf("certificate request: key of type %v: must be ECDSA P-256 or P-384, or Ed25519", csr.PublicKeyAlgorithm)
}
