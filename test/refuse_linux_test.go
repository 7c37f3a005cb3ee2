// SPDX-License-Identifier: MPL-2.0

package test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// TestRefuse makes forbidden connections and calls in a federation of two
// datacenters. Each must be refused, counted by a metric, and logged in one
// line. Both datacenters must still be federated at the end.
func TestRefuse(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)

	t.Run("server port", func(t *testing.T) { refuseAtServer(t, l, dc1) })
	t.Run("protocols", func(t *testing.T) { refuseProtocols(t, l, dc1) })
	t.Run("gossip", func(t *testing.T) { refuseGossip(t, l, dc1) })
	t.Run("gateway", func(t *testing.T) { refuseAtGateway(t, l, dc1, dc2) })
	t.Run("identity", func(t *testing.T) { refuseCalls(t, l, dc1, dc2) })
	t.Run("openssl", func(t *testing.T) { seeWithOpenSSL(t, l, dc1, dc2) })
	t.Run("two primaries", func(t *testing.T) { refuseOtherPrimary(t, l, dc1, dc2) })

	l.federated(dc1, dc2)
	for _, s := range []*site{dc1, dc2} {
		for _, bad := range []string{`level=ERROR`, `panic`, `DATA RACE`} {
			for _, f := range []*logFile{logOf(s.server.Process), logOf(s.gateway.Process)} {
				if lines, err := f.lines(bad); err != nil || len(lines) > 0 {
					t.Errorf("%s has the lines %q, %v, want none with %q", f.path, lines, err, bad)
				}
			}
		}
	}
}

// counted calls try. It fails the test unless the counter series at the URL
// base increases by one, and the log gets exactly one line with a reason, which
// must match reason and want. docs/limits.md must name the metric and the
// reason.
func counted(t *testing.T, log *logFile, base, series, reason, want string, try func()) {
	t.Helper()
	log.mark(t)
	before := metric(t, base, series)
	try()
	line := log.await(t, `reason=`+reason+`\b`)[0]
	if after := metric(t, base, series); after != before+1 {
		t.Errorf("%s = %v, want %v", series, after, before+1)
	}
	all, err := log.lines(`reason=`)
	if err != nil || len(all) != 1 {
		t.Errorf("log has %d lines with a reason, %v, want one: %q", len(all), err, all)
	}
	if !matches(line, want) {
		t.Errorf("log line = %s\nwant %s", line, want)
	}
	name, _, _ := strings.Cut(series, "{")
	if doc := readDoc(t, "limits.md"); !strings.Contains(doc, "`"+name+"`") || !strings.Contains(doc, "`"+reason+"`") {
		t.Errorf("limits.md does not name %s with %s", name, reason)
	}
}

