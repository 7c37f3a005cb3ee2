// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"time"
)

// ServerConfig is for accepting. It demands TLS 1.3 and a client certificate of the CA that names a peer. The SNI must be
// empty or a name of the own certificate; the handshake fails with a *NameError otherwise. alpn are the protocol ids
// accepted, best first. The config takes the newest certificate and CA at each handshake, so one serves for good.
//
// A client that offers no ALPN at all is let in, with an empty NegotiatedProtocol: the listener decides.
//
// Clients that ask for it can resume their sessions, as ResumingClientConfig has it. ALPN is negotiated anew all the same.
func (i *Identity) ServerConfig(alpn ...string) *tls.Config {
	base := i.current.Load().serverConfig(i.domain, alpn)
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		m := i.current.Load()
		if sni := hello.ServerName; sni != "" && m.cert.Leaf.VerifyHostname(sni) != nil {
			return nil, &NameError{SNI: sni, CertNames: m.cert.Leaf.DNSNames}
		}
		cfg := m.serverConfig(i.domain, alpn)
		m.resumable(cfg, hello.ServerName)
		return cfg, nil
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
		SessionTicketsDisabled: true, // unless resumable
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := m.verifyResumed(cs, x509.ExtKeyUsageClientAuth); err != nil {
				return err
			}
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

// ResumingClientConfig is ClientConfig for who calls the same names again and again: when the peer still has the session of
// the last connection to serverName, the handshake resumes it, without certificates and signatures on the wire. All that a
// full handshake checks is checked then, too, with the CA and the time of now, and a Reload that changes anything on either
// side, or an hour, ends all sessions. A peer that has it no more, or another that has the same name, does a full
// handshake. Make one for each dial.
//
// The peer sends a ticket for the next connection after the handshake. So the caller must read from the connection until it
// ends: if it is closed while bytes of the peer lie unread, the kernel resets it, and what was written last may be lost.
func (i *Identity) ResumingClientConfig(serverName string, alpn ...string) *tls.Config {
	m := i.current.Load()
	cfg, sessions := m.clientConfig(serverName, i.domain, alpn), &dialSessions{kept: &m.kept}
	verify := cfg.VerifyConnection
	cfg.ClientSessionCache = sessions
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		if err := verify(cs); err != nil {
			return err
		}
		sessions.verified(cs)
		return nil
	}
	return cfg
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
			if err := m.verifyResumed(cs, x509.ExtKeyUsageServerAuth); err != nil {
				return err
			}
			return checkCalled(cs.PeerCertificates[0], serverName, domain)
		},
	}
}

// verifyResumed verifies the peer of a resumed session, from its certificate up to the CA, as it is now: crypto/tls does
// that in full handshakes only.
func (m *material) verifyResumed(cs tls.ConnectionState, use x509.ExtKeyUsage) error {
	if !cs.DidResume {
		return nil
	}
	if _, err := verifyFor(cs.PeerCertificates, m.cas, use, time.Now()); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return nil
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
