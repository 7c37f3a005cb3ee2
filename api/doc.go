// SPDX-License-Identifier: MPL-2.0

// Package api is the interface between wanfed and other programs. It has the
// JSON types of the HTTP API, a [Client] of that API, and gRPC clients over
// existing TLS connections ([NewGRPCClient], [EstablishedTLS]). Package api/pb
// has the gRPC messages. Package server/httpapi has the handlers of the HTTP
// API.
//
//	c, err := api.NewClient(api.ClientConfig{Addr: "127.0.0.1:8500"})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	states, meta, err := c.FederationStates(ctx, api.QueryOptions{})
//	// ... wait for a change:
//	states, meta, err = c.FederationStates(ctx, api.QueryOptions{Index: meta.Index, Wait: time.Minute})
//
// The JSON types have Consul's field names, so tools for Consul's WAN
// federation can decode them. A field of Consul for which wanfed has no value
// has Consul's default. For example, both Weights are 1 and Proxy is empty. The
// functions named From, such as [FromFederationState], convert gRPC messages.
//
// # HTTP
//
// The client reads these endpoints with GET:
//
//	/v1/internal/federation-states                gateways of all datacenters
//	/v1/internal/federation-states/mesh-gateways  the gateways alone, by datacenter
//	/v1/internal/federation-state/{dc}            one datacenter, with the store's index
//	/v1/agent/members[?wan=1]                     servers of this or all datacenters
//	/v1/agent/federation-status                   Status: how this datacenter sees the others
//	/v1/catalog/datacenters, /v1/status/leader
//
// Resources of every type are below [ResourcePath]. See package
// resource/resourcehttp.
//
// The parameter ?dc=NAME selects another datacenter. With ?index=N&wait=5m, the
// first three endpoints block until the index differs from N or the wait has
// passed. See [DefaultWait], [MaxWait] and [MaxBlockTime].
//
// # Guarantees and limits
//
// A Client starts no goroutines of its own. Package net/http keeps idle
// connections open until Close. A request ends when its context ends, and at
// the latest after ClientConfig.Timeout plus its wait. A response above 64 MiB
// is an error.
package api
