// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	l63 := strings.Repeat("n", 63)
	for _, tt := range []struct {
		in, domain string
		want       Peer
		ok         bool
	}{
		{"srv1.server.dc1.wanfed", "wanfed", Peer{RoleServer, "srv1", "dc1"}, true},
		{"server.dc1.wanfed", "wanfed", Peer{RoleServer, "", "dc1"}, true},
		{"gw-1.gateway.dc1.wanfed", "wanfed", Peer{RoleGateway, "gw-1", "dc1"}, true},
		{"c.client.dc1.wanfed", "wanfed", Peer{RoleClient, "c", "dc1"}, true},
		{"cli.cli.dc1.wanfed", "wanfed", Peer{RoleOperator, "cli", "dc1"}, true},
		{"s1.sync.dc1.wanfed", "wanfed", Peer{RoleSync, "s1", "dc1"}, true},
		{"server.server.server.wanfed", "wanfed", Peer{RoleServer, "server", "server"}, true},
		{"SRV1.Server.DC1.WanFed.", "wanfed", Peer{RoleServer, "srv1", "dc1"}, true},
		{"srv1.server.dc1.corp.example", "Corp.example", Peer{RoleServer, "srv1", "dc1"}, true},
		{l63 + ".server.dc1.wanfed", "wanfed", Peer{RoleServer, l63, "dc1"}, true},

		{"", "wanfed", Peer{}, false},
		{"wanfed", "wanfed", Peer{}, false},
		{".wanfed", "wanfed", Peer{}, false},
		{"server.wanfed", "wanfed", Peer{}, false},
		{"dc1.wanfed", "wanfed", Peer{}, false},
		{"agent.dc1.wanfed", "wanfed", Peer{}, false},
		{"server.dc1.wanfed..", "wanfed", Peer{}, false},
		{"server.dc1.consul", "wanfed", Peer{}, false},
		{"server.dc1xwanfed", "wanfed", Peer{}, false},
		{"server..wanfed", "wanfed", Peer{}, false},
		{".server.dc1.wanfed", "wanfed", Peer{}, false},
		{"*.server.dc1.wanfed", "wanfed", Peer{}, false},
		{"a.srv1.server.dc1.wanfed", "wanfed", Peer{}, false},
		{"srv_1.server.dc1.wanfed", "wanfed", Peer{}, false},
		{"-a.server.dc1.wanfed", "wanfed", Peer{}, false},
		{"a.server.-dc1.wanfed", "wanfed", Peer{}, false},
		{"n" + l63 + ".server.dc1.wanfed", "wanfed", Peer{}, false},
		{"\u212a.server.dc1.wanfed", "wanfed", Peer{}, false}, // the lower case of the Kelvin sign is an ASCII k
		{"srv1.server.dc1.wanfed\x00", "wanfed", Peer{}, false},
		{"srv1.ſerver.dc1.wanfed", "wanfed", Peer{}, false},
	} {
		if got, ok := ParseName(tt.in, tt.domain); got != tt.want || ok != tt.ok {
			t.Errorf("ParseName(%q, %q) = %+v, %v; want %+v, %v", tt.in, tt.domain, got, ok, tt.want, tt.ok)
		}
	}
}

func TestPeerFromCert(t *testing.T) {
	srv1 := Peer{RoleServer, "srv1", "dc1"}
	for _, tt := range []struct {
		names string
		want  Peer
		err   string
	}{
		{"srv1.server.dc1.wanfed server.dc1.wanfed localhost", srv1, ""},
		{"localhost server.dc1.wanfed srv1.server.dc1.wanfed SRV1.server.dc1.wanfed", srv1, ""},
		{"www.example.com srv1.server.dc1.wanfed", srv1, ""},
		{"", Peer{}, "no SAN of the form"},
		{"server.dc1.wanfed", Peer{}, "no SAN of the form"},
		{"*.server.dc1.wanfed server.dc1.wanfed", Peer{}, "its SANs: *.server.dc1.wanfed, server.dc1.wanfed"},
		{"srv1.server.dc1.consul", Peer{}, `domain "wanfed"`},
		{"srv1.server.dc1.wanfed srv2.server.dc1.wanfed", Peer{}, "two peers, server/dc1/srv1 and server/dc1/srv2"},
		{"srv1.server.dc1.wanfed srv1.gateway.dc1.wanfed", Peer{}, "two peers"},
		{"srv1.server.dc1.wanfed srv1.server.dc2.wanfed", Peer{}, "two peers"},
	} {
		got, err := PeerFromCert(&x509.Certificate{DNSNames: strings.Fields(tt.names)}, "wanfed")
		if got != tt.want || !matches(err, tt.err) {
			t.Errorf("PeerFromCert(%s) = %v, %v; want %v, %q", tt.names, got, err, tt.want, tt.err)
		}
		if strings.HasPrefix(tt.err, "no SAN") && !errors.Is(err, ErrNoPeerName) {
			t.Errorf("PeerFromCert(%s) = %v, want ErrNoPeerName", tt.names, err)
		}
	}
}

