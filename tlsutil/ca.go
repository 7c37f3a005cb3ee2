// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// Defaults and maximum of the validity of certificates, in days.
const (
	DefaultCADays   = 1825
	DefaultCertDays = 365
	maxDays         = 36500
)

// backdate is the time by which the validity of a certificate begins before its
// creation. Peers with slow clocks therefore accept a new certificate at once.
const backdate = 5 * time.Minute

// KeyPair is a certificate and its private key, in PEM.
type KeyPair struct{ Cert, Key []byte }

// CARequest describes a CA for CreateCA.
type CARequest struct {
	// Domain is the domain of the names in certificates. Default:
	// DefaultDomain.
	Domain string
	// Days is the validity in days. Default: DefaultCADays.
	Days int
	// NameConstraint adds a critical extension that permits only localhost,
	// Domain and DNS names below Domain. It does not limit IP addresses.
	NameConstraint bool
	// Now is the time of creation. Default: the current time.
	Now time.Time
}

func (r CARequest) withDefaults() CARequest {
	r.Domain = strings.ToLower(cmp.Or(r.Domain, DefaultDomain))
	r.Days = cmp.Or(r.Days, DefaultCADays)
	return r
}

// Validate returns all faults of the request.
func (r CARequest) Validate() error {
	r = r.withDefaults()
	return join(prefix("domain", CheckDomain(r.Domain)), prefix("days", checkDays(r.Days)))
}

// CreateCA creates a CA: an ECDSA P-256 key and a self-signed certificate. The
// certificates of the CA cannot sign other certificates.
func CreateCA(r CARequest) (KeyPair, error) {
	if err := r.Validate(); err != nil {
		return KeyPair{}, err
	}
	r = r.withDefaults()
	serial, err := newSerial()
	if err != nil {
		return KeyPair{}, err
	}
	now := timeOf(r.Now)
	t := &x509.Certificate{
		SerialNumber: serial,
		// The serial number distinguishes an old and a new CA of one domain.
		// The name has at most 53 characters. RFC 5280 permits 64.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%.27s agent CA %.8x", r.Domain, serial.Bytes())},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(time.Duration(r.Days) * day),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	if r.NameConstraint {
		t.PermittedDNSDomainsCritical = true
		t.PermittedDNSDomains = []string{r.Domain, "localhost"}
	}
	return sign(t, t, nil)
}

// sign creates a key and a certificate from template t, signed with the key of
// parent. If parentKey is nil, the certificate is self-signed.
func sign(t, parent *x509.Certificate, parentKey crypto.Signer) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("create a key: %w", err)
	}
	if parentKey == nil {
		parentKey = key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), parentKey)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign the certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("encode the key: %w", err)
	}
	return KeyPair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// newSerial returns a random number of up to 128 bits, never zero. RFC 5280
// section 4.1.2.2 requires a positive number of at most 20 octets.
func newSerial() (*big.Int, error) {
	for {
		n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
		if err != nil {
			return nil, fmt.Errorf("create a serial number: %w", err)
		}
		if n.Sign() > 0 {
			return n, nil
		}
	}
}

func checkDays(days int) error {
	if days < 1 || days > maxDays {
		return fmt.Errorf("%d is not between 1 and %d", days, maxDays)
	}
	return nil
}

// timeOf returns t, or the current time if t is zero.
func timeOf(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}
