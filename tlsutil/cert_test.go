// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

func newCA(tb testing.TB, r CARequest) KeyPair {
	tb.Helper()
	p, err := CreateCA(r)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func newCert(tb testing.TB, r CertRequest) KeyPair {
	tb.Helper()
	p, err := CreateCert(r)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func leafOf(tb testing.TB, p KeyPair) *x509.Certificate {
	tb.Helper()
	certs, err := ParseCerts(p.Cert)
	if err != nil {
		tb.Fatal(err)
	}
	return certs[0]
}

func TestCreateCA(t *testing.T) {
	now := time.Now()
	p := newCA(t, CARequest{Now: now})
	c := leafOf(t, p)
	key, err := ParseKey(p.Key)
	if err != nil {
		t.Fatal(err)
	}
	if k, ok := key.(*ecdsa.PrivateKey); !ok || k.Curve != elliptic.P256() || !sameKey(c, key) {
		t.Errorf("key = %T, want the P-256 key of the certificate", key)
	}
	if !c.IsCA || c.MaxPathLen != 1 || !c.BasicConstraintsValid {
		t.Errorf("IsCA = %t, MaxPathLen = %d, want true, 1", c.IsCA, c.MaxPathLen)
	}
	if want := x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature; c.KeyUsage != want {
		t.Errorf("KeyUsage = %b, want %b", c.KeyUsage, want)
	}
	if n := c.SerialNumber.BitLen(); n > 128 || n < 64 {
		t.Errorf("bits of the serial number = %d, want 64 to 128", n)
	}
	if d := c.NotAfter.Sub(now); (d - DefaultCADays*day).Abs() > time.Second {
		t.Errorf("validity = %v, want %v", d, DefaultCADays*day)
	}
	if d := now.Sub(c.NotBefore); d < time.Minute || d > 10*time.Minute {
		t.Errorf("time before creation = %v, want about 5 minutes", d)
	}
	if u := leafOf(t, newCA(t, CARequest{Unconstrained: true})); len(u.PermittedDNSDomains) > 0 {
		t.Errorf("name constraints of an unconstrained CA = %v, want none", u.PermittedDNSDomains)
	}
	other := leafOf(t, newCA(t, CARequest{}))
	if other.SerialNumber.Cmp(c.SerialNumber) == 0 || other.Subject.String() == c.Subject.String() {
		t.Errorf("two CAs have serial numbers %v and %v, subjects %v and %v, want different ones",
			c.SerialNumber, other.SerialNumber, c.Subject, other.Subject)
	}
	c = leafOf(t, newCA(t, CARequest{Domain: "Corp.Example", Days: 1}))
	want := []string{"corp.example", "localhost"}
	if !c.PermittedDNSDomainsCritical || !reflect.DeepEqual(c.PermittedDNSDomains, want) {
		t.Errorf("name constraints = %v, critical %t, want %v, true", c.PermittedDNSDomains,
			c.PermittedDNSDomainsCritical, want)
	}
}

func TestCreateCA_InvalidRequest(t *testing.T) {
	root := newCA(t, CARequest{})
	dc3 := newCA(t, CARequest{DC: "dc3", Parent: root})
	for _, tt := range []struct {
		r    CARequest
		want string
	}{
		{CARequest{Domain: "a..b"}, "domain: "},
		{CARequest{Domain: "a/b"}, "domain: "},
		{CARequest{Days: -1}, "days: -1 is not between"},
		{CARequest{DC: "Dc.3"}, `dc: "Dc.3" is not a DNS label`},
		{CARequest{Permit: []string{"10.0.0.0/40"}}, "permitted network or domain: "},
		{CARequest{DC: "dc3", Unconstrained: true}, "an unconstrained CA has no datacenter"},
		{CARequest{DC: "dc3"}, "CA certificate is not PEM"},
		{CARequest{DC: "dc3", Parent: dc3}, "may not sign the CA of a datacenter"},
		{CARequest{DC: "dc3", Parent: root, Days: 3000}, "would outlive the CA that signs it"},
		{CARequest{DC: "dc3", Domain: "consul", Parent: root}, "does not permit names of domain consul"},
		{CARequest{Days: 36501, Domain: "_"}, `; days: 36501 is not`},
	} {
		if _, err := CreateCA(tt.r); !matches(err, tt.want) {
			t.Errorf("CreateCA(%+v) = %v, want an error with %q", tt.r, err, tt.want)
		}
	}
}

func TestCreateCert(t *testing.T) {
	ca := newCA(t, CARequest{Unconstrained: true})
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, tt := range []struct {
		r     CertRequest
		names string
		ips   string
		uses  []x509.ExtKeyUsage
	}{
		{CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1"},
			"srv1.server.dc1.wanfed server.dc1.wanfed localhost", "127.0.0.1 ::1", both},
		{CertRequest{Role: RoleGateway, DC: "dc1", Node: "gw1", Domain: "Corp.Example"},
			"gw1.gateway.dc1.corp.example gateway.dc1.corp.example", "", both},
		{CertRequest{Role: RoleClient, DC: "dc1"},
			"client.client.dc1.wanfed client.dc1.wanfed", "", client},
		{CertRequest{Role: RoleOperator, DC: "dc1", Node: "ann"},
			"ann.cli.dc1.wanfed cli.dc1.wanfed", "", client},
		{CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1",
			DNSNames: []string{"API.example.net", "*.example.org", "server.dc1.wanfed", "localhost"},
			IPs: []net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("127.0.0.1"), net.ParseIP("2001:db8::1"),
				net.ParseIP("10.0.0.1")}},
			"srv1.server.dc1.wanfed server.dc1.wanfed localhost api.example.net *.example.org",
			"127.0.0.1 ::1 10.0.0.1 2001:db8::1", both},
	} {
		tt.r.CA = ca
		c := leafOf(t, newCert(t, tt.r))
		var ips []string
		for _, ip := range c.IPAddresses {
			ips = append(ips, ip.String())
		}
		if got := strings.Join(c.DNSNames, " "); got != tt.names {
			t.Errorf("names = %s, want %s", got, tt.names)
		}
		if got := strings.Join(ips, " "); got != tt.ips {
			t.Errorf("IP addresses of %s = %s, want %s", c.DNSNames[0], got, tt.ips)
		}
		if !reflect.DeepEqual(c.ExtKeyUsage, tt.uses) || c.KeyUsage != x509.KeyUsageDigitalSignature || c.IsCA {
			t.Errorf("%s: ExtKeyUsage = %v, KeyUsage = %b, IsCA = %t, want %v, %b, false",
				c.DNSNames[0], c.ExtKeyUsage, c.KeyUsage, c.IsCA, tt.uses, x509.KeyUsageDigitalSignature)
		}
		if d := time.Until(c.NotAfter); (d - DefaultCertDays*day).Abs() > time.Minute {
			t.Errorf("validity of %s = %v, want %v", c.DNSNames[0], d, DefaultCertDays*day)
		}
	}
}

