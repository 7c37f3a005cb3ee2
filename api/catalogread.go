// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"net/url"
)

// ServiceNames returns the tags of the instances of each service, by the name of
// the service. nodeMeta selects the instances by the metadata of their nodes.
// The query may block.
func (c *Client) ServiceNames(ctx context.Context, nodeMeta map[string]string, q QueryOptions) (map[string][]string, QueryMeta, error) {
	extra := url.Values{}
	for key, value := range nodeMeta {
		extra.Add("node-meta", key+":"+value)
	}
	var out map[string][]string
	meta, err := c.get(ctx, "/v1/catalog/services", q, extra, &out)
	return out, meta, err
}

// Nodes returns the nodes of a datacenter. The query may block.
func (c *Client) Nodes(ctx context.Context, q QueryOptions) ([]Node, QueryMeta, error) {
	var out []Node
	meta, err := c.get(ctx, "/v1/catalog/nodes", q, nil, &out)
	return out, meta, err
}

// NodeChecks returns the checks of nodes, without those of services. The query
// may block.
func (c *Client) NodeChecks(ctx context.Context, q QueryOptions) ([]Check, QueryMeta, error) {
	var out []Check
	meta, err := c.get(ctx, "/v1/health/state/any", q, url.Values{"filter": {`ServiceID == ""`}}, &out)
	return out, meta, err
}

// Keys returns the keys with a prefix. The query may block.
func (c *Client) Keys(ctx context.Context, prefix string, q QueryOptions) ([]Key, QueryMeta, error) {
	var out []Key
	meta, err := c.get(ctx, keyPath(prefix), q, url.Values{"recurse": {""}}, &out)
	if isAbsent(meta, err) {
		err = nil
	}
	return out, meta, err
}
