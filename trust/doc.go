// SPDX-License-Identifier: MPL-2.0

// Package trust has the federated type tls/v1/Trust: the CAs that all processes
// of all datacenters trust. It applies the resource of a server's store:
//
//	err := trust.Register(registry, identity)
//	err = trust.Run(ctx, trust.Config{Backend: store, Identity: identity, Logger: logger})
//
// The only resource has the name [Name]. Its content is signed by a CA that
// processes trust already (package tlsutil), so a server that stores or sends it
// cannot add a CA. A write is refused unless an operator makes it, the signature
// is valid, and its number is above that in force. Each process keeps the number
// in its CA file, so an older snapshot of the store has no effect. Gateways receive
// it with their snapshots ([AddTo]).
//
// Run starts one goroutine and joins it. It does not close connections whose peers
// have a certificate of a CA that stays.
package trust
