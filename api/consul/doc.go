// SPDX-License-Identifier: MPL-2.0

// Package consul connects to an agent of Consul, version 1.18 to 1.21, and
// repeats blocking queries. Package api is the client of Consul's API, because
// wanfed's API has the same endpoints.
//
//	client, err := consul.FromEnv().Client()
//	for entries, err := range consul.Repeat(ctx, consul.Wait, read) {
//		...
//	}
package consul
