// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Limits of a blocking query.
const (
	DefaultWait = 5 * time.Minute
	MaxWait     = 10 * time.Minute
)

// EffectiveWait returns the wait that the server uses for a requested wait. The
// server uses DefaultWait for 0, and never more than MaxWait.
func EffectiveWait(requested time.Duration) time.Duration {
	if requested <= 0 {
		return DefaultWait
	}
	return min(requested, MaxWait)
}

// MaxBlockTime returns the longest time that a server blocks for a wait. The
// server adds jitter of at most one sixteenth, so that simultaneous queries do
// not end simultaneously.
func MaxBlockTime(wait time.Duration) time.Duration { return wait + wait/16 }

// FederationStates returns the federation states of all datacenters, ordered by
// name. The query may block (QueryOptions.Index).
func (c *Client) FederationStates(ctx context.Context, q QueryOptions) ([]FederationState, QueryMeta, error) {
	var out []FederationState
	meta, err := c.get(ctx, "/v1/internal/federation-states", q, nil, &out)
	return out, meta, err
}

// FederationState returns the federation state of datacenter dc, or
// ErrNotFound. The query may block. Its index covers all states, not only the
// state of dc.
func (c *Client) FederationState(ctx context.Context, dc string, q QueryOptions) (FederationState, QueryMeta, error) {
	var out FederationStateResponse
	meta, err := c.get(ctx, "/v1/internal/federation-state/"+url.PathEscape(dc), q, nil, &out)
	switch {
	case isAbsent(meta, err), err == nil && out.State == nil:
		return FederationState{}, meta, fmt.Errorf("datacenter %q has %w", dc, ErrNotFound)
	case err != nil:
		return FederationState{}, meta, err
	}
	return *out.State, meta, nil
}

// MeshGateways returns the gateways of each datacenter that has any. The query
// may block.
func (c *Client) MeshGateways(ctx context.Context, q QueryOptions) (map[string][]MeshGateway, QueryMeta, error) {
	var out map[string][]MeshGateway
	meta, err := c.get(ctx, "/v1/internal/federation-states/mesh-gateways", q, nil, &out)
	return out, meta, err
}

// Members returns the members of the LAN pool, or of the WAN pool if wan is
// true.
func (c *Client) Members(ctx context.Context, wan bool, q QueryOptions) ([]Member, error) {
	extra := url.Values{}
	if wan {
		extra.Set("wan", "1")
	}
	var out []Member
	_, err := c.get(ctx, "/v1/agent/members", q, extra, &out)
	return out, err
}

// Datacenters returns the names of all known datacenters, nearest first.
func (c *Client) Datacenters(ctx context.Context, q QueryOptions) ([]string, error) {
	var out []string
	_, err := c.get(ctx, "/v1/catalog/datacenters", q, nil, &out)
	return out, err
}

// Leader returns the ip:port of the Raft leader, or "" if there is none.
func (c *Client) Leader(ctx context.Context, q QueryOptions) (string, error) {
	var out string
	_, err := c.get(ctx, "/v1/status/leader", q, nil, &out)
	return out, err
}

// Status returns the state of the federation as one datacenter sees it.
func (c *Client) Status(ctx context.Context, q QueryOptions) (Status, error) {
	var out Status
	_, err := c.get(ctx, StatusPath, q, nil, &out)
	return out, err
}

// Body returns the body of the response to a GET request for path, such as
// "/metrics", at most 64 MiB. path may have a query.
func (c *Client) Body(ctx context.Context, path string) ([]byte, error) {
	path, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	var body []byte
	_, err = c.get(ctx, path, QueryOptions{}, values, &body)
	return body, err
}
