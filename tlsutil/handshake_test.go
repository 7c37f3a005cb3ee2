// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// outcome is what both ends saw: the handshake's error, or the first read's, which is where a dialer learns with TLS 1.3
// that it was refused.
type outcome struct {
	server, client       error
	serverSaw, clientSaw tls.ConnectionState
}

// handshake connects over loopback. A nil client or server config means plain text from that end.
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
		o.serverSaw, o.server = speak(ctx, c, server, tls.Server)
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o.clientSaw, o.client = speak(ctx, c, client, tls.Client)
	<-done
	return o
}

// speak makes c secure, if it can, and sends and reads one line.
func speak(ctx context.Context, c net.Conn, cfg *tls.Config, as func(net.Conn, *tls.Config) *tls.Conn) (cs tls.ConnectionState, err error) {
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return cs, err
	}
	if cfg != nil {
		tc := as(c, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			return cs, err
		}
		c, cs = tc, tc.ConnectionState()
	}
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return cs, err
	}
	_, err = c.Read(make([]byte, 6))
	return cs, err
}

// rawConfig returns a configuration with certificates that Load would reject, or
// without a certificate.
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

// signed makes a certificate that CreateCert would not make.
func signed(t *testing.T, ca *tlstest.CA, names ...string) tls.Certificate {
	t.Helper()
	caCerts, err := tlsutil.ParseCerts(ca.Pair.Cert)
	if err != nil {
		t.Fatal(err)
	}
	caKey, err := tlsutil.ParseKey(ca.Pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), DNSNames: names, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, caCerts[0], key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
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
		o := handshake(t, srv.ServerConfig("a", "b"), tt.client.ClientConfig(tt.name, tt.alpn...))
		if o.server != nil || o.client != nil {
			t.Errorf("%s: server %v, client %v", tt.name, o.server, o.client)
			continue
		}
		p, err := tlsutil.PeerFromCert(o.serverSaw.PeerCertificates[0], srv.Domain())
		if err != nil || p != tt.client.Peer() {
			t.Errorf("%s: server saw %v, %v, want %v", tt.name, p, err, tt.client.Peer())
		}
		p, err = tlsutil.PeerFromCert(o.clientSaw.PeerCertificates[0], srv.Domain())
		if err != nil || p != srv.Peer() {
			t.Errorf("%s: client saw %v, %v", tt.name, p, err)
		}
		if o.serverSaw.NegotiatedProtocol != tt.proto || o.serverSaw.Version != tls.VersionTLS13 || o.serverSaw.DidResume {
			t.Errorf("%s: protocol %q, version %x, resumed %v", tt.name, o.serverSaw.NegotiatedProtocol, o.serverSaw.Version, o.serverSaw.DidResume)
		}
	}
}

