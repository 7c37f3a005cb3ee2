// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// outcome is the result of a handshake at both ends. With TLS 1.3, if the
// server rejects the certificate of the client, the error of the client is the
// error of its first read.
type outcome struct {
	server, client           error
	serverState, clientState tls.ConnectionState
}

// handshake connects over loopback. An end without a configuration uses plain
// text.
func handshake(t *testing.T, server, client *tls.Config) (o outcome) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			o.server = err
			return
		}
		o.serverState, o.server = exchange(ctx, c, server, tls.Server)
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o.clientState, o.client = exchange(ctx, c, client, tls.Client)
	<-done
	return o
}

// exchange makes a TLS handshake on c unless cfg is nil, and then sends and
// reads one line.
func exchange(
	ctx context.Context, c net.Conn, cfg *tls.Config, newConn func(net.Conn, *tls.Config) *tls.Conn,
) (state tls.ConnectionState, err error) {
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return state, err
	}
	if cfg != nil {
		tc := newConn(c, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			return state, err
		}
		c, state = tc, tc.ConnectionState()
	}
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return state, err
	}
	_, err = c.Read(make([]byte, 6))
	return state, err
}

// rawConfig returns a configuration with certificates that Load would reject,
// or without a certificate.
func rawConfig(t *testing.T, trust *tlstest.CA, name string, pairs ...tlsutil.KeyPair) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trust.Pair.Cert)
	cfg := &tls.Config{RootCAs: pool, ClientCAs: pool, ServerName: name, MinVersion: tls.VersionTLS13}
	for _, p := range pairs {
		c, err := tls.X509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{c}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
	}
	return cfg
}

func TestHandshake(t *testing.T) {
	ca := tlstest.NewCA(t)
	srv := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	for _, tt := range []struct {
		name   string
		client *tlsutil.Identity
		alpn   []string
		proto  string
	}{
		{"srv1.server.dc1.wanfed", ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2"), []string{"b", "a"}, "a"},
		{"server.dc1.wanfed", ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1"), []string{"b"}, "b"},
		{"localhost", ca.Identity(t, tlsutil.RoleOperator, "cli", "dc1"), []string{"a"}, "a"},
		{"127.0.0.1", ca.Identity(t, tlsutil.RoleClient, "client", "dc1"), nil, ""}, // no SNI for an address
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := handshake(t, srv.ServerConfig("a", "b"), tt.client.ClientConfig(tt.name, tt.alpn...))
			if o.server != nil || o.client != nil {
				t.Fatalf("handshake() = %v at the server, %v at the client, want nil", o.server, o.client)
			}
			peer, err := tlsutil.PeerFromCert(o.serverState.PeerCertificates[0], srv.Domain())
			if err != nil || peer != tt.client.Peer() {
				t.Errorf("peer of the server = %v, %v, want %v", peer, err, tt.client.Peer())
			}
			peer, err = tlsutil.PeerFromCert(o.clientState.PeerCertificates[0], srv.Domain())
			if err != nil || peer != srv.Peer() {
				t.Errorf("peer of the client = %v, %v, want %v", peer, err, srv.Peer())
			}
			if st := o.serverState; st.NegotiatedProtocol != tt.proto || st.Version != tls.VersionTLS13 ||
				st.DidResume {
				t.Errorf("protocol = %q, version = %x, resumed = %t, want %q, %x, false",
					st.NegotiatedProtocol, st.Version, st.DidResume, tt.proto, tls.VersionTLS13)
			}
		})
	}
}

