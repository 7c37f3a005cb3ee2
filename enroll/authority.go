// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"cmp"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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
	// Life is that of certificates of servers and gateways. 0: DefaultLife.
	Life time.Duration
	// Keys decrypts the key files. nil: with the passphrase of the systemd
	// credential.
	Keys *CAKeys
	// Command issues certificates in place of the CAs in Dir. nil: the CAs do.
	Command *SignerCommand
}

// DefaultLife is the default life of certificates of servers and gateways.
const DefaultLife = 30 * 24 * time.Hour

// CertRequest returns the request for a certificate of p, without CA and key. A
// server or gateway renews its certificate itself: see Renewer. An operator has
// one for tlsutil.DefaultCertDays days. life is that of Authority.
func CertRequest(p tlsutil.Peer, domain string, life time.Duration) tlsutil.CertRequest {
	r := tlsutil.CertRequest{Role: p.Role, DC: p.DC, Node: p.Node, Domain: domain, Enrolled: true}
	if p.Role != tlsutil.RoleOperator {
		r.Life = cmp.Or(life, DefaultLife)
	}
	return r
}

// ErrNoCA means that a server has no CA that signs the certificates in question.
var ErrNoCA = errors.New("this server cannot sign")

// errAuthority means that a server cannot use its CA. The cause may name files of
// that server, and is not for its peers.
var errAuthority = errors.New("the server cannot use its CA; its log has the cause")

// Names of the files of an Authority. A key file must have mode 0600. It may be
// encrypted: see CAKeys.
const (
	RootCert       = "root.pem"
	RootKey        = "root-key.pem"
	DatacenterCert = "dc.pem"
	DatacenterKey  = "dc-key.pem"
)

// Signer returns the certificate of the CA for tokens of a role, and its key.
func (a Authority) Signer(role string) (cert []byte, key crypto.Signer, err error) {
	cert, text, err := a.read(role)
	if err != nil {
		return nil, nil, err
	}
	if key, err = a.keys().Parse(text); err != nil {
		_, keyFile := filesOf(role)
		return nil, nil, fmt.Errorf("CA key %s %w", filepath.Join(a.Dir, keyFile), err)
	}
	return cert, key, nil
}

// filesOf returns the names of the files of the CA for tokens of a role.
func filesOf(role string) (cert, key string) {
	if role == RoleDatacenter {
		return RootCert, RootKey
	}
	return DatacenterCert, DatacenterKey
}

// read returns the contents of the files of the CA for tokens of a role.
func (a Authority) read(role string) (cert, key []byte, err error) {
	certFile, keyFile := filesOf(role)
	what := "certificates of " + a.DC
	if role == RoleDatacenter {
		what = "CAs of datacenters"
	}
	cert, err = os.ReadFile(filepath.Join(a.Dir, certFile))
	if err == nil {
		key, err = os.ReadFile(filepath.Join(a.Dir, keyFile))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("%w %s: it has no %s and %s in %s; "+
			"create the token on the machine that has them", ErrNoCA, what, certFile, keyFile, a.Dir)
	case err != nil:
		return nil, nil, fmt.Errorf("read the CA: %w", err)
	}
	return cert, key, nil
}

// Sign returns the certificate in PEM, with its intermediates, for a token of
// role and datacenter dc, with a public key. node names the holder, unless role
// is RoleDatacenter.
func (a Authority) Sign(role, dc, node string, public crypto.PublicKey) ([]byte, error) {
	if role != RoleDatacenter {
		return a.signPeer(tlsutil.Peer{Role: certRoles[role], DC: dc, Node: node}, public)
	}
	cert, signer, err := a.Signer(role)
	if err != nil {
		return nil, err
	}
	p, err := tlsutil.CreateCA(tlsutil.CARequest{
		DC: dc, Domain: a.Domain, Parent: tlsutil.KeyPair{Cert: cert}, Signer: signer, PublicKey: public,
	})
	return p.Cert, err
}

// signPeer returns the certificate of a peer, like Sign.
func (a Authority) signPeer(peer tlsutil.Peer, public crypto.PublicKey) ([]byte, error) {
	cert, signer, err := a.Signer(RoleServer) // one CA signs all roles of a datacenter
	if err != nil {
		return nil, err
	}
	r := CertRequest(peer, a.Domain, a.Life)
	r.CA, r.Signer, r.PublicKey = tlsutil.KeyPair{Cert: cert}, signer, public
	p, err := tlsutil.CreateCert(r)
	return p.Cert, err
}
