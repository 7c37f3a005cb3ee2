// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"net/url"
)

// PolicyCheckPath is the path of decisions about callers, an endpoint that
// Consul does not have.
const PolicyCheckPath = "/v1/internal/policy/check"

// PolicyRequest has a caller and what it wants to do.
type PolicyRequest struct {
	// As is the name of a user of the datacenter, "anonymous", or the name in a
	// certificate without the domain: node.role.datacenter.
	As string
	// Verb is read, list, write or delete.
	Verb string
	// Type is the type of the resource, and Name its name. For the verb list,
	// Name is the beginning of all names.
	Type, Name string
}

// PolicyDecision is the response to a PolicyRequest.
type PolicyDecision struct {
	Caller    string `json:"caller"` // role/dc/node
	Permitted bool   `json:"permitted"`
	// Reason is why it is refused. Empty if it is permitted.
	Reason string `json:"reason,omitempty"`
}

// CheckPolicy returns what a server decides for a caller.
func (c *Client) CheckPolicy(ctx context.Context, p PolicyRequest, q QueryOptions) (PolicyDecision, error) {
	var out PolicyDecision
	_, err := c.get(ctx, PolicyCheckPath, q,
		url.Values{"as": {p.As}, "verb": {p.Verb}, "type": {p.Type}, "name": {p.Name}}, &out)
	return out, err
}
