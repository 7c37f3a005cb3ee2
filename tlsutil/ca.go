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
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
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
	// DC makes a CA of one datacenter: an intermediate that Parent signs, and
	// whose certificates can have only names of the datacenter. Default: a
	// self-signed CA for all datacenters.
	DC     string
	Parent KeyPair
	// Signer signs in place of the Key of Parent. PublicKey is the key of the CA,
	// if it was made elsewhere: the result then has no Key. Both are only for the
	// CA of a datacenter.
	Signer    crypto.Signer
	PublicKey crypto.PublicKey
	// Days is the validity in days. Default: DefaultCADays, or the validity of
	// Parent if that is shorter.
	Days int
	// Permit lists further DNS domains, with all names below them, and networks
	// (CIDR) that certificates of the CA may have in addition to localhost and
	// to the names of Domain or DC. A CA of a datacenter without networks
	// permits only loopback addresses. A CA for all datacenters without networks
	// permits all addresses.
	Permit []string
	// Unconstrained permits all names. It excludes DC and Permit.
	Unconstrained bool
	// Now is the time of creation. Default: the current time.
	Now time.Time
}

func (r CARequest) withDefaults() CARequest {
	r.Domain = strings.ToLower(cmp.Or(r.Domain, DefaultDomain))
	return r
}

// Validate returns all faults of the request, except faults of Parent.
func (r CARequest) Validate() error {
	r = r.withDefaults()
	errs := []error{prefix("domain", CheckDomain(r.Domain)), prefix("days", checkDays(cmp.Or(r.Days, DefaultCADays)))}
	if r.DC != "" {
		errs = append(errs, prefix("dc", CheckLabel(r.DC)))
	}
	if r.Unconstrained && (r.DC != "" || len(r.Permit) > 0) {
		errs = append(errs, errors.New("an unconstrained CA has no datacenter and no permitted names"))
	}
	for _, s := range r.Permit {
		if _, err := netip.ParsePrefix(s); err != nil {
			errs = append(errs, prefix("permitted network or domain", CheckDomain(s)))
		}
	}
	return join(errs...)
}

// constrain adds the name constraints of the request to t.
func (r CARequest) constrain(t *x509.Certificate) {
	if r.Unconstrained {
		return
	}
	names, loopback := r.Domain, []string(nil)
	if r.DC != "" {
		names, loopback = r.DC+"."+r.Domain, []string{"127.0.0.0/8", "::1/128"}
	}
	t.PermittedDNSDomainsCritical = true
	t.PermittedDNSDomains = []string{names, "localhost"}
	for _, s := range slices.Concat(loopback, r.Permit) {
		if _, network, err := net.ParseCIDR(s); err == nil {
			t.PermittedIPRanges = append(t.PermittedIPRanges, network)
		} else {
			t.PermittedDNSDomains = append(t.PermittedDNSDomains, strings.ToLower(s))
		}
	}
}

// CreateCA creates a CA: an ECDSA P-256 key and a certificate. The certificate
// of a CA for all datacenters is self-signed, and can sign CAs of datacenters. A
// CA of a datacenter can sign no CA.
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
		NotAfter:              now.Add(time.Duration(cmp.Or(r.Days, DefaultCADays)) * day),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            1,
	}
	r.constrain(t)
	if r.DC == "" {
		return sign(t, t, nil, nil)
	}
	t.Subject.CommonName = fmt.Sprintf("%.20s CA of %.20s %.8x", r.Domain, r.DC, serial.Bytes())
	t.MaxPathLen, t.MaxPathLenZero = 0, true
	return r.signByParent(t, now)
}

// signByParent creates the CA of a datacenter from template t.
func (r CARequest) signByParent(t *x509.Certificate, now time.Time) (KeyPair, error) {
	parent, key, err := CertRequest{CA: r.Parent, Signer: r.Signer}.signer()
	if err != nil {
		return KeyPair{}, err
	}
	if parent.MaxPathLenZero {
		return KeyPair{}, fmt.Errorf("CA %s may not sign the CA of a datacenter (path length 0); "+
			"create a new one with: wanfed tls ca create, and replace the old one", title(parent))
	}
	if permitted := parent.PermittedDNSDomains; len(permitted) > 0 && !slices.ContainsFunc(permitted, func(d string) bool {
		return d == r.Domain || strings.HasSuffix(r.Domain, "."+d)
	}) {
		return KeyPair{}, fmt.Errorf("CA %s does not permit names of domain %s; it permits %s", title(parent), r.Domain,
			strings.Join(permitted, ", "))
	}
	if t.NotAfter.After(parent.NotAfter) {
		if r.Days != 0 {
			return KeyPair{}, fmt.Errorf("days: a CA of %d days would outlive the CA that signs it, which expires at %s; "+
				"omit the days to expire with it", r.Days, stamp(parent.NotAfter))
		}
		t.NotAfter = parent.NotAfter
	}
	if t.NotBefore.Before(parent.NotBefore) {
		t.NotBefore = parent.NotBefore
	}
	p, err := sign(t, parent, key, r.PublicKey)
	if err != nil {
		return KeyPair{}, err
	}
	chain, err := ParseCerts(p.Cert)
	if err != nil {
		return KeyPair{}, err
	}
	if _, err := verifyFor(chain, poolOf([]*x509.Certificate{parent}), x509.ExtKeyUsageAny, now); err != nil {
		return KeyPair{}, fmt.Errorf("this CA cannot sign that CA: %w", err)
	}
	return p, nil
}

// sign creates a certificate from template t, signed with the key of parent. If
// parentKey is nil, the certificate is self-signed. If public is nil, sign
// creates the key of the certificate.
func sign(t, parent *x509.Certificate, parentKey crypto.Signer, public crypto.PublicKey) (p KeyPair, err error) {
	if public == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return KeyPair{}, fmt.Errorf("create a key: %w", err)
		}
		if p.Key, err = EncodeKey(key); err != nil {
			return KeyPair{}, err
		}
		if public = key.Public(); parentKey == nil {
			parentKey = key
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, parentKey)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign the certificate: %w", err)
	}
	p.Cert = encodeCert(der)
	return p, nil
}

// EncodeKey returns a private key in PEM (PKCS #8).
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// EncodeCert returns a certificate in PEM.
func EncodeCert(c *x509.Certificate) string { return string(encodeCert(c.Raw)) }

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
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
