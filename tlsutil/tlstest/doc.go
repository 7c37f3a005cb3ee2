// SPDX-License-Identifier: MPL-2.0

// Package tlstest creates CAs and certificates for tests, in temporary
// directories. Identities do not reload their files. An error ends the calling
// test.
//
//	ca := tlstest.NewCA(t)
//	srv := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
//	gw := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
package tlstest
