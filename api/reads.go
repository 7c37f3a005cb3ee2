// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// FederationStates returns the federation state of every datacenter, by name. It may block (QueryOptions.Index).
func (c *Client) FederationStates(ctx context.Context, q QueryOptions) ([]FederationState, QueryMeta, error) {
	var out []FederationState
	meta, err := c.get(ctx, "/v1/internal/federation-states", q, nil, &out)
	return out, meta, err
}

// FederationState returns that of datacenter dc, or ErrNotFound. It may block; the index is that of all states together.
func (c *Client) FederationState(ctx context.Context, dc string, q QueryOptions) (FederationState, QueryMeta, error) {
	var out FederationStateResponse
	meta, err := c.get(ctx, "/v1/internal/federation-state/"+url.PathEscape(dc), q, nil, &out)
	// An empty body is the API's own 404; another one is from something that does not know the path.
	if s, ok := errors.AsType[*StatusError](err); ok && s.Code == http.StatusNotFound && s.Message == "" {
		return FederationState{}, meta, fmt.Errorf("datacenter %q has %w", dc, ErrNotFound)
	}
	if err != nil {
		return FederationState{}, meta, err
	}
	if out.State == nil {
		return FederationState{}, meta, fmt.Errorf("datacenter %q has %w", dc, ErrNotFound)
	}
	return *out.State, meta, nil
}

// MeshGateways returns the gateways of each datacenter that has any. It may block.
func (c *Client) MeshGateways(ctx context.Context, q QueryOptions) (map[string][]MeshGateway, QueryMeta, error) {
	var out map[string][]MeshGateway
	meta, err := c.get(ctx, "/v1/internal/federation-states/mesh-gateways", q, nil, &out)
	return out, meta, err
}

// Members returns the servers of one datacenter (the LAN pool), or of all (wan).
func (c *Client) Members(ctx context.Context, wan bool, q QueryOptions) ([]Member, error) {
	extra := url.Values{}
	if wan {
		extra.Set("wan", "1")
	}
	var out []Member
	_, err := c.get(ctx, "/v1/agent/members", q, extra, &out)
	return out, err
}

// Datacenters returns the names of all datacenters known, nearest first.
func (c *Client) Datacenters(ctx context.Context, q QueryOptions) ([]string, error) {
	var out []string
	_, err := c.get(ctx, "/v1/catalog/datacenters", q, nil, &out)
	return out, err
}

// Leader returns the ip:port of the Raft leader; empty when there is none.
func (c *Client) Leader(ctx context.Context, q QueryOptions) (string, error) {
	var out string
	_, err := c.get(ctx, "/v1/status/leader", q, nil, &out)
	return out, err
}

// Peers returns the ip:port of each member of the Raft group.
func (c *Client) Peers(ctx context.Context, q QueryOptions) ([]string, error) {
	var out []string
	_, err := c.get(ctx, "/v1/status/peers", q, nil, &out)
	return out, err
}

// Status returns how well the datacenter asked sees the federation.
func (c *Client) Status(ctx context.Context, q QueryOptions) (Status, error) {
	var out Status
	_, err := c.get(ctx, StatusPath, q, nil, &out)
	return out, err
}