// readDoc returns the text of a file in docs.
func readDoc(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// matches reports whether line contains all parts of want, in order. "…"
// separates the parts.
func matches(line, want string) bool {
	for part := range strings.SplitSeq(want, "…") {
		i := strings.Index(line, part)
		if i < 0 {
			return false
		}
		line = line[i+len(part):]
	}
	return true
}

// refuseAtServer makes connections to the port of a server that the server must
// refuse before a protocol begins.
func refuseAtServer(t *testing.T, l *loopback, s *site) {
	const own = "server.dc1.wanfed"
	server := func(t *testing.T, sni string, alpn ...string) *tls.Config {
		return l.client(t, tlsutil.RoleServer, "srv1", "dc2", sni, alpn...)
	}
	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	names := []string{"srv1.server.dc2.wanfed", "server.dc2.wanfed"}
	for _, test := range []struct {
		name   string
		config func(t *testing.T) *tls.Config // nil: plain text
		reason string
		want   string // parts of the line, in order
	}{
		{"plain text", nil, "plain_text",
			`level=WARN msg="connection refused: plain text on the TLS port"… remote=127.0.0.1:`},
		{"no certificate", func(t *testing.T) *tls.Config {
			cfg := server(t, own, "h2")
			cfg.GetClientCertificate = nil
			return cfg
		}, "certificate_missing", `msg="connection refused: no usable client certificate"… sni=server.dc1.wanfed ` +
			`remote=… err="tls: client didn't provide a certificate"`},
		{"certificate of another CA", func(t *testing.T) *tls.Config {
			return with(t, server(t, own, "h2"), tlstest.NewCA(t).Issue(t,
				tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}))
		}, "certificate_foreign_ca", `msg="connection refused: client certificate of another CA"… err="certificate ` +
			`of srv1.server.dc2.wanfed is signed by another CA`},
		{"expired", func(t *testing.T) *tls.Config {
			return l.signed(t, x509.Certificate{DNSNames: names, NotBefore: past.Add(-time.Hour),
				NotAfter: past}, own, "h2")
		}, "certificate_invalid", `msg="connection refused: client certificate is not valid"… err="certificate of ` +
			`srv1.server.dc2.wanfed expired at`},
		{"not yet valid", func(t *testing.T) *tls.Config {
			return l.signed(t, x509.Certificate{DNSNames: names, NotBefore: future, NotAfter: future.Add(time.Hour)},
				own, "h2")
		}, "certificate_invalid", `err="certificate of srv1.server.dc2.wanfed is not valid before … check the clocks"`},
		{"not for dialing", func(t *testing.T) *tls.Config {
			return l.signed(t, x509.Certificate{DNSNames: names,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, own, "h2")
		}, "certificate_invalid", `lacks the extended key usage`},
		{"no name of a peer", func(t *testing.T) *tls.Config {
			return l.signed(t, x509.Certificate{DNSNames: names[1:]}, own, "h2")
		}, "certificate_no_peer_name",
			`msg="connection refused: client certificate does not name one peer"… its SANs: server.dc2.wanfed`},
		{"names of two peers", func(t *testing.T) *tls.Config {
			return l.signed(t, x509.Certificate{DNSNames: []string{"srv1.server.dc2.wanfed", "srv1.server.dc1.wanfed"}},
				own, "h2")
		}, "certificate_no_peer_name", `names two peers, server/dc2/srv1 and server/dc1/srv1`},
		{"a CA's certificate", func(t *testing.T) *tls.Config { return with(t, server(t, own, "h2"), l.ca.Pair) },
			"certificate_no_peer_name", `err="certificate has no SAN of the form`},
		{"unknown protocol", func(t *testing.T) *tls.Config { return server(t, own, "consul/rpc-multi", "http/1.0") },
			"unknown_alpn",
			`msg="connection refused: no offered protocol (ALPN) is known"… alpn="[consul/rpc-multi http/1.0]"`},
		{"no protocol", func(t *testing.T) *tls.Config { return server(t, own) },
			"no_alpn", `msg="connection refused: no protocol (ALPN) offered"`},
		{"HTTP/1.1", func(t *testing.T) *tls.Config { return server(t, own, "http/1.1") },
			"unknown_alpn", `msg="connection refused: no offered protocol (ALPN) is known"… alpn=[http/1.1]`},
		{"another server", func(t *testing.T) *tls.Config { return server(t, "srv2.server.dc1.wanfed", "h2") },
			"unknown_sni", `msg="connection refused: not for this server; check the routes of the gateways"… ` +
				`sni=srv2.server.dc1.wanfed`},
		{"another datacenter", func(t *testing.T) *tls.Config { return server(t, "server.dc2.wanfed", "h2") },
			"unknown_sni", `sni=server.dc2.wanfed`},
		{"a gateway", func(t *testing.T) *tls.Config { return server(t, "gw1.gateway.dc1.wanfed", "h2") },
			"unknown_sni", `sni=gw1.gateway.dc1.wanfed`},
		{"TLS 1.2", func(t *testing.T) *tls.Config {
			cfg := server(t, own, "h2")
			cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return cfg
		}, "tls_version", `msg="connection refused: peer has no TLS 1.3"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var cfg *tls.Config
			if test.config != nil {
				cfg = test.config(t)
			}
			series := fmt.Sprintf(`wanfed_port_refused_total{reason=%q}`, test.reason)
			counted(t, logOf(s.server.Process), s.server.HTTP, series, test.reason, test.want, func() {
				if cfg == nil {
					plainHTTP(t, s.server.Addr)
				} else if got, err := closedBy(t, s.server.Addr, cfg, nil); len(got) > 0 || err == nil &&
					test.reason != "no_alpn" && test.name != "HTTP/1.1" {
					t.Errorf("connection ended with %q, %v, want no data and an error", got, err)
				}
			})
		})
	}
}

// plainHTTP sends an HTTP request without TLS. It fails the test if there is an
// HTTP response.
func plainHTTP(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, _ := drained(t, c, []byte("GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	if strings.Contains(string(got), "HTTP/") {
		t.Errorf("response = %q, want none", got)
	}
}

// refuseProtocols uses each protocol with certificates of roles that may not
// use it.
func refuseProtocols(t *testing.T, l *loopback, s *site) {
	serversOnly := []string{
		wanfed.ProtoGossip, wanfed.ProtoRelay, wanfed.ProtoDuplex, wanfed.ProtoStream, wanfed.ProtoConsulPacket, wanfed.ProtoConsulStream,
		wanfed.ProtoRaft,
	}
	for _, peer := range []tlsutil.Peer{
		{Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1"}, {Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc2"},
		{Role: tlsutil.RoleClient, Node: "client", DC: "dc1"}, {Role: tlsutil.RoleOperator, Node: "cli", DC: "dc1"},
	} {
		for _, alpn := range serversOnly {
			t.Run(fmt.Sprintf("%v on %s", peer, strings.ReplaceAll(alpn, "/", " ")), func(t *testing.T) {
				cfg := l.client(t, peer.Role, peer.Node, peer.DC, "server.dc1.wanfed", alpn)
				counted(t, logOf(s.server.Process), s.server.HTTP, `wanfed_port_refused_total{reason="role"}`, "role",
					fmt.Sprintf(`msg="connection refused: this role may not use this protocol"… peer=%v alpn=%s `+
						`allowed=[server]`, peer, alpn),
					func() {
						if got, _ := closedBy(t, s.server.Addr, cfg, []byte("hello")); len(got) > 0 {
							t.Errorf("data from the server = %q, want none", got)
						}
					})
			})
		}
	}
	t.Run("server of dc2 on raft", func(t *testing.T) {
		cfg := l.client(t, tlsutil.RoleServer, "srv1", "dc2", "server.dc1.wanfed", wanfed.ProtoRaft)
		counted(t, logOf(s.server.Process), s.server.HTTP, `wanfed_port_refused_total{reason="datacenter"}`,
			"datacenter",
			`msg="connection refused: only for servers of this datacenter"… peer=server/dc2/srv1 alpn=wanfed/raft/1 `+
				`allowed=dc1`,
			func() {
				if got, _ := closedBy(t, s.server.Addr, cfg, []byte("hello")); len(got) > 0 {
					t.Errorf("data from the server = %q, want none", got)
				}
			})
	})
}
