// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wanfed/wanfed/tlsutil"
)

// Authority has the CAs of a server in the files of a directory. RootCert and
// RootKey sign the CAs of new datacenters. DatacenterCert and DatacenterKey sign
// certificates of the local datacenter. A server without a pair of files does not
// sign such certificates. The files are read for each certificate.
type Authority struct {
	Dir    string
	DC     string // the local datacenter
	Domain string // of names; empty: tlsutil.DefaultDomain
}

// Names of the files of an Authority. A key file must have mode 0600.
const (
	RootCert       = "root.pem"
	RootKey        = "root-key.pem"
	DatacenterCert = "dc.pem"
	DatacenterKey  = "dc-key.pem"
)

// Signer returns the certificate of the CA for tokens of a role, and its key.
func (a Authority) Signer(role string) (cert []byte, key crypto.Signer, err error) {
	certFile, keyFile, what := DatacenterCert, DatacenterKey, "certificates of "+a.DC
	if role == RoleDatacenter {
		certFile, keyFile, what = RootCert, RootKey, "CAs of datacenters"
	}
	cert, err = os.ReadFile(filepath.Join(a.Dir, certFile))
	var text []byte
	if err == nil {
		text, err = os.ReadFile(filepath.Join(a.Dir, keyFile))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("this server cannot sign %s: it has no %s and %s in %s; "+
			"create the token on the machine that has them", what, certFile, keyFile, a.Dir)
	case err != nil:
		return nil, nil, fmt.Errorf("read the CA: %w", err)
	}
	if key, err = tlsutil.ParseKey(text); err != nil {
		return nil, nil, fmt.Errorf("CA key %s %w", keyFile, err)
	}
	return cert, key, nil
}

// Sign returns the certificate in PEM, with its intermediates, for a token of
// role and datacenter dc, with a public key. node names the holder, unless role
// is RoleDatacenter.
func (a Authority) Sign(role, dc, node string, public crypto.PublicKey) ([]byte, error) {
	cert, signer, err := a.Signer(role)
	if err != nil {
		return nil, err
	}
	var p tlsutil.KeyPair
	if role == RoleDatacenter {
		p, err = tlsutil.CreateCA(tlsutil.CARequest{
			DC: dc, Domain: a.Domain, Parent: tlsutil.KeyPair{Cert: cert}, Signer: signer, PublicKey: public,
		})
	} else {
		p, err = tlsutil.CreateCert(tlsutil.CertRequest{
			Role: certRoles[role], DC: dc, Node: node, Domain: a.Domain,
			CA: tlsutil.KeyPair{Cert: cert}, Signer: signer, PublicKey: public,
		})
	}
	return p.Cert, err
}

// parseCSR returns the public key of a PKCS #10 request, which its holder has
// signed.
func parseCSR(der []byte) (crypto.PublicKey, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	switch key := csr.PublicKey.(type) {
	case ed25519.PublicKey:
		return key, nil
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
			return key, nil
		}
	}
	return nil, fmt.Errorf("certificate request: key of type %v: must be ECDSA P-256 or P-384, or Ed25519", csr.PublicKeyAlgorithm)
}
