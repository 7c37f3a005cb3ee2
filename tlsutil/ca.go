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

// Defaults and limit of the validity of certificates, in days.
const (
	DefaultCADays   = 1825
	DefaultCertDays = 365
	maxDays         = 36500
)

// backdate is the time by which the start of validity precedes the creation of
// a certificate, for slow clocks.
const backdate = 5 * time.Minute

// KeyPair is a certificate and its private key, PEM.
type KeyPair struct{ Cert, Key []byte }

// CARequest describes a CA for CreateCA.
type CARequest struct {
	// Domain of the names in the CA's certificates. Default: DefaultDomain.
	Domain string
	// Days is the validity in days. Default: DefaultCADays.
	Days int
	// NameConstraint limits the CA, by a critical extension, to localhost and
	// the DNS names at or below Domain. IP addresses are not limited, so
	// certificates may have any.
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

// CreateCA creates a CA: an ECDSA P-256 key and a self-signed certificate. Its
// certificates cannot sign others.
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
		// The name has at most 53 characters. RFC 5280 allows 64.
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

// sign creates a key and the certificate of t, signed with the key of parent.
// If parentKey is nil, the certificate is self-signed.
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

// newSerial returns 128 random bits, never zero. RFC 5280 section 4.1.2.2
// requires a positive number of at most 20 octets.
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

func timeOf(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}
