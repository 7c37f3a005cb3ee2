// SPDX-License-Identifier: MPL-2.0

// Package tlstest makes real CAs and certificates for tests, as "wanfed tls" would, in folders that the test removes. What
// they mean is package tlsutil's.
//
// Nothing runs in the background: identities are loaded, not watched. A fault ends the test that asked. Only tests and other
// kits for tests import it.
//
//	ca := tlstest.NewCA(t)
//	srv := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
//	gw := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
package tlstest
