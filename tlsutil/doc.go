// SPDX-License-Identifier: MPL-2.0

// Package tlsutil identifies peers by their certificates. It defines the names in
// certificates, creates CAs and certificates, and provides TLS configurations that
// accept no other peers.
//
// A peer is the role, node and datacenter in its verified certificate
// (PeerFromCert), which has a SAN <node>.<role>.<dc>.<domain>. Servers and gateways
// also have <role>.<dc>.<domain>, for dialers that accept any of them. Other
// packages decide what a peer may do.
//
// CreateCA and CreateCert create the files. Certificates of any other CA with these
// names can be used too. Load checks the files of a process and returns an
// Identity:
//
//	id, err := tlsutil.Load(tlsutil.Files{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"}, "wanfed", logger)
//	if err != nil {
//		return err
//	}
//	if err := id.VerifySubject(tlsutil.RoleServer, "srv1", "dc2"); err != nil {
//		return err
//	}
//	ln = tls.NewListener(ln, id.ServerConfig("h2"))                   // once
//	c := tls.Client(conn, id.ClientConfig("server.dc1.wanfed", "h2")) // for each dial
//	if err := c.HandshakeContext(ctx); err != nil {
//		return errors.New(tlsutil.DescribeError(err))
//	}
//
// # Handshakes
//
// Both ends require TLS 1.3 and a certificate of the CA that names a peer. A
// server rejects an SNI that its certificate does not have. A dialer rejects a
// certificate that is not valid for the dialed name, or that is of another peer.
// This package sets no deadlines: each handshake needs a context with a deadline.
// Sessions are not resumed. Each connection verifies the certificates of both ends.
//
// # Reload
//
// Run reloads changed files until its context ends. It runs in the caller's
// goroutine, with one of fsnotify that ends with it. Handshakes never wait for a
// reload. Existing connections stay open after a reload. To replace a CA, put the
// old and the new one into all CA files, then replace the certificates, then
// remove the old CA.
//
// # Limits
//
// There are no revocation lists and no OCSP: use short validity, or replace the
// CA. Key files cannot be encrypted. The name of a peer cannot be a wildcard.
package tlsutil
