// SPDX-License-Identifier: MPL-2.0

// Package revocation has the federated type tls/v1/RevocationList: the revoked
// certificates of one CA. It puts the lists of a server's store in force:
//
//	err := revocation.Register(registry, identity)
//	err = revocation.Run(ctx, revocation.Config{Backend: store, Identity: identity, File: file, Logger: logger})
//
// A list is signed by its CA (package tlsutil), so a list that a server stores
// or sends cannot be forged. A write is refused unless a CA of the certificate
// file signed the list, and unless its number is at least that of the list in
// force. The name of the resource is RevocationList.ID.
//
// Run saves the lists in force to a file, which the next process reads before it
// accepts a connection. A deleted resource, or the restore of an older snapshot,
// therefore takes no list out of force.
package revocation
