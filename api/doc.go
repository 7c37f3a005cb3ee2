// SPDX-License-Identifier: MPL-2.0

// Package api is how programs talk to wanfed: the JSON types of the HTTP API, a thin client of it, and the gRPC
// connection over TLS links that exist already (NewGRPCClient, EstablishedTLS). The gRPC messages are in api/pb.
//
// It knows no server parts. The handlers are in server/httpapi; who may connect is decided by tlsutil.
//
// The JSON types carry Consul's field names, so that tools written for Consul's WAN federation decode them. Fields that
// Consul sends and wanfed has no value for keep the value Consul gives by default (Weights 1 and 1, an empty Proxy, ...).
// FromFederationState and its siblings turn gRPC messages into them.
//
// # HTTP
//
// Endpoints that are read by GET:
//
//	/v1/internal/federation-states                what every datacenter's gateways are
//	/v1/internal/federation-states/mesh-gateways  the gateways alone, by datacenter
//	/v1/internal/federation-state/{dc}            one of them, with the store's index
//	/v1/agent/members[?wan=1]                     servers of this datacenter, or of all
//	/v1/agent/federation-status                   Status: how well this datacenter sees the others
//	/v1/catalog/datacenters, /v1/status/leader, /v1/status/peers
//
// and resources of every type under ResourcePath, which package resource/resourcehttp describes.
//
// ?dc=NAME asks another datacenter. The first three block with ?index=N&wait=5m until the index is not N any more, at
// most DefaultWait when wait is absent and never longer than MaxBlock(MaxWait).
//
// # Goroutines and time
//
// A Client starts none of its own; net/http keeps idle connections until Close. Every request ends with its context, and
// after ClientConfig.Timeout (plus the wait asked for) in any case. Answers above 64 MiB are refused.
//
//	c, err := api.NewClient(api.ClientConfig{Addr: "127.0.0.1:8500"})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	states, meta, err := c.FederationStates(ctx, api.QueryOptions{})
//	// ... follow changes:
//	states, meta, err = c.FederationStates(ctx, api.QueryOptions{Index: meta.Index, Wait: time.Minute})
package api
