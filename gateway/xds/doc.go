// SPDX-License-Identifier: MPL-2.0

// Package xds serves snapshots of gateways to Envoy proxies, with version 3 of
// Envoy's discovery protocol (xDS). Envoy then forwards the same names to the
// same addresses as the native gateway.
//
//	s := xds.NewServer(xds.Config{Snapshot: manager.Snapshot, Gateway: gatewayOf, Logger: logger})
//	discoveryv3.RegisterAggregatedDiscoveryServiceServer(grpcServer, s)
//	go s.Run(ctx)
//
// # Resources
//
// A snapshot becomes two listeners, "lan" and "wan". Each has a TLS inspector
// and a filter chain per name (SNI), which forwards to the cluster of that name.
// There is a cluster for any server of the local datacenter, one for each
// server, and one for each other datacenter. The addresses of a cluster are
// endpoints (EDS), in the order of the snapshot as priorities. [Server.Run] resolves
// host names, so that Envoy never connects to an address of a kind that the snapshot
// refuses. A proxy keeps its endpoints until a name is resolved. Outlier detection
// ejects an address that fails, and keeps using all if all fail.
//
// The metadata of the node may have lan_bind and wan_bind, the addresses on
// which Envoy listens if the registered addresses are not its own.
//
// # Protocol
//
// A stream carries all types, in the incremental or in the state-of-the-world
// variant. The version of a resource is a hash of its content. A response is
// sent only if the subscribed resources changed, and only after the proxy has
// answered the previous response of that type. Changes in the meantime cost one
// response. After a reconnection, the proxy receives what changed since.
//
// A proxy that rejects a response continues with the last accepted resources.
// [Server.Proxies] returns its message. The same content would be rejected again,
// so the server sends the next response after the next change of the type. That
// response also has the other resources of the rejected one, because the proxy
// may have applied any part of it. After a reconnection, the proxy receives what
// it has not accepted.
//
// # Goroutines
//
// Run has up to 16 goroutines for lookups, and joins them. Each stream has one
// goroutine besides that of its call. All proxies share the
// encoded clusters, endpoints and filter chains, and the list of subscribed
// names. A stream remembers what its proxy has as the set of the last response,
// so a change costs a comparison of two sets.
package xds
