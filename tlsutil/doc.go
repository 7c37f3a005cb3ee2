// SPDX-License-Identifier: MPL-2.0

// Package tlsutil says who is who: names on the wire, certificates that carry them, the CA that vouches for them, and TLS
// configurations that accept nobody else.
//
// A peer is what its verified certificate says (PeerOf): role, node and datacenter stand in the SAN
// <node>.<role>.<dc>.<domain>. Servers and gateways also have <role>.<dc>.<domain>, for callers that want any of them.
// What a peer may do is for others to decide; this package only says who it is.
//
// CreateCA and CreateCert make the files; any other CA whose certificates have these names will do. Load checks a process's
// files for all that would make handshakes fail later and gives an Identity:
//
//	id, err := tlsutil.Load(tlsutil.Files{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"}, "wanfed", logger)
//	if err != nil {
//		return err
//	}
//	if err := id.CheckHolder(tlsutil.RoleServer, "srv1", "dc2"); err != nil {
//		return err
//	}
//	ln = tls.NewListener(ln, id.ServerConfig("h2"))                       // once
//	c := tls.Client(conn, id.ClientConfig("server.dc1.wanfed", "h2"))     // for each dial
//	err = c.HandshakeContext(ctx)                                         // Explain(err) is for people
//
// Both ends demand TLS 1.3 and a certificate of the CA that names a peer. Names are checked by both: a server refuses an
// SNI that is none of its own names, a dialer a certificate that is not valid for, or not of, the one it called. Nothing
// here sets deadlines: give each handshake a context that has one.
//
// TLS sessions are not resumed: each connection verifies the certificates of
// both ends in a full handshake.
//
// Run follows the files while ctx lasts, in the caller's goroutine and one of fsnotify's, which ends with it. Handshakes
// never wait for a reload: they read a value from an atomic pointer. Connections that exist are not closed when
// the certificate or the CA changes. To replace a CA, put old and new in the CA file everywhere, then change the
// certificates, then take the old CA out.
//
// Limits: no revocation lists and no OCSP (give certificates short lives, or replace the CA); no encrypted key files; no
// wildcard as a peer's own name.
package tlsutil