func TestCheckLabelAndDomain(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tt := range []struct {
		in            string
		label, domain string // text in the errors of CheckLabel and CheckDomain; "": no error
	}{
		{"a", "", ""},
		{"dc-1", "", ""},
		{"0", "", ""},
		{long, "", ""},
		{"", "empty", "empty"},
		{long + "a", "longer than 63", "longer than 63"},
		{"-a", "begins or ends", "begins or ends"},
		{"a-", "begins or ends", "begins or ends"},
		{"A", "is not a DNS label", ""},
		{"a_b", "is not a DNS label", "is not a DNS name"},
		{"ä", "is not a DNS label", "is not a DNS name"},
		{"a.b", "is not a DNS label", ""},
		{"a.b.", "is not a DNS label", "empty"},
		{"a..b", "is not a DNS label", "empty"},
		{"a/b", "is not a DNS label", "is not a DNS name"},
		{long + "." + long, "longer than 63", "longer than 100"},
	} {
		if err := CheckLabel(tt.in); !matches(err, tt.label) {
			t.Errorf("CheckLabel(%q) = %v, want %q", tt.in, err, tt.label)
		}
		if err := CheckDomain(tt.in); !matches(err, tt.domain) {
			t.Errorf("CheckDomain(%q) = %v, want %q", tt.in, err, tt.domain)
		}
	}
}

// matches reports whether err contains want. If want is empty, err must be nil.
func matches(err error, want string) bool {
	if err == nil || want == "" {
		return err == nil && want == ""
	}
	return strings.Contains(err.Error(), want)
}

// FuzzParseName tests input from peers: an SNI and the SANs of a certificate.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{
		"srv1.server.dc1.wanfed", "server.dc1.wanfed", "A.GATEWAY.DC1.WANFED.", "", ".", "*.server.dc1.wanfed",
		"a.b.c.d.e",
		"\u212a.server.dc1.wanfed", "srv1.server.dc1.wanfed\nsrv2.server.dc1.wanfed", "server..wanfed",
		"\xff.server.dc1.wanfed",
	} {
		f.Add(s, "wanfed")
	}
	f.Add("n.cli.dc.a.b", "a.B")
	f.Fuzz(func(t *testing.T, s, domain string) {
		if CheckDomain(domain) != nil {
			return // Load refuses it
		}
		if p, ok := ParseName(s, domain); ok {
			checkParsed(t, p)
			if back := name(p.Role, p.Node, p.DC, strings.ToLower(domain)); back != strings.ToLower(
				strings.TrimSuffix(s, ".")) {
				t.Errorf("ParseName(%q) = %+v with the name %q, want the peer of the name", s, p, back)
			}
		} else if p != (Peer{}) {
			t.Errorf("ParseName(%q) = %+v, false, want no peer", s, p)
		}
		leaf := &x509.Certificate{DNSNames: strings.Split(s, "\n")}
		p, err := PeerFromCert(leaf, domain)
		if err != nil {
			return
		}
		if checkParsed(t, p); p.Node == "" {
			t.Errorf("PeerFromCert(%q) = %+v, want a node", leaf.DNSNames, p)
		}
		for _, san := range leaf.DNSNames {
			if q, ok := ParseName(san, domain); ok && q.Node != "" && q != p {
				t.Errorf("PeerFromCert(%q) = %v, want an error: it also names %v", leaf.DNSNames, p, q)
			}
		}
	})
}

// checkParsed checks that a parsed name has valid labels and a known role.
func checkParsed(t *testing.T, p Peer) {
	t.Helper()
	if CheckLabel(p.DC) != nil || p.Node != "" && CheckLabel(p.Node) != nil {
		t.Errorf("parsed peer = %+v, want valid labels", p)
	}
	if !slices.Contains(Roles, p.Role) {
		t.Errorf("parsed role = %q, want one of %v", p.Role, Roles)
	}
}
