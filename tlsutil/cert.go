// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// CertRequest describes a certificate for CreateCert.
type CertRequest struct {
	// Role, DC and Node identify the peer. All are required, except that the
	// default Node of a client or an operator is the name of the role in
	// certificates.
	Role     Role
	DC, Node string
	// Domain is the domain of the names. Default: DefaultDomain.
	Domain string
	// Days is the validity in days. A certificate that would expire after the
	// CA is an error. Default: DefaultCertDays, or the validity of the CA if
	// that is shorter.
	Days int
	// Life is the validity in place of Days. A certificate that would expire after
	// the CA expires with it. 0: Days.
	Life time.Duration
	// Enrolled marks the certificate as one of enrolment: see the function
	// Enrolled.
	Enrolled bool
	// DNSNames and IPs are additional names. A DNS name of another peer is an
	// error, and so is a wildcard that covers such a name.
	DNSNames []string
	IPs      []net.IP
	// CA signs the certificate. If its Cert contains several certificates,
	// CreateCert uses the certificate that belongs to its Key. If that is the CA
	// of a datacenter, it follows the new certificate in the result. Required.
	CA KeyPair
	// Signer signs in place of the Key of CA. Default: the Key of CA.
	Signer crypto.Signer
	// PublicKey is the key of the certificate, if it was made elsewhere: the
	// result then has no Key. Default: a new key.
	PublicKey crypto.PublicKey
	// Now is the time of creation. Default: the current time.
	Now time.Time
}

// CreateCert creates a certificate, with an ECDSA P-256 key, and the names
// <node>.<role>.<dc>.<domain> and <role>.<dc>.<domain>. The certificate of a
// server, which serves the HTTP API on a loopback address, also has the names
// localhost, 127.0.0.1 and ::1. The certificate of a server or gateway is valid
// for dialing and accepting, other certificates are valid only for dialing.
// CreateCert verifies the certificate against the CA and its name constraints.
func CreateCert(r CertRequest) (KeyPair, error) {
	if err := r.Validate(); err != nil {
		return KeyPair{}, err
	}
	r = r.withDefaults()
	ca, caKey, err := r.signer()
	if err != nil {
		return KeyPair{}, err
	}
	now := timeOf(r.Now)
	begin := now.Add(-backdate)
	if begin.Before(ca.NotBefore) {
		begin = ca.NotBefore
	}
	end, err := r.end(now, ca)
	if err != nil {
		return KeyPair{}, err
	}
	serial, err := newSerial()
	if err != nil {
		return KeyPair{}, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: r.commonName()},
		NotBefore:             begin,
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           r.Usages(),
		BasicConstraintsValid: true,
		DNSNames:              r.dnsNames(),
		IPAddresses:           r.ips(),
	}
	if r.Enrolled {
		t.Subject.OrganizationalUnit = []string{enrolledUnit}
	}
	p, err := sign(t, ca, caKey, r.PublicKey)
	if err != nil {
		return KeyPair{}, err
	}
	if err := r.check(p, ca, now); err != nil {
		return KeyPair{}, err
	}
	if !bytes.Equal(ca.RawIssuer, ca.RawSubject) {
		p.Cert = append(p.Cert, encodeCert(ca.Raw)...)
	}
	return p, nil
}

func (r CertRequest) withDefaults() CertRequest {
	if r.Node == "" && !r.Role.accepts() {
		r.Node = string(r.Role)
	}
	r.Domain = strings.ToLower(cmp.Or(r.Domain, DefaultDomain))
	return r
}

func (r CertRequest) days() int { return cmp.Or(r.Days, DefaultCertDays) }

func (r CertRequest) life() time.Duration { return cmp.Or(r.Life, time.Duration(r.days())*day) }

// Validate returns all faults of the request, except faults of the CA.
func (r CertRequest) Validate() error {
	r = r.withDefaults()
	var errs []error
	if !slices.Contains(Roles, r.Role) {
		errs = append(errs, fmt.Errorf("role: %q is not one of server, gateway, client, cli, sync, user", r.Role))
	}
	errs = append(errs, prefix("dc", CheckLabel(r.DC)), prefix("node", CheckLabel(r.Node)),
		prefix("domain", CheckDomain(r.Domain)), prefix("days", checkDays(r.days())))
	if r.Life != 0 {
		errs = append(errs, prefix("life", CheckLife(r.Life)))
	}
	if err := join(errs...); err != nil {
		return err
	}
	errs = nil
	for _, s := range r.DNSNames {
		errs = append(errs, prefix("additional DNS name", r.checkAdditional(s)))
	}
	for _, ip := range r.IPs {
		if ip.To16() == nil || ip.IsUnspecified() || ip.IsMulticast() {
			errs = append(errs, fmt.Errorf("additional IP address: %v is not the address of a machine", ip))
		}
	}
	return join(errs...)
}

