// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// issuedSlack is the difference between the clocks of this machine and of a
// signer that issues a certificate, by which the certificate may be too long.
const issuedSlack = time.Minute

// maxBackdate is the time by which another signer may backdate a certificate.
const maxBackdate = time.Hour

// Subject returns the names that the certificate of r has: the common name, the
// DNS names and the addresses. unit is the organizational unit, or empty.
func (r CertRequest) Subject() (commonName, unit string, names []string, ips []net.IP) {
	r = r.withDefaults()
	if r.Enrolled {
		unit = enrolledUnit
	}
	return r.commonName(), unit, r.dnsNames(), r.ips()
}

// Usages returns the extended key usages of the certificate of r.
func (r CertRequest) Usages() []x509.ExtKeyUsage {
	if r.Role.accepts() {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
}

// CheckIssued returns an error unless chain, the work of another signer, is the
// certificate of r for its PublicKey, below one of cas: the same names, usages and
// organizational unit, a life that is not longer, and nothing else that has an
// effect. It returns the certificate and its intermediates in PEM.
func (r CertRequest) CheckIssued(chain, cas []*x509.Certificate) ([]byte, error) {
	r = r.withDefaults()
	now, leaf := timeOf(r.Now), chain[0]
	_, unit, names, ips := r.Subject()
	if err := join(checkIssuedKey(leaf, r.PublicKey), checkIssuedLife(leaf, now, r.life())); err != nil {
		return nil, err
	}
	lower := make([]string, len(leaf.DNSNames))
	for i, s := range leaf.DNSNames {
		lower[i] = strings.ToLower(s)
	}
	switch {
	case leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return nil, errors.New("it may sign other certificates")
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return nil, errors.New("it has no key usage digitalSignature")
	case !sameSet(leaf.ExtKeyUsage, r.Usages()) || len(leaf.UnknownExtKeyUsage) > 0:
		return nil, fmt.Errorf("its extended key usages are not exactly %s", usageText(r.Usages()))
	case !sameSet(lower, names):
		return nil, fmt.Errorf("its DNS names are %.300q, want exactly %s", lower, strings.Join(names, ", "))
	case len(leaf.IPAddresses) != len(ips) || slices.ContainsFunc(leaf.IPAddresses, func(ip net.IP) bool {
		return !slices.ContainsFunc(ips, ip.Equal)
	}):
		return nil, fmt.Errorf("its addresses are %v, want exactly %v", leaf.IPAddresses, ips)
	case len(leaf.URIs)+len(leaf.EmailAddresses) > 0:
		return nil, errors.New("it has names other than DNS names and addresses")
	case unit != strings.Join(leaf.Subject.OrganizationalUnit, ","):
		return nil, fmt.Errorf("its organizational units are %.100q, want exactly %q", leaf.Subject.OrganizationalUnit, unit)
	}
	if _, err := verify(chain, poolOf(cas), r.Role, now); err != nil {
		return nil, err
	}
	p, err := PeerFromCert(leaf, r.Domain)
	if err != nil {
		return nil, err
	}
	if want := (Peer{Role: r.Role, DC: r.DC, Node: r.Node}); p != want {
		return nil, fmt.Errorf("it identifies %v, not %v", p, want)
	}
	return encodeIssued(chain), nil
}

// Permitted returns the DNS domains and networks of the name constraints of r.
func (r CARequest) Permitted() (domains []string, networks []*net.IPNet) {
	var t x509.Certificate
	r.withDefaults().constrain(&t)
	return t.PermittedDNSDomains, t.PermittedIPRanges
}

// CheckIssued is like CertRequest.CheckIssued, for the CA of a datacenter.
func (r CARequest) CheckIssued(chain, cas []*x509.Certificate) ([]byte, error) {
	r = r.withDefaults()
	now, ca := timeOf(r.Now), chain[0]
	life := time.Duration(cmp.Or(r.Days, DefaultCADays)) * day
	if err := join(checkIssuedKey(ca, r.PublicKey), checkIssuedLife(ca, now, life)); err != nil {
		return nil, err
	}
	const use = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	domains, networks := r.Permitted()
	var got, want []string
	for _, n := range ca.PermittedIPRanges {
		got = append(got, n.String())
	}
	for _, n := range networks {
		want = append(want, n.String())
	}
	switch {
	case !ca.IsCA || ca.KeyUsage&use != use:
		return nil, errors.New("it is not a CA with the key usages keyCertSign and cRLSign")
	case ca.MaxPathLen != 0 || !ca.MaxPathLenZero:
		return nil, errors.New("its path length is not 0: it could sign further CAs")
	case !ca.PermittedDNSDomainsCritical || !sameSet(ca.PermittedDNSDomains, domains) || !sameSet(got, want):
		return nil, fmt.Errorf("its critical name constraints permit %.300q, want exactly %s",
			slices.Concat(ca.PermittedDNSDomains, got), strings.Join(slices.Concat(domains, want), ", "))
	case len(ca.DNSNames)+len(ca.IPAddresses)+len(ca.URIs)+len(ca.EmailAddresses) > 0:
		return nil, errors.New("it has alternative names, which a CA must not have")
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := verifyFor(chain, poolOf(cas), use, now); err != nil {
			return nil, err
		}
	}
	return encodeIssued(chain), nil
}

func checkIssuedKey(c *x509.Certificate, public any) error {
	want, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return fmt.Errorf("public key: %w", err)
	}
	if !bytes.Equal(want, c.RawSubjectPublicKeyInfo) {
		return errors.New("it has another public key than the certificate request")
	}
	return nil
}

func checkIssuedLife(c *x509.Certificate, now time.Time, life time.Duration) error {
	if end := now.Add(life + issuedSlack); c.NotAfter.After(end) {
		return fmt.Errorf("it expires at %s, after %s", stamp(c.NotAfter), stamp(end))
	}
	if c.NotBefore.Before(now.Add(-maxBackdate)) { // it would renew at two thirds of a longer life
		return fmt.Errorf("it is valid from %s, more than %v ago", stamp(c.NotBefore), maxBackdate)
	}
	return nil
}

// sameSet reports whether a and b have the same elements, in any order.
func sameSet[T cmp.Ordered](a, b []T) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

func usageText(usages []x509.ExtKeyUsage) string {
	if len(usages) == 1 {
		return "clientAuth"
	}
	return "serverAuth and clientAuth"
}

// encodeIssued returns a chain in PEM without self-signed CAs.
func encodeIssued(chain []*x509.Certificate) (out []byte) {
	for _, c := range chain {
		if !bytes.Equal(c.RawIssuer, c.RawSubject) {
			out = append(out, encodeCert(c.Raw)...)
		}
	}
	return out
}
