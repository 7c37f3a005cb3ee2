// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/x509"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDescribe(t *testing.T) {
	now := time.Now()
	ca := newCA(t, CARequest{Domain: "corp.example"})
	p := newCert(t, CertRequest{Role: RoleGateway, DC: "dc1", Node: "gw1", Domain: "corp.example", Days: 30, CA: ca,
		IPs: []net.IP{net.ParseIP("203.0.113.7")}})
	d := Describe(leafOf(t, p), "", now)
	if d.Role != RoleGateway || d.DC != "dc1" || d.Node != "gw1" || d.Domain != "corp.example" || d.NoPeer != "" ||
		d.CA || d.SelfSigned {
		t.Errorf("Describe() = %+v, want gateway gw1 of dc1 in corp.example", d)
	}
	if want := []string{"digital signature", "server authentication", "client authentication"}; !reflect.DeepEqual(
		d.Usage, want) {
		t.Errorf("Usage = %v, want %v", d.Usage, want)
	}
	if want := []string{"203.0.113.7"}; !reflect.DeepEqual(d.IPs, want) {
		t.Errorf("IPs = %v, want %v", d.IPs, want)
	}
	if want := leafOf(t, ca).Subject.String(); d.Issuer != want || d.KeyType != "ECDSA" || len(d.SHA256) != 64 {
		t.Errorf("Issuer = %s, KeyType = %s, SHA256 = %s, want %s, ECDSA, 64 digits", d.Issuer, d.KeyType,
			d.SHA256, want)
	}
	if d := Describe(leafOf(t, p), "wanfed", now); d.Role != "" || d.NoPeer == "" {
		t.Errorf("Describe() with another domain = %+v, want no role and a reason", d)
	}
	d = Describe(leafOf(t, ca), "", now)
	if !d.CA || !d.SelfSigned || d.Role != "" || d.NoPeer != "" ||
		!reflect.DeepEqual(d.Permitted, []string{"corp.example", "localhost"}) {
		t.Errorf("Describe() of the CA = %+v, want a self-signed CA for corp.example and localhost", d)
	}
	both := *leafOf(t, p)
	both.DNSNames = []string{"a.server.dc1.wanfed", "b.server.dc1.wanfed"}
	if d := Describe(&both, "", now); d.Role != "" || !strings.Contains(d.NoPeer, "two peers") {
		t.Errorf("Describe() of two peers = %+v, want no role and \"two peers\"", d)
	}
}

func TestDescribe_Validity(t *testing.T) {
	p := newCert(t, CertRequest{Role: RoleGateway, DC: "dc1", Node: "gw1", Days: 30, CA: newCA(t, CARequest{})})
	// The keys are times since the creation of the certificate.
	for after, want := range map[time.Duration]struct {
		days            int
		expired, notYet bool
	}{
		0:            {30, false, false},
		12 * day:     {18, false, false},
		29*day + 1e9: {0, false, false},
		31*day + 2e9: {-2, true, false},
		-day:         {31, false, true},
	} {
		d := Describe(leafOf(t, p), "", leafOf(t, p).NotAfter.Add(after-30*day))
		if d.DaysLeft != want.days || d.Expired != want.expired || d.NotYetValid != want.notYet {
			t.Errorf("Describe() after %v: DaysLeft = %d, Expired = %t, NotYetValid = %t, want %+v",
				after, d.DaysLeft, d.Expired, d.NotYetValid, want)
		}
	}
}

func TestVerify(t *testing.T) {
	now := time.Now()
	ca, other := newCA(t, CARequest{}), newCA(t, CARequest{})
	one := func(p KeyPair) []*x509.Certificate { return []*x509.Certificate{leafOf(t, p)} }
	cli := newCert(t, CertRequest{Role: RoleOperator, DC: "dc1", CA: ca})
	for _, tt := range []struct {
		chain, cas []*x509.Certificate
		at         time.Time
		want       string
	}{
		{one(cli), one(ca), now, ""},
		{one(ca), one(ca), now, ""},
		{one(cli), append(one(other), one(ca)...), now, ""},
		{one(cli), one(other), now, "is signed by another CA"},
		{one(other), one(ca), now, "is signed by another CA"},
		{one(cli), one(ca), now.Add(-day), "is not valid"},
	} {
		if err := Verify(tt.chain, tt.cas, "", tt.at); !matches(err, tt.want) {
			t.Errorf("Verify(%s) = %v, want %q", title(tt.chain[0]), err, tt.want)
		}
	}
}
