// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
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

// Defaults and bounds of how long certificates are valid, in days.
const (
	DefaultCADays   = 1825
	DefaultCertDays = 365
	maxDays         = 36500
)

// backdate is how far before its making a certificate is valid, for clocks that are slow.
const backdate = 5 * time.Minute

// Pair is a certificate and its private key, PEM.
type KeyPair struct{ Cert, Key []byte }

// CARequest says what CA to make.
type CARequest struct {
	// Domain of the names that its certificates will have. Default DefaultDomain.
	Domain string
	// Days it is valid. 0 means DefaultCADays.
	Days int
	// NameConstraint forbids the CA, by a critical extension, to vouch for DNS names other than localhost and those at or
	// below Domain. IP addresses stay free, so that certificates can have any additional ones.
	NameConstraint bool
	// Now is the time of making. Zero means the clock's.
	Now time.Time
}

func (r CARequest) withDefaults() CARequest {
	if r.Domain == "" {
		r.Domain = DefaultDomain
	}
	if r.Days == 0 {
		r.Days = DefaultCADays
	}
	r.Domain = strings.ToLower(r.Domain)
	return r
}

// Validate returns all that is wrong with the request.
func (r CARequest) Validate() error {
	r = r.withDefaults()
	return join(prefix("domain", CheckDomain(r.Domain)), prefix("days", checkDays(r.Days)))
}

// CreateCA makes a CA: an ECDSA P-256 key and a self-signed certificate, whose certificates can sign no others.
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
		// With the serial, so that an old and a new CA of one domain can be told apart. At most 53 characters; RFC 5280 allows 64.
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

// sign makes a key and t's certificate, signed by parent's key; by its own when that is nil.
func sign(t, parent *x509.Certificate, parentKey crypto.Signer) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("make a key: %w", err)
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

// newSerial is 128 random bits, never zero (RFC 5280 section 4.1.2.2 demands a positive number of at most 20 octets).
func newSerial() (*big.Int, error) {
	for {
		n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
		if err != nil {
			return nil, fmt.Errorf("make a serial number: %w", err)
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
