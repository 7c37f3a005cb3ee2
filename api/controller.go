// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"time"
)

// ControllersPath is the path of the controllers of a server, an endpoint that
// Consul does not have.
const ControllersPath = "/v1/agent/controllers"

// Controller is the state of one controller in one process.
type Controller struct {
	Name      string   `json:"name"`
	Managed   string   `json:"managed"` // group/version/Kind
	Watches   []string `json:"watches,omitempty"`
	Placement string   `json:"placement"` // "leader" or "every server"
	// Running is false while another process leads, and between a failure and
	// the next start.
	Running    bool   `json:"running"`
	Queued     int    `json:"queued"`     // ids that wait for a worker
	Reconciles uint64 `json:"reconciles"` // since the start of the process
	Errors     uint64 `json:"errors"`     // reconciles that failed
	// Rate is the number of reconciles per second, averaged over about a
	// minute.
	Rate float64 `json:"rate"`
	// LastError is the last error of a reconcile or of a start. Empty: none
	// since the start of the process.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// Controllers returns the controllers of the server that responds.
func (c *Client) Controllers(ctx context.Context, q QueryOptions) ([]Controller, error) {
	var out []Controller
	_, err := c.get(ctx, ControllersPath, q, nil, &out)
	return out, err
}
