// SPDX-License-Identifier: MPL-2.0

// Package api is the interface of programs to wanfed. It contains the JSON types of
// the HTTP API, a client of it, and gRPC clients over existing TLS connections
// (NewGRPCClient, EstablishedTLS). The gRPC messages are in api/pb.
//
// The handlers of the HTTP API are in server/httpapi. Package tlsutil authenticates
// peers.
//
// The JSON types have Consul's field names, so that tools for Consul's WAN
// federation can decode them. Fields that Consul sends and wanfed has no value for
// have Consul's default (Weights 1 and 1, an empty Proxy, ...). FromFederationState
// and the other functions named From convert gRPC messages.
//
// # HTTP
//
// These endpoints are read with GET:
//
//	/v1/internal/federation-states                gateways of all datacenters
//	/v1/internal/federation-states/mesh-gateways  the gateways alone, by datacenter
//	/v1/internal/federation-state/{dc}            one datacenter, with the store's index
//	/v1/agent/members[?wan=1]                     servers of this or all datacenters
//	/v1/agent/federation-status                   Status: how this datacenter sees the others
//	/v1/catalog/datacenters, /v1/status/leader, /v1/status/peers
//
// Resources of every type are under ResourcePath. See package
// resource/resourcehttp.
//
// ?dc=NAME selects another datacenter. The first three endpoints block with
// ?index=N&wait=5m until the index differs from N. The default wait is DefaultWait,
// the longest is MaxBlockTime(MaxWait).
//
// # Guarantees and limits
//
// A Client starts no goroutines of its own. net/http keeps idle connections until
// Close. Every request ends with its context, and after ClientConfig.Timeout plus
// its wait. Responses above 64 MiB are an error.
//
//	c, err := api.NewClient(api.ClientConfig{Addr: "127.0.0.1:8500"})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	states, meta, err := c.FederationStates(ctx, api.QueryOptions{})
//	// ... wait for a change:
//	states, meta, err = c.FederationStates(ctx, api.QueryOptions{Index: meta.Index, Wait: time.Minute})
package api
