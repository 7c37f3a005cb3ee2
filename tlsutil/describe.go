// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"
)

// Description describes a certificate for display. Times are in UTC.
type Description struct {
	// Role, DC, Node and Domain identify the peer. They are empty for a
	// certificate that does not identify a peer. For such a certificate,
	// NoPeer has the reason, unless the certificate is a CA without peer names.
	Role   Role   `json:"role,omitempty"`
	DC     string `json:"datacenter,omitempty"`
	Node   string `json:"node,omitempty"`
	Domain string `json:"domain,omitempty"`
	NoPeer string `json:"not_a_peer,omitempty"`

	CA          bool      `json:"ca"`
	Permitted   []string  `json:"permitted,omitempty"` // DNS domains in the name constraints of a CA
	DNSNames    []string  `json:"dns_names"`
	IPs         []string  `json:"ips"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	DaysLeft    int       `json:"days_left"` // whole days until NotAfter, negative after it
	Expired     bool      `json:"expired"`
	NotYetValid bool      `json:"not_yet_valid"`
	Subject     string    `json:"subject"`
	Issuer      string    `json:"issuer"`
	SelfSigned  bool      `json:"self_signed"`
	Serial      string    `json:"serial"` // hexadecimal
	KeyType     string    `json:"key_type"`
	Usage       []string  `json:"usage"`
	SHA256      string    `json:"sha256"` // checksum of the certificate, hexadecimal
}

// Describe describes c at time now. If domain is empty, Describe derives it
// from the names of c.
func Describe(c *x509.Certificate, domain string, now time.Time) Description {
	d := Description{
		CA: c.IsCA, Permitted: c.PermittedDNSDomains,
		DNSNames: append([]string{}, c.DNSNames...), IPs: []string{},
		NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(),
		Expired: now.After(c.NotAfter), NotYetValid: now.Before(c.NotBefore),
		Subject: c.Subject.String(), Issuer: c.Issuer.String(), Serial: c.SerialNumber.Text(16),
		SelfSigned: c.CheckSignatureFrom(c) == nil,
		KeyType:    c.PublicKeyAlgorithm.String(), Usage: usage(c),
	}
	left := c.NotAfter.Sub(now)
	d.DaysLeft = int(left / day)
	if left < 0 && left%day != 0 {
		d.DaysLeft--
	}
	sum := sha256.Sum256(c.Raw)
	d.SHA256 = hex.EncodeToString(sum[:])
	for _, ip := range c.IPAddresses {
		d.IPs = append(d.IPs, ip.String())
	}
	if domain == "" {
		domain = suggestedDomain(c)
	}
	p, err := PeerFromCert(c, domain)
	switch {
	case err == nil:
		d.Role, d.DC, d.Node, d.Domain = p.Role, p.DC, p.Node, domain
	case !errors.Is(err, ErrNoPeerName):
		d.NoPeer = err.Error()
	case !c.IsCA:
		d.NoPeer = ErrNoPeerName.Error()
	}
	return d
}

// suggestedDomain returns the domain of the first name of the form
// <node>.<role>.<dc>.<domain>, or DefaultDomain.
func suggestedDomain(c *x509.Certificate) string {
	for _, s := range c.DNSNames {
		labels := strings.SplitN(strings.ToLower(s), ".", 4)
		if len(labels) == 4 && slices.Contains(Roles, Role(labels[1])) {
			return labels[3]
		}
	}
	return DefaultDomain
}

func usage(c *x509.Certificate) []string {
	u := []string{}
	for _, k := range []struct {
		bit  x509.KeyUsage
		name string
	}{
		{x509.KeyUsageDigitalSignature, "digital signature"},
		{x509.KeyUsageKeyEncipherment, "key encipherment"},
		{x509.KeyUsageCertSign, "certificate sign"},
		{x509.KeyUsageCRLSign, "crl sign"},
	} {
		if c.KeyUsage&k.bit != 0 {
			u = append(u, k.name)
		}
	}
	for _, e := range c.ExtKeyUsage {
		switch e {
		case x509.ExtKeyUsageServerAuth:
			u = append(u, "server authentication")
		case x509.ExtKeyUsageClientAuth:
			u = append(u, "client authentication")
		case x509.ExtKeyUsageAny:
			u = append(u, "any")
		default:
			u = append(u, "other")
		}
	}
	return u
}

// Verify verifies chain, a certificate and its intermediates, against cas at
// time now. As in handshakes, the certificate must be valid for all uses of its
// role. A certificate that does not identify a peer is verified for any use.
func Verify(chain, cas []*x509.Certificate, domain string, now time.Time) error {
	if domain == "" {
		domain = suggestedDomain(chain[0])
	}
	p, err := PeerFromCert(chain[0], domain)
	if err == nil {
		_, err = verify(chain, poolOf(cas), p.Role, now)
	} else {
		_, err = verifyFor(chain, poolOf(cas), x509.ExtKeyUsageAny, now)
	}
	return err
}
