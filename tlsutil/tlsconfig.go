// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
)

// ServerConfig returns a configuration for a listener. It requires TLS 1.3 and a
// client certificate of the CA that names a peer. The SNI must be empty or a name
// of this process's certificate, otherwise the handshake fails with a *NameError.
// alpn lists the accepted protocol ids, best first. Each handshake uses the
// current certificate and CA, so one configuration can be used indefinitely.
//
// A client without ALPN is accepted with an empty NegotiatedProtocol, and the
// listener decides. Session tickets are disabled: each connection has a full
// handshake.
func (i *Identity) ServerConfig(alpn ...string) *tls.Config {
	base := i.current.Load().serverConfig(i.domain, alpn)
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		m := i.current.Load()
		if sni := hello.ServerName; sni != "" && m.cert.Leaf.VerifyHostname(sni) != nil {
			return nil, &NameError{SNI: sni, CertNames: m.cert.Leaf.DNSNames}
		}
		return m.serverConfig(i.domain, alpn), nil
	}
	return base
}

func (m *credentials) serverConfig(domain string, alpn []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{m.cert},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              m.cas,
		NextProtos:             alpn,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := PeerFromCert(cs.PeerCertificates[0], domain)
			return err
		},
	}
}

// ClientConfig returns a configuration for one dial, with the current certificate
// and CA. It requires TLS 1.3 and a peer certificate that verifies, is valid for
// serverName and names a peer. If serverName is [<node>.]<role>.<dc>.<domain>, it
// must be that peer. alpn lists the offered protocol ids, best first.
func (i *Identity) ClientConfig(serverName string, alpn ...string) *tls.Config {
	return i.current.Load().clientConfig(serverName, i.domain, alpn)
}

func (m *credentials) clientConfig(serverName, domain string, alpn []string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    m.cas,
		// With the field Certificates, crypto/tls sends none if the server's list of
		// CAs lacks ours. The server would then report a missing certificate, not one
		// of another CA.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.cert, nil },
		NextProtos:           alpn,
		VerifyConnection: func(cs tls.ConnectionState) error {
			return checkServerName(cs.PeerCertificates[0], serverName, domain)
		},
	}
}

// checkServerName returns an error unless leaf, which is valid for serverName,
// names a peer, and that peer is the one in serverName. A wildcard certificate may
// be valid for the names of other peers.
func checkServerName(leaf *x509.Certificate, serverName, domain string) error {
	p, err := PeerFromCert(leaf, domain)
	if err != nil {
		return err
	}
	want, ok := ParseName(serverName, domain)
	if ok && (want.Role != p.Role || want.DC != p.DC || want.Node != "" && want.Node != p.Node) {
		return fmt.Errorf("the certificate for %s is that of %v", serverName, p)
	}
	return nil
}

// NameError reports an SNI that is not in this process's certificate.
type NameError struct {
	SNI       string
	CertNames []string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("SNI %.253q is none of this certificate's names (%s)", e.SNI, strings.Join(e.CertNames, ", "))
}
