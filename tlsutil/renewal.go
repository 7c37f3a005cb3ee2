// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// Bounds of the life of a certificate of enrolment.
const (
	MinLife = 10 * time.Second
	MaxLife = maxDays * day
)

// CheckLife returns an error unless d can be the life of a certificate.
func CheckLife(d time.Duration) error {
	if d < MinLife || d > MaxLife {
		return fmt.Errorf("%v is not between %v and %d days", d, MinLife, maxDays)
	}
	return nil
}

// enrolledUnit is the organizational unit in the subject of a certificate of
// enrolment. It does not identify the peer.
const enrolledUnit = "wanfed enrolled"

// Enrolled reports whether c is a certificate of enrolment, which its holder
// renews. A certificate of another PKI is replaced by that PKI.
func Enrolled(c *x509.Certificate) bool {
	return slices.Contains(c.Subject.OrganizationalUnit, enrolledUnit)
}

// lifeOf returns the life of c, without the time by which its validity begins
// before its creation.
func lifeOf(c *x509.Certificate) time.Duration {
	life := c.NotAfter.Sub(c.NotBefore)
	if life > backdate {
		life -= backdate
	}
	return life
}

// RenewAt returns the time at which two thirds of the life of c are over.
func RenewAt(c *x509.Certificate) time.Time { return c.NotAfter.Add(-lifeOf(c) / 3) }

// Replace replaces the certificate and the key of the files by p, and uses them.
// p must identify the same peer. No connection is closed. If the process ends
// during Replace, the files belong together: the key file has both keys while
// the certificate is replaced. The key file has mode 0600. After an error, the
// old certificate stays in use.
func (i *Identity) Replace(p KeyPair) error {
	old, err := i.prepare(p)
	if err != nil {
		return fmt.Errorf("the new certificate cannot be used: %w", err)
	}
	for _, f := range []struct {
		path string
		b    []byte
		mode fs.FileMode
	}{
		{i.files.Key, slices.Concat(p.Key, old), 0o600}, {i.files.Cert, p.Cert, 0o644}, {i.files.Key, p.Key, 0o600},
	} {
		if err := atomicfile.WriteFile(f.path, f.b, f.mode); err != nil {
			return fmt.Errorf("write %s: %w; this process must be able to create files in %s", f.path, err,
				filepath.Dir(f.path))
		}
	}
	return i.Reload()
}

// prepare checks a new pair, and returns the content of the present key file.
func (i *Identity) prepare(p KeyPair) (key []byte, err error) {
	raw, err := readRaw(i.files)
	if err != nil {
		return nil, err
	}
	key, raw.cert, raw.key = raw.key, p.Cert, p.Key
	m, err := i.parse(raw)
	if err != nil {
		return nil, err
	}
	return key, m.verifySubject(filepath.Base(i.files.Cert), i.Peer(), i.domain)
}

// VerifyPeer verifies the certificate of a peer, followed by its intermediates,
// as a handshake does: its chain, its validity now, and whether it is revoked.
func (i *Identity) VerifyPeer(certs []*x509.Certificate) error {
	return i.VerifyPeerAt(certs, time.Now())
}

// VerifyPeerAt is like VerifyPeer, but verifies the validity at a time at which the
// peer has signed a text. Whether it is revoked is verified for now.
func (i *Identity) VerifyPeerAt(certs []*x509.Certificate, at time.Time) error {
	return i.verifyPeer(certs, x509.ExtKeyUsageClientAuth, at)
}

// Chain returns the certificate and its intermediates in DER. The caller must
// not change them.
func (i *Identity) Chain() [][]byte { return i.current.Load().cert.Certificate }

// Sign signs text with the key of the certificate. VerifyText verifies it.
func (i *Identity) Sign(text []byte) ([]byte, error) {
	key, ok := i.current.Load().cert.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key of the certificate cannot sign")
	}
	return SignText(key, text)
}

// SignText signs text with a key. VerifyText verifies it.
func SignText(key crypto.Signer, text []byte) ([]byte, error) {
	if _, ok := key.Public().(ed25519.PublicKey); ok {
		return key.Sign(rand.Reader, text, crypto.Hash(0))
	}
	sum := sha256.Sum256(text)
	return key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// VerifyText verifies a signature of Identity.Sign with the key of c.
func VerifyText(c *x509.Certificate, text, signature []byte) error {
	algorithm := x509.ECDSAWithSHA256
	switch c.PublicKey.(type) {
	case ed25519.PublicKey:
		algorithm = x509.PureEd25519
	case *rsa.PublicKey:
		algorithm = x509.SHA256WithRSA
	}
	return c.CheckSignature(algorithm, text, signature)
}

// Renewal is the state of the renewals of the certificate of a process.
type Renewal struct {
	Count    uint64 // renewals since the start
	Failures uint64 // failed attempts since the start
	Err      error  // of the last attempt; nil: it succeeded, or there was none
}

// ReportRenewal counts an attempt to renew the certificate. err is nil for a
// success.
func (i *Identity) ReportRenewal(err error) {
	i.renewalMu.Lock()
	defer i.renewalMu.Unlock()
	i.renewal.Err = err
	if err == nil {
		i.renewal.Count++
	} else {
		i.renewal.Failures++
	}
}

// Renewal returns the state of the renewals of the certificate. An error of the
// last attempt ends when a certificate is in use that need not be renewed yet.
func (i *Identity) Renewal() Renewal {
	i.renewalMu.Lock()
	defer i.renewalMu.Unlock()
	r := i.renewal
	if time.Now().Before(RenewAt(i.Leaf())) {
		r.Err = nil
	}
	return r
}