func TestCreateCert_InvalidRequest(t *testing.T) {
	ca, other := newCA(t, CARequest{}), newCA(t, CARequest{})
	narrow := newCA(t, CARequest{})
	old := newCA(t, CARequest{Days: 10, Now: time.Now().Add(-20 * day)})
	short := newCA(t, CARequest{Days: 10})
	leaf := newCert(t, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1", CA: ca})
	with := func(change func(*CertRequest)) CertRequest {
		r := CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1", CA: ca}
		change(&r)
		return r
	}
	additional := func(s string) CertRequest { return with(func(r *CertRequest) { r.DNSNames = []string{s} }) }
	for _, tt := range []struct {
		r    CertRequest
		want string
	}{
		{with(func(r *CertRequest) { r.Role = "admin" }), `role: "admin"`},
		{with(func(r *CertRequest) { r.Node = "" }), "node: name is empty"},
		{with(func(r *CertRequest) { r.Role, r.Node = RoleGateway, "" }), "node: name is empty"},
		{with(func(r *CertRequest) { r.Node, r.DC = "A", "b.c" }),
			`dc: "b.c" is not a DNS label: '.' is not one of a-z, 0-9, "-"; node: "A"`},
		{with(func(r *CertRequest) { r.Domain = "x." }), "domain: "},
		{with(func(r *CertRequest) { r.Days = -3 }), "days: -3"},
		{additional("srv2.server.dc1.wanfed"), "names another peer than srv1.server.dc1.wanfed"},
		{additional("SRV1.gateway.dc1.wanfed."), "is not a DNS name"},
		{additional("SRV1.gateway.dc1.wanfed"), "names another peer"},
		{additional("server.dc2.wanfed"), "names another peer"},
		{additional("gateway.dc1.wanfed"), "names another peer"},
		{additional("*.server.dc1.wanfed"), "names another peer"},
		{additional("*.dc1.wanfed"), "names another peer"},
		{additional("a.*.wanfed"), "is not a DNS name"},
		{additional("10.0.0.1"), "is an IP address"},
		{additional(""), "name is empty"},
		{additional("a b"), "is not a DNS name"},
		{with(func(r *CertRequest) { r.IPs = []net.IP{net.IPv4zero} }), "is not the address of a machine"},
		{with(func(r *CertRequest) { r.IPs = []net.IP{{1}} }), "is not the address of a machine"},
		{with(func(r *CertRequest) { r.CA.Key = other.Key }), "does not belong"},
		{with(func(r *CertRequest) { r.CA.Cert = nil }), "CA certificate is not PEM"},
		{with(func(r *CertRequest) { r.CA.Cert = ca.Key }), "is a private key, not a certificate"},
		{with(func(r *CertRequest) { r.CA.Key = ca.Cert }), "CA key has no private key"},
		{with(func(r *CertRequest) { r.CA = leaf }), "is not a CA"},
		{with(func(r *CertRequest) { r.CA = old }), "expired at"},
		{with(func(r *CertRequest) { r.CA, r.Days = short, 11 }), "would outlive its CA"},
		{with(func(r *CertRequest) { r.CA, r.DNSNames = narrow, []string{"www.example.com"} }),
			"name constraints do not permit"},
		{with(func(r *CertRequest) { r.CA, r.Domain = narrow, "consul" }), "name constraints do not permit"},
	} {
		if _, err := CreateCert(tt.r); !matches(err, tt.want) {
			t.Errorf("CreateCert(%+v) = %v, want an error with %q", tt.r, err, tt.want)
		}
	}
}

// TestCreateCert_ValidityOfCA checks that a certificate expires no later than
// its CA. The CA file has several certificates; the one that belongs to the key
// signs.
func TestCreateCert_ValidityOfCA(t *testing.T) {
	short, other := newCA(t, CARequest{Days: 10}), newCA(t, CARequest{})
	ca := leafOf(t, short)
	bundle := KeyPair{Cert: append(append([]byte{}, other.Cert...), short.Cert...), Key: short.Key}
	c := leafOf(t, newCert(t, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1", CA: bundle}))
	if !c.NotAfter.Equal(ca.NotAfter) || c.NotBefore.Before(ca.NotBefore) {
		t.Errorf("validity = %v to %v, want the validity of the CA, %v to %v", c.NotBefore, c.NotAfter, ca.NotBefore,
			ca.NotAfter)
	}
	if err := Verify([]*x509.Certificate{c}, []*x509.Certificate{ca}, "", time.Now()); err != nil {
		t.Errorf("Verify() = %v, want nil", err)
	}
	c = leafOf(t, newCert(t, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1", CA: short, Days: 9}))
	if !c.NotAfter.Before(ca.NotAfter) {
		t.Errorf("NotAfter of 9 days = %v, want before %v", c.NotAfter, ca.NotAfter)
	}
}

func TestCreateCert_NameConstraint(t *testing.T) {
	// Constraints on DNS names permit all IP addresses.
	ca := newCA(t, CARequest{Permit: []string{"Example.com"}})
	newCert(t, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1", CA: ca, DNSNames: []string{"www.example.com"}})
	newCert(t, CertRequest{Role: RoleGateway, DC: "dc1", Node: "gw1", CA: ca,
		IPs: []net.IP{net.ParseIP("203.0.113.7")}})
	// The longest possible names.
	long, domain := strings.Repeat("a", 63), strings.Repeat("d", 50)+"."+strings.Repeat("e", 49)
	ca = newCA(t, CARequest{Domain: domain})
	c := leafOf(t, newCert(t, CertRequest{Role: RoleGateway, DC: long, Node: long, Domain: domain, CA: ca}))
	if c.Subject.CommonName != long || len(c.DNSNames[0]) > 253 {
		t.Errorf("CommonName = %q, name of %d characters, want %q, at most 253", c.Subject.CommonName,
			len(c.DNSNames[0]), long)
	}
}

// TestCreateCA_Datacenter checks that the CA of a datacenter signs certificates
// of that datacenter only, and that they verify against the root.
func TestCreateCA_Datacenter(t *testing.T) {
	root := newCA(t, CARequest{Days: 10})
	dc3 := newCA(t, CARequest{DC: "dc3", Parent: root, Permit: []string{"10.3.0.0/16", "dc3.example"}})
	roots := []*x509.Certificate{leafOf(t, root)}
	for _, role := range Roles {
		p := newCert(t, CertRequest{Role: role, DC: "dc3", Node: "n1", CA: dc3})
		chain, err := ParseCerts(p.Cert)
		if err != nil || len(chain) != 2 {
			t.Fatalf("ParseCerts() = %d certificates, %v, want the certificate and its CA", len(chain), err)
		}
		if err := Verify(chain, roots, "", time.Now()); err != nil {
			t.Errorf("Verify() of a %v = %v, want nil", role, err)
		}
	}
	for name, tt := range map[string]struct {
		change func(r *CertRequest)
		want   string
	}{
		"permitted": {func(r *CertRequest) {
			r.DNSNames, r.IPs = []string{"www.dc3.example"}, []net.IP{net.ParseIP("10.3.0.1")}
		}, ""},
		"another datacenter": {func(r *CertRequest) { r.DC = "dc1" }, "name constraints do not permit"},
		"datacenter in the name of the node": {func(r *CertRequest) { r.DC, r.Node = "dc1", "dc3" },
			"name constraints do not permit"},
		"another domain":  {func(r *CertRequest) { r.DNSNames = []string{"dc3.example.com"} }, "name constraints do not permit"},
		"another address": {func(r *CertRequest) { r.IPs = []net.IP{net.ParseIP("10.1.0.1")} }, "name constraints do not permit"},
		"too long":        {func(r *CertRequest) { r.Days = 11 }, "would outlive its CA"},
	} {
		r := CertRequest{Role: RoleServer, DC: "dc3", Node: "srv1", CA: dc3}
		tt.change(&r)
		if _, err := CreateCert(r); (err == nil) != (tt.want == "") || err != nil && !matches(err, tt.want) {
			t.Errorf("CreateCert() for %s = %v, want %q", name, err, tt.want)
		}
	}
}

func TestParseKey_Invalid(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", "is not PEM"},
		{"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "is encrypted"},
		{"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be parsed"},
		{"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n", "cannot be parsed"},
		{"-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n", "cannot be parsed"},
		{"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", `a PEM block "CERTIFICATE"`},
	} {
		if _, err := ParseKey([]byte(tt.in)); !matches(err, tt.want) {
			t.Errorf("ParseKey(%q) = %v, want an error with %q", tt.in, err, tt.want)
		}
	}
}
