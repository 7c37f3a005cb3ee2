// SPDX-License-Identifier: MPL-2.0

// Package tlstest creates CAs and certificates for tests, as "wanfed tls" does, in
// temporary directories.
//
// Nothing runs in the background: identities are loaded, not watched. A fault ends
// the calling test. Only tests and their helper packages import it.
//
//	ca := tlstest.NewCA(t)
//	srv := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
//	gw := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
package tlstest
