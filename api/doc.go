// SPDX-License-Identifier: MPL-2.0

// Package api is the interface between wanfed and other programs. It contains
// the JSON types of the HTTP API, a [Client] of that API, and gRPC clients over
// existing TLS connections ([NewGRPCClient], [EstablishedTLS]). Package api/pb
// contains the gRPC messages.
//
// The handlers of the HTTP API are in server/httpapi. Package tlsutil
// authenticates peers.
//
// The JSON types have Consul's field names, so tools for Consul's WAN federation
// can decode them. If Consul sends a field for which wanfed has no value, the
// field has Consul's default: for example, both Weights are 1 and Proxy is
// empty. [FromFederationState] and the other functions named From convert gRPC
// messages.
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
// Resources of every type are under [ResourcePath]. See package
// resource/resourcehttp.
//
// The parameter ?dc=NAME selects another datacenter. With ?index=N&wait=5m, the
// first three endpoints block until the index differs from N or the wait has
// passed. The default wait is [DefaultWait], the maximum [MaxWait]. The server
// adds a random part to the wait: see [MaxBlockTime].
//
// # Guarantees and limits
//
// A Client starts no goroutines of its own. Package net/http keeps idle
// connections open until Close. A request ends when its context ends, and at
// the latest after ClientConfig.Timeout plus its wait. A response above 64 MiB
// is an error.
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
