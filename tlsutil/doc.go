// SPDX-License-Identifier: MPL-2.0

// Package tlsutil identifies peers by their certificates. It defines the names
// in certificates, creates CAs and certificates, and provides TLS
// configurations that accept only these certificates.
//
// A certificate identifies a peer by role, node and datacenter, with a SAN
// <node>.<role>.<dc>.<domain> (PeerFromCert). Certificates of servers and
// gateways also have the SAN <role>.<dc>.<domain>, for dialers that accept any
// server or gateway of a datacenter. Other packages decide the permissions of a
// peer.
//
// CreateCA and CreateCert create certificates. Certificates of any other CA
// with these names can be used too. Load checks the files of a process and
// returns an Identity:
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
// Both ends require TLS 1.3 and a certificate of the CA that identifies a peer.
// A server rejects an SNI that its certificate does not have. A dialer rejects
// a certificate of another peer, or one that is not valid for the dialed name.
// Each connection verifies both certificates, because sessions are not resumed.
// The package sets no deadlines: each handshake needs a context with a
// deadline.
//
// # Reload
//
// Run reloads changed files until its context ends. Handshakes never wait for a
// reload. To replace a CA, put the old and the new CA into all CA files, then
// replace the certificates, then remove the old CA.
//
// # Open connections
//
// A connection ends with the right of its peer to exist. Identity.Client returns
// such a connection, and Identity.Accepted and Identity.Dialed wrap others. Run
// verifies their peers again after each reload, once a minute and at expiry, and
// closes the connections of those that fail. Connections of other peers are not
// affected. A connection survives the certificate with which it was opened if the
// peer has shown a newer one in another handshake: see Refresh.
//
// # Renewal
//
// Certificates of enrolment are renewed by their holder (package enroll), which
// calls Replace at the time of RenewAt. Others are replaced by an operator.
//
// # Revocation
//
// Revoke creates a revocation list (RFC 5280), signed by a CA: serial numbers,
// and names with a time before which certificates were created. An Identity
// takes the list from the file next to its CA file, or by AddRevocations. It
// never replaces a list by an older one. A list does not expire.
//
// # Limits
//
// The package does not support OCSP. Key files cannot be encrypted.
package tlsutil
