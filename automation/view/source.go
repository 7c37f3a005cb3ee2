// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"iter"

	"github.com/wanfed/wanfed/api"
)

// Source gives the data of a federation. NewSource implements it for a server of
// wanfed. All methods may be called from any goroutine.
type Source interface {
	// Watch returns the current resources of a stream as upserts, then
	// api.EventEndOfSnapshot, and then every change. The sequence ends with an
	// error, or when ctx ends or the caller stops. The caller then watches again.
	Watch(ctx context.Context, s Stream) iter.Seq2[api.ResourceEvent, error]
	// Status returns the state of the federation as the local datacenter sees it.
	Status(ctx context.Context) (api.Status, error)
	// Members returns the members of the LAN pool of the local datacenter, or of
	// the WAN pool.
	Members(ctx context.Context, wan bool) ([]api.Member, error)
}

// Stream selects the resources of a type in a datacenter whose names have a
// prefix.
type Stream struct {
	Datacenter string
	Type       api.ResourceTypeName
	Prefix     string
}

type apiSource struct{ c *api.Client }

// NewSource returns the Source of a server of wanfed. The requests for other
// datacenters pass through the gateways. The caller closes c when the Views have
// ended.
func NewSource(c *api.Client) Source { return apiSource{c} }

func (s apiSource) Watch(ctx context.Context, st Stream) iter.Seq2[api.ResourceEvent, error] {
	return s.c.WatchResources(ctx, st.Type, api.Tenancy{},
		api.ResourceOptions{Datacenter: st.Datacenter, Prefix: st.Prefix})
}

func (s apiSource) Status(ctx context.Context) (api.Status, error) {
	return s.c.Status(ctx, api.QueryOptions{})
}

func (s apiSource) Members(ctx context.Context, wan bool) ([]api.Member, error) {
	return s.c.Members(ctx, wan, api.QueryOptions{})
}
