// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// AgentService is a service that is registered at the responding agent.
type AgentService struct {
	Kind, ID, Service string
	Address           string
	Port              int
	TaggedAddresses   map[string]ServiceAddress
	Meta              map[string]string
	Datacenter        string
}

// ServiceRegistration registers a service at an agent, with at most one check.
type ServiceRegistration struct {
	Kind, ID, Name  string
	Tags            []string `json:",omitempty"`
	Address         string
	Port            int
	TaggedAddresses map[string]ServiceAddress
	Meta            map[string]string
	Check           ServiceCheck `json:",omitzero"`
}

// ServiceCheck is a check with a TTL: it becomes critical if PassCheck is not
// called within the TTL. Its id is "service:" and the id of the service.
type ServiceCheck struct {
	Name   string
	TTL    time.Duration
	Status string // initial status
	// DeregisterAfter is the time for which the check may be critical. After it
	// the agent deregisters the service. 0: no limit. Consul's minimum: 1 min.
	DeregisterAfter time.Duration
}

// MarshalJSON returns the check in the form that an agent accepts.
func (c ServiceCheck) MarshalJSON() ([]byte, error) {
	out := map[string]string{"Name": c.Name, "TTL": c.TTL.String(), "Status": c.Status}
	if c.DeregisterAfter > 0 {
		out["DeregisterCriticalServiceAfter"] = c.DeregisterAfter.String()
	}
	return json.Marshal(out)
}

// CheckID returns the id of the check of a service.
func CheckID(service string) string { return "service:" + service }

// ServiceHealth returns the instances of a service with their checks. The query
// may block.
func (c *Client) ServiceHealth(ctx context.Context, service string, q QueryOptions) ([]ServiceEntry, QueryMeta, error) {
	var out []ServiceEntry
	meta, err := c.get(ctx, "/v1/health/service/"+url.PathEscape(service), q, nil, &out)
	return out, meta, err
}

// AgentService returns a service of the responding agent. If the agent does not
// have the service, the error has the HTTP status 404 (IsStatus). The query may
// block (QueryOptions.Hash).
func (c *Client) AgentService(ctx context.Context, id string, q QueryOptions) (AgentService, QueryMeta, error) {
	var out AgentService
	meta, err := c.get(ctx, "/v1/agent/service/"+url.PathEscape(id), q, nil, &out)
	return out, meta, err
}

// RegisterService registers a service at the responding agent, or replaces its
// registration and its checks.
func (c *Client) RegisterService(ctx context.Context, r ServiceRegistration) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return c.putAgent(ctx, "/v1/agent/service/register", url.Values{"replace-existing-checks": {"true"}}, body)
}

// DeregisterService removes a service of the responding agent. If the agent does
// not have the service, the error has the HTTP status 404 (IsStatus).
func (c *Client) DeregisterService(ctx context.Context, id string) error {
	return c.putAgent(ctx, "/v1/agent/service/deregister/"+url.PathEscape(id), nil, nil)
}

// PassCheck sets a check of the responding agent to passing and restarts its
// TTL. If the agent does not have the check, the error has the HTTP status 404
// (IsStatus).
func (c *Client) PassCheck(ctx context.Context, id string) error {
	return c.putAgent(ctx, "/v1/agent/check/pass/"+url.PathEscape(id), nil, nil)
}

func (c *Client) putAgent(ctx context.Context, path string, values url.Values, body []byte) error {
	_, err := c.call(ctx, c.timeout, http.MethodPut, path, values, body, nil)
	return err
}