// prefix adds the name of a field to an error.
func prefix(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", field, err)
}

// checkAdditional rejects an invalid DNS name, and a name that would identify
// another peer.
func (r CertRequest) checkAdditional(s string) error {
	host, wild := strings.CutPrefix(s, "*.")
	if net.ParseIP(s) != nil {
		return fmt.Errorf("%q is an IP address", s)
	}
	if err := checkHost(host); err != nil {
		return err
	}
	covers := []string{s}
	if wild { // examples of covered names: a node of a role, and a role of a datacenter
		covers = []string{"x." + host, string(RoleServer) + "." + host}
	}
	for _, c := range covers {
		p, ok := ParseName(c, r.Domain)
		if ok && (wild || p.Role != r.Role || p.DC != r.DC || p.Node != "" && p.Node != r.Node) {
			return fmt.Errorf("%q names another peer than %s; each peer needs a certificate of its own",
				s, name(r.Role, r.Node, r.DC, r.Domain))
		}
	}
	return nil
}

// checkHost returns an error unless s is a host name of RFC 1123. Upper case
// letters and underscores are permitted too.
func checkHost(s string) error { return checkDNSName(s, strings.ReplaceAll(s, "_", "x"), 253) }

// signer returns the key of the CA and the certificate of that key.
func (r CertRequest) signer() (*x509.Certificate, crypto.Signer, error) {
	certs, err := ParseCerts(r.CA.Cert)
	if err != nil {
		return nil, nil, fmt.Errorf("CA certificate %w", err)
	}
	key := r.Signer
	if key == nil {
		if key, err = ParseKey(r.CA.Key); err != nil {
			return nil, nil, fmt.Errorf("CA key %w", err)
		}
	}
	for _, c := range certs {
		switch {
		case !sameKey(c, key):
		case !c.IsCA || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
			return nil, nil, fmt.Errorf("certificate of %s is not a CA: it may not sign others", title(c))
		default:
			return c, key, nil
		}
	}
	return nil, nil,
		errors.New("CA key does not belong to the CA certificate; use two files that were created together")
}

// end returns the expiry time of the certificate, which is not after the expiry
// time of the CA.
func (r CertRequest) end(now time.Time, ca *x509.Certificate) (time.Time, error) {
	end := now.Add(r.life())
	switch left := ca.NotAfter.Sub(now); {
	case left <= 0:
		return time.Time{}, fmt.Errorf("CA %s expired at %s; create a new one with: wanfed tls ca create",
			title(ca), stamp(ca.NotAfter))
	case !end.After(ca.NotAfter):
	case r.Days != 0 && r.Life == 0:
		return time.Time{}, fmt.Errorf("days: a certificate of %d days would outlive its CA, which expires at %s; "+
			"use at most %d, or omit the days to expire with the CA", r.days(), stamp(ca.NotAfter), int(left/day))
	default:
		end = ca.NotAfter
	}
	return end, nil
}

// commonName returns a name for display, of at most 64 characters (RFC 5280).
// It does not identify the peer.
func (r CertRequest) commonName() string {
	if s := name(r.Role, r.Node, r.DC, r.Domain); len(s) <= 64 {
		return s
	}
	return r.Node
}

func (r CertRequest) dnsNames() []string {
	names := []string{name(r.Role, r.Node, r.DC, r.Domain), name(r.Role, "", r.DC, r.Domain)}
	if r.Role == RoleServer {
		names = append(names, "localhost")
	}
	for _, s := range r.DNSNames {
		if s = strings.ToLower(s); !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}

func (r CertRequest) ips() []net.IP {
	var ips []net.IP
	if r.Role == RoleServer {
		ips = []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback}
	}
	for _, ip := range r.IPs {
		if !slices.ContainsFunc(ips, ip.Equal) {
			ips = append(ips, ip)
		}
	}
	return ips
}

// check verifies the new certificate in the way in which peers verify it.
func (r CertRequest) check(p KeyPair, ca *x509.Certificate, now time.Time) error {
	chain, err := ParseCerts(p.Cert)
	if err != nil {
		return err
	}
	if _, err := verify(chain, poolOf([]*x509.Certificate{ca}), r.Role, now); err != nil {
		return fmt.Errorf("this CA cannot sign that certificate: %w", err)
	}
	_, err = PeerFromCert(chain[0], r.Domain)
	return err
}
