// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

func TestSessionsEnd(t *testing.T) {
	day := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", Days: 1}
	for _, tt := range []struct {
		name             string
		caDays           int
		srvDays, cliDays int
		server, client   string // what refuses at the end: what Explain says
	}{
		{"client's certificate", 9, 2, 1, "certificate of srv1.server.dc2.wanfed expired", "our certificate is expired"},
		{"server's certificate", 9, 1, 2, "", "certificate of srv1.server.dc1.wanfed expired"},
		{"CA", 1, 1, 1, "", "expired"},
		{"time", 9, 2, 2, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := tlstest.NewCAFrom(t, tlsutil.CARequest{Days: tt.caDays})
				identity := func(dc string, days int) *tlsutil.Identity {
					r := day
					r.DC, r.Days = dc, days
					f := ca.Files(t, r.Role, r.Node, r.DC)
					tlstest.Write(t, f, ca.Pair.Cert, ca.Issue(t, r))
					return load(t, f)
				}
				srv, cli := identity("dc1", tt.srvDays), identity("dc2", tt.cliDays)
				call := func() outcome {
					return pipeCall(t, srv.ServerConfig("a"), cli.ResumingClientConfig(called, "a"))
				}
				want := func(resumed bool) {
					t.Helper()
					if o := call(); o.client != nil || o.server != nil || o.clientSaw.DidResume != resumed {
						t.Fatalf("client %v, server %v, resumed %v, want %v", o.client, o.server, o.clientSaw.DidResume, resumed)
					}
				}
				time.Sleep(23*time.Hour + 30*time.Minute)
				want(false)
				time.Sleep(29 * time.Minute)
				want(true)
				time.Sleep(2 * time.Minute)
				if tt.client != "" {
					o := call()
					if s := tlsutil.DescribeError(o.client); o.client == nil || !strings.Contains(s, tt.client) {
						t.Errorf("client: %q, want %q", s, tt.client)
					}
					if s := tlsutil.DescribeError(o.server); o.server == nil || !strings.Contains(s, tt.server) {
						t.Errorf("server: %q, want %q", s, tt.server)
					}
					return
				}
				want(true) // 31 minutes after the certificates were looked at
				time.Sleep(29 * time.Minute)
				want(false) // an hour after, however often it was resumed
				want(true)
			})
		})
	}
}

// What crypto/tls does when it resumes is its own; VerifyConnection alone lets no peer in that a full handshake would not.
func TestResumedPeerIsVerified(t *testing.T) {
	p := newPair(t)
	server := func(hello string) *tls.Config {
		cfg, err := p.srv.ServerConfig("a").GetConfigForClient(&tls.ClientHelloInfo{ServerName: hello})
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}(called)
	client := p.cli.ResumingClientConfig(called, "a")
	req := func(role tlsutil.Role, dc string) tlsutil.CertRequest {
		return tlsutil.CertRequest{Role: role, Node: "srv1", DC: dc}
	}
	ended := x509.Certificate{DNSNames: []string{called}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute)}
	for _, tt := range []struct {
		what     string
		cert     tlsutil.KeyPair
		srv, cli string // error of each; "": none
	}{
		{"good", p.ca.Issue(t, req(tlsutil.RoleServer, "dc1")), "", ""},
		{"other CA", tlstest.NewCA(t).Issue(t, req(tlsutil.RoleServer, "dc1")), "another CA", "another CA"},
		{"expired", p.ca.Sign(t, ended), "expired at", "expired at"},
		{"other datacenter", p.ca.Issue(t, req(tlsutil.RoleServer, "dc3")), "", "answered by server/dc3/srv1"},
		{"other role", p.ca.Issue(t, req(tlsutil.RoleGateway, "dc1")), "", "answered by gateway/dc1/srv1"},
		{"cannot accept", p.ca.Issue(t, req(tlsutil.RoleOperator, "dc1")), "", "extended key usage"},
		{"nobody", p.ca.Sign(t, x509.Certificate{DNSNames: []string{"www.example.com"}}), "no SAN of the form", "no SAN of the form"},
	} {
		certs, err := tlsutil.ParseCerts(tt.cert.Cert)
		if err != nil {
			t.Fatal(err)
		}
		cs := tls.ConnectionState{DidResume: true, PeerCertificates: certs}
		for want, err := range map[*string]error{&tt.srv: server.VerifyConnection(cs), &tt.cli: client.VerifyConnection(cs)} {
			if (err == nil) != (*want == "") || !strings.Contains(tlsutil.DescribeError(err), *want) {
				t.Errorf("%s: %v, want %q", tt.what, err, *want)
			}
		}
	}
}
