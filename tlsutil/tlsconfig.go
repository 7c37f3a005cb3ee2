// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// ServerConfig returns a configuration for a listener. It requires TLS 1.3 and
// a client certificate of the CA that identifies a peer. The SNI must be empty
// or a name of the local certificate. Otherwise the handshake fails with a
// *NameError. alpn lists the accepted protocol ids in order of preference. Each
// handshake uses the current certificate and CA, so the configuration is always
// up to date.
//
// The handshake of a client without ALPN succeeds with an empty
// NegotiatedProtocol, so the listener must check the protocol. Session tickets
// are disabled: each connection has a full handshake, which refuses revoked
// certificates. The connections need a Guard (Accepted), which closes them when
// the certificate of the client is no longer valid.
func (i *Identity) ServerConfig(alpn ...string) *tls.Config {
	base := i.serverConfig(i.current.Load(), alpn)
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		m := i.current.Load()
		if sni := hello.ServerName; sni != "" && m.cert.Leaf.VerifyHostname(sni) != nil {
			return nil, &NameError{SNI: sni, CertNames: m.cert.Leaf.DNSNames}
		}
		return i.serverConfig(m, alpn), nil
	}
	return base
}

// AnyClientConfig returns a configuration for a listener that does not verify
// its clients. It requires TLS 1.3. Each handshake uses the current certificate.
// alpn lists the accepted protocol ids in order of preference.
func (i *Identity) AnyClientConfig(alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: alpn,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &i.current.Load().cert, nil
		},
		SessionTicketsDisabled: true,
	}
}

// EnrollConfig is like AnyClientConfig, for clients that do not have the CA yet
// and know only the fingerprint of its certificate: the trusted CAs follow the
// local certificate.
func (i *Identity) EnrollConfig(alpn string) *tls.Config {
	cfg := i.AnyClientConfig(alpn)
	cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		m := i.current.Load()
		c := m.cert
		c.Certificate = slices.Clone(c.Certificate)
		for _, root := range m.roots {
			c.Certificate = append(c.Certificate, root.Raw)
		}
		return &c, nil
	}
	return cfg
}

func (i *Identity) serverConfig(m *credentials, alpn []string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{m.cert},
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              m.cas,
		NextProtos:             alpn,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if _, err := PeerFromCert(cs.PeerCertificates[0], i.domain); err != nil {
				return err
			}
			return i.revoked.Load().check(cs.VerifiedChains)
		},
	}
}

// ClientConfig returns a configuration for one dial, with the current
// certificate and CA. It requires TLS 1.3 and a server certificate of the CA
// that is valid for serverName and identifies a server. If serverName has the
// form [<node>.]<role>.<dc>.<domain>, the certificate must identify that peer.
// alpn lists the offered protocol ids in order of preference. A connection that
// may outlive a change of trust needs a Guard: use Client, or Dialed.
func (i *Identity) ClientConfig(serverName string, alpn ...string) *tls.Config {
	m := i.current.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    m.cas,
		// With the field Certificates, crypto/tls sends no certificate if the
		// list of CAs of the server lacks the local CA. The server would then
		// report a missing certificate instead of a certificate of another CA.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.cert, nil },
		NextProtos:           alpn,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := checkServerName(cs.PeerCertificates[0], serverName, i.domain); err != nil {
				return err
			}
			return i.revoked.Load().check(cs.VerifiedChains)
		},
	}
}

// checkServerName returns an error unless leaf identifies the peer in
// serverName, or any server if serverName does not contain a peer. leaf is valid
// for serverName, but a wildcard certificate is valid for the names of several
// peers.
func checkServerName(leaf *x509.Certificate, serverName, domain string) error {
	p, err := PeerFromCert(leaf, domain)
	if err != nil {
		return err
	}
	want, ok := ParseName(serverName, domain)
	if !ok && p.Role != RoleServer {
		return fmt.Errorf("the certificate for %s is that of %v, which is not a server", serverName, p)
	}
	if ok && (want.Role != p.Role || want.DC != p.DC || want.Node != "" && want.Node != p.Node) {
		return fmt.Errorf("the certificate for %s is that of %v", serverName, p)
	}
	return nil
}

// NameError is the error of a handshake whose SNI is not in the local
// certificate.
type NameError struct {
	SNI       string
	CertNames []string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("SNI %.253q is none of this certificate's names (%s)", e.SNI, strings.Join(e.CertNames, ", "))
}