func TestHandshake_Rejected(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	const target = "srv1.server.dc1.wanfed"
	srv, cli := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1"), ca.Identity(t, tlsutil.RoleServer, "srv2", "dc2")
	good := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	expired := good
	oldCA := tlstest.NewCAFrom(t, tlsutil.CARequest{Now: time.Now().AddDate(-1, 0, 0)})
	expired.Now, expired.Days = time.Now().AddDate(0, 0, -20), 10
	late := good
	late.Now = time.Now().Add(time.Hour)
	anyName, wild := rawConfig(t, ca, target), rawConfig(t, ca, target)
	anyName.Certificates = []tls.Certificate{signed(t, ca, "server.dc1.wanfed", target+".example")}
	wild.Certificates = []tls.Certificate{signed(t, ca, "srv9.server.dc9.wanfed", "*.server.dc1.wanfed")}
	two := rawConfig(t, ca, target)
	two.Certificates = []tls.Certificate{signed(t, ca, "srv1.server.dc1.wanfed", "srv1.server.dc2.wanfed")}
	tls12 := rawConfig(t, ca, target, ca.Issue(t, good))
	tls12.MinVersion, tls12.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	server, client := srv.ServerConfig("a"), func() *tls.Config { return cli.ClientConfig(target, "a") }
	identity := func(ca *tlstest.CA, p tlsutil.KeyPair, target string) *tls.Config { return rawConfig(t, ca, target, p) }

	for _, tt := range []struct {
		what               string
		server, client     *tls.Config
		wantServer, wantCl string // part of DescribeError; "": anything
	}{
		{"expired client", func() *tls.Config {
			return oldCA.Identity(t, tlsutil.RoleServer, "srv1", "dc1").ServerConfig("a")
		}(), identity(oldCA, oldCA.Issue(t, expired), target), "certificate of srv1.server.dc1.wanfed expired at 20", "our certificate: expired"},
		{"expired server", identity(oldCA, oldCA.Issue(t, expired), ""),
			oldCA.Identity(t, tlsutil.RoleServer, "srv2", "dc2").ClientConfig(target), "peer rejected our certificate",
			"certificate of srv1.server.dc1.wanfed expired at 20"},
		{"server not yet valid", identity(ca, ca.Issue(t, late), ""), client(), "", "is not valid before 20"},
		{"client of another CA", server, identity(ca, other.Issue(t, good), target), "is signed by another CA (CN=wanfed agent CA", "our certificate: signed by another CA"},
		{"identity of another CA", server, other.Identity(t, tlsutil.RoleServer, "srv1", "dc1").ClientConfig(target),
			"peer rejected our certificate", "certificate of srv1.server.dc1.wanfed is signed by another CA"},
		{"no client certificate", server, rawConfig(t, ca, target), "client didn't provide a certificate", "requires a certificate and we sent none"},
		{"server of another dc", ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2").ServerConfig("a"), client(),
			`SNI "srv1.server.dc1.wanfed" is none of this certificate's names (srv1.server.dc2.wanfed, `, "no certificate for the requested name"},
		{"server of another dc that ignores the SNI", identity(ca, ca.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}), ""),
			client(), "", "certificate of srv1.server.dc2.wanfed is not valid for srv1.server.dc1.wanfed"},
		{"another server of the dc", ca.Identity(t, tlsutil.RoleServer, "srv2", "dc1").ServerConfig("a"), client(), `SNI "srv1.`, ""},
		{"gateway instead of server", ca.Identity(t, tlsutil.RoleGateway, "srv1", "dc1").ServerConfig("a"), client(), `SNI "srv1.`, ""},
		{"client without a node", server, anyName, "no SAN of the form", "peer rejected our certificate"},
		{"client with two names", server, two, "certificate names two peers", ""},
		{"wildcard that covers another's name", wild, client(), "", "the certificate for srv1.server.dc1.wanfed is that of server/dc9/srv9"},
		{"unknown SNI", server, cli.ClientConfig("www.example.com", "a"), `SNI "www.example.com" is none`, ""},
		{"client certificate that serves", identity(ca, ca.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleOperator, Node: "srv1", DC: "dc1"}), ""),
			cli.ClientConfig("srv1.cli.dc1.wanfed"), "", "extended key usage"},
		{"no common protocol", server, cli.ClientConfig(target, "b"), "unsupported application protocols", "no common protocol (ALPN)"},
		{"TLS 1.2 client", server, tls12, "unsupported versions", "both sides need TLS 1.3"},
		{"plain text client", server, nil, "peer uses plain text", ""},
		{"plain text server", nil, client(), "", "peer uses plain text"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			o := handshake(t, tt.server, tt.client)
			if o.server == nil && tt.wantServer != "" || !strings.Contains(tlsutil.DescribeError(o.server), tt.wantServer) {
				t.Errorf("server: %q (%v), want %q", tlsutil.DescribeError(o.server), o.server, tt.wantServer)
			}
			if o.client == nil && tt.client != nil || !strings.Contains(tlsutil.DescribeError(o.client), tt.wantCl) {
				t.Errorf("client: %q (%v), want %q", tlsutil.DescribeError(o.client), o.client, tt.wantCl)
			}
			if strings.HasPrefix(tt.wantServer, "SNI") {
				var ne *tlsutil.NameError
				if !errors.As(o.server, &ne) {
					t.Errorf("server: %T is no *NameError", o.server)
				}
			}
		})
	}
}

// A server takes up a new certificate and a new CA without a new config; so does each new dial.
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
		t.Fatal(o.client, o.server)
	}
	if o := dial(ca2); o.client == nil {
		t.Fatal("another CA's client was let in")
	}
	// A CA is replaced in three steps: trust both, change certificates, trust the new one.
	both := append(append([]byte{}, ca1.Pair.Cert...), ca2.Pair.Cert...)
	tlstest.Write(t, f, both, ca2.Issue(t, req))
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	if o := dial(ca2); o.client != nil || o.server != nil {
		t.Errorf("new certificate, both CAs: client %v, server %v", o.client, o.server)
	}
	if o := handshake(t, ca2.Identity(t, tlsutil.RoleServer, "srv1", "dc2").ServerConfig(), srv.ClientConfig("server.dc2.wanfed")); o.client != nil || o.server != nil {
		t.Errorf("dial with the new certificate: client %v, server %v", o.client, o.server)
	}
	tlstest.Write(t, f, ca2.Pair.Cert, ca2.Issue(t, req))
	if err := srv.Reload(); err != nil {
		t.Fatal(err)
	}
	if o := handshake(t, cfg, rawConfig(t, ca2, "server.dc1.wanfed", ca1.Issue(t, req))); !strings.Contains(tlsutil.DescribeError(o.server), "another CA") {
		t.Errorf("client of the old CA: server error = %v, want another CA", o.server)
	}
}