func TestHandshake_Rejected(t *testing.T) {
	ca, other := tlstest.NewCAFrom(t, tlsutil.CARequest{Unconstrained: true}), tlstest.NewCA(t)
	oldCA := tlstest.NewCAFrom(t, tlsutil.CARequest{Now: time.Now().AddDate(-1, 0, 0)})
	const target = "srv1.server.dc1.wanfed"
	srv, cli := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1"), ca.Identity(t, tlsutil.RoleServer, "srv2", "dc2")
	good := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	expired, late, otherDC, operator := good, good, good, good
	expired.Now, expired.Days = time.Now().AddDate(0, 0, -20), 10
	late.Now = time.Now().Add(time.Hour)
	otherDC.DC = "dc2"
	operator.Role = tlsutil.RoleOperator
	// raw returns a configuration with a certificate of these names.
	raw := func(names ...string) *tls.Config {
		return rawConfig(t, ca, target, ca.Sign(t, x509.Certificate{DNSNames: names}))
	}
	tls12 := rawConfig(t, ca, target, ca.Issue(t, good))
	tls12.MinVersion, tls12.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	server, client := srv.ServerConfig("a"), func() *tls.Config { return cli.ClientConfig(target, "a") }

	for _, tt := range []struct {
		name                   string
		server, client         *tls.Config
		wantServer, wantClient string // text in the result of DescribeError; "": any result
	}{
		{"expired client", oldCA.Identity(t, tlsutil.RoleServer, "srv1", "dc1").ServerConfig("a"),
			rawConfig(t, oldCA, target, oldCA.Issue(t, expired)),
			"certificate of srv1.server.dc1.wanfed expired at 20", "our certificate: expired"},
		{"expired server", rawConfig(t, oldCA, "", oldCA.Issue(t, expired)),
			oldCA.Identity(t, tlsutil.RoleServer, "srv2", "dc2").ClientConfig(target), "peer rejected our certificate",
			"certificate of srv1.server.dc1.wanfed expired at 20"},
		{"server not yet valid", rawConfig(t, ca, "", ca.Issue(t, late)), client(), "", "is not valid before 20"},
		{"client of another CA", server, rawConfig(t, ca, target, other.Issue(t, good)),
			"is signed by another CA (CN=wanfed agent CA", "our certificate: signed by another CA"},
		{"identity of another CA", server, other.Identity(t, tlsutil.RoleServer, "srv1", "dc1").ClientConfig(target),
			"peer rejected our certificate", "certificate of srv1.server.dc1.wanfed is signed by another CA"},
		{"no client certificate", server, rawConfig(t, ca, target), "client didn't provide a certificate",
			"requires a certificate and we sent none"},
		{"server of another dc", ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2").ServerConfig("a"), client(),
			`SNI "srv1.server.dc1.wanfed" is none of this certificate's names (srv1.server.dc2.wanfed, `,
			"no certificate for the requested name"},
		{"server of another dc that ignores the SNI", rawConfig(t, ca, "", ca.Issue(t, otherDC)),
			client(), "", "certificate of srv1.server.dc2.wanfed is not valid for srv1.server.dc1.wanfed"},
		{"another server of the dc", ca.Identity(t, tlsutil.RoleServer, "srv2", "dc1").ServerConfig("a"), client(),
			`SNI "srv1.`, ""},
		{"gateway instead of server", ca.Identity(t, tlsutil.RoleGateway, "srv1", "dc1").ServerConfig("a"), client(),
			`SNI "srv1.`, ""},
		{"client without a node", server, raw("server.dc1.wanfed", target+".example"), "no SAN of the form",
			"peer rejected our certificate"},
		{"client with two names", server, raw(target, "srv1.server.dc2.wanfed"), "certificate names two peers", ""},
		{"wildcard for names of other peers", raw("srv9.server.dc9.wanfed", "*.server.dc1.wanfed"), client(), "",
			"the certificate for srv1.server.dc1.wanfed is that of server/dc9/srv9"},
		{"unknown SNI", server, cli.ClientConfig("www.example.com", "a"), `SNI "www.example.com" is none`, ""},
		{"client certificate at a server", rawConfig(t, ca, "", ca.Issue(t, operator)),
			cli.ClientConfig("srv1.cli.dc1.wanfed"), "", "extended key usage"},
		{"no common protocol", server, cli.ClientConfig(target, "b"), "unsupported application protocols",
			"no common protocol (ALPN)"},
		{"TLS 1.2 client", server, tls12, "unsupported versions", "both sides need TLS 1.3"},
		{"gateway that serves an address", rawConfig(t, ca, "", ca.Issue(t, tlsutil.CertRequest{
			Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})),
			cli.ClientConfig("127.0.0.1"), "", "the certificate for 127.0.0.1 is that of gateway/dc1/gw1, which is not a server"},
		{"plain text client", server, nil, "peer uses plain text", ""},
		{"plain text server", nil, client(), "", "peer uses plain text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := handshake(t, tt.server, tt.client)
			got := tlsutil.DescribeError(o.server)
			if o.server == nil && tt.wantServer != "" || !strings.Contains(got, tt.wantServer) {
				t.Errorf("DescribeError() at the server = %q (%v), want %q", got, o.server, tt.wantServer)
			}
			got = tlsutil.DescribeError(o.client)
			if o.client == nil && tt.client != nil || !strings.Contains(got, tt.wantClient) {
				t.Errorf("DescribeError() at the client = %q (%v), want %q", got, o.client, tt.wantClient)
			}
			if _, ok := errors.AsType[*tlsutil.NameError](o.server); !ok && strings.HasPrefix(tt.wantServer, "SNI") {
				t.Errorf("error at the server = %T, want a *NameError", o.server)
			}
		})
	}
}

// TestHandshake_AfterReload checks that a listener uses a new certificate and a
// new CA without a new configuration, and that each new dial does too.
func TestHandshake_AfterReload(t *testing.T) {
	ca1, ca2 := tlstest.NewCA(t), tlstest.NewCA(t)
	req := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	f := ca1.Files(t, req.Role, req.Node, req.DC)
	srv, err := tlsutil.Load(f, "wanfed", nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := srv.ServerConfig()
	dial := func(ca *tlstest.CA) outcome {
		t.Helper()
		return handshake(t, cfg, ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2").ClientConfig("server.dc1.wanfed"))
	}
	if o := dial(ca1); o.client != nil || o.server != nil {
		t.Fatalf("handshake() with the first CA = %v at the client, %v at the server, want nil", o.client, o.server)
	}
	if o := dial(ca2); o.client == nil {
		t.Fatal("handshake() with another CA = nil at the client, want an error")
	}
	// A CA is replaced in three steps: trust both CAs, replace certificates,
	// trust only the new CA.
	both := append(append([]byte{}, ca1.Pair.Cert...), ca2.Pair.Cert...)
	tlstest.Write(t, f, both, ca2.Issue(t, req))
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	if o := dial(ca2); o.client != nil || o.server != nil {
		t.Errorf("handshake() with both CAs = %v at the client, %v at the server, want nil", o.client, o.server)
	}
	server2 := ca2.Identity(t, tlsutil.RoleServer, "srv1", "dc2").ServerConfig()
	if o := handshake(t, server2, srv.ClientConfig("server.dc2.wanfed")); o.client != nil || o.server != nil {
		t.Errorf("dial with the new certificate = %v at the client, %v at the server, want nil", o.client, o.server)
	}
	tlstest.Write(t, f, ca2.Pair.Cert, ca2.Issue(t, req))
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	o := handshake(t, cfg, rawConfig(t, ca2, "server.dc1.wanfed", ca1.Issue(t, req)))
	if got, want := tlsutil.DescribeError(o.server), "another CA"; !strings.Contains(got, want) {
		t.Errorf("DescribeError() for a client of the old CA = %q, want %q", got, want)
	}
}
