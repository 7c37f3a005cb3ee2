// SPDX-License-Identifier: MPL-2.0

// Package consultest has a fake Consul agent for tests. Consul's program cannot
// be part of the tests because of its licence (BUSL), so a fake replaces it.
//
// The responses have the headers and the JSON of responses that a Consul agent
// 1.21 gave in a federation of three datacenters (testdata). The fake replaces
// names, addresses, statuses and indexes in them. No response was recorded for
// /v1/health/service, /v1/health/state, /v1/catalog/services and /v1/kv, for PUT
// requests, and for the statuses 403 and 429. These follow Consul's
// documentation of its HTTP API.
package consultest
