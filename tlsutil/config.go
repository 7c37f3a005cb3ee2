// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
)

// ServerConfig is for accepting. It demands TLS 1.3 and a client certificate of the CA that names a peer. The SNI must be
// empty or a name of the own certificate; the handshake fails with a *NameError otherwise. alpn are the protocol ids
// accepted, best first. The config takes the newest certificate and CA at each handshake, so one serves for good.
//
// A client that offers no ALPN at all is let in, with an empty NegotiatedProtocol: the listener decides.
//
// There are no session tickets: each connection has a full handshake.
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

func (m *material) serverConfig(domain string, alpn []string) *tls.Config {
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

// ClientConfig is for dialing, with the certificate and CA of now: call it for each dial. It demands TLS 1.3, verifies the
// chain, that the peer's certificate is valid for serverName, and that it names a peer; when serverName is of the form
// [<node>.]<role>.<dc>.<domain>, that peer must be the one called. It sends the own certificate. alpn are the protocol ids
// offered, best first.
func (i *Identity) ClientConfig(serverName string, alpn ...string) *tls.Config {
	return i.current.Load().clientConfig(serverName, i.domain, alpn)
}

func (m *material) clientConfig(serverName, domain string, alpn []string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    m.cas,
		// Not Certificates: of those crypto/tls sends none when the server's list of CAs lacks ours, and the server would
		// then report a missing certificate, not one of another CA.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.cert, nil },
		NextProtos:           alpn,
		VerifyConnection: func(cs tls.ConnectionState) error {
			return checkCalled(cs.PeerCertificates[0], serverName, domain)
		},
	}
}

// checkCalled says whether leaf, valid for serverName, is a peer, and the one that serverName means. The second catches a
// wildcard that covers the names of others.
func checkCalled(leaf *x509.Certificate, serverName, domain string) error {
	p, err := PeerFromCert(leaf, domain)
	if err != nil {
		return err
	}
	want, ok := ParseName(serverName, domain)
	if ok && (want.Role != p.Role || want.DC != p.DC || want.Node != "" && want.Node != p.Node) {
		return fmt.Errorf("%s is answered by %v", serverName, p)
	}
	return nil
}

// NameError says that a caller asked for a name that the own certificate does not have.
type NameError struct {
	SNI       string
	CertNames []string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("SNI %.253q is none of this certificate's names (%s)", e.SNI, strings.Join(e.CertNames, ", "))
}
