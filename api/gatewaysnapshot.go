// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"time"
)

// GatewaySnapshotsPath is the path of the list of GatewaySnapshot, an endpoint
// that Consul does not have.
const GatewaySnapshotsPath = "/v1/agent/gateway-snapshots"

// GatewaySnapshot is the configuration that the responding server has for a
// gateway of its datacenter.
type GatewaySnapshot struct {
	Gateway string `json:"gateway"`
	// Complete reports whether the snapshot is complete. A gateway does not
	// receive an incomplete snapshot, which has only the name.
	Complete    bool                 `json:"complete"`
	LAN         string               `json:"lan,omitempty"` // host:port
	WAN         string               `json:"wan,omitempty"` // host:port
	Servers     []SnapshotServer     `json:"servers,omitempty"`
	Datacenters []SnapshotDatacenter `json:"datacenters,omitempty"` // other datacenters, by name
	Parts       []SnapshotPart       `json:"parts,omitempty"`
	// Envoys are the connections of Envoy to the responding server. A native
	// gateway has none.
	Envoys []EnvoyConnection `json:"envoys,omitempty"`
	// EnvoyDisconnected is the time at which the last connection of Envoy to the
	// responding server ended, if there is none now. Envoy then uses its last
	// configuration, or is connected to another server. Zero: no Envoy was
	// connected since the start of this server.
	EnvoyDisconnected time.Time `json:"envoy_disconnected,omitzero"`
}

// SnapshotServer is a server of the local datacenter.
type SnapshotServer struct {
	Node       string `json:"node"`
	ServerName string `json:"server_name"` // SNI
	Address    string `json:"address"`     // host:port
}

// SnapshotDatacenter is another datacenter.
type SnapshotDatacenter struct {
	Datacenter string   `json:"datacenter"`
	ServerName string   `json:"server_name"` // SNI
	Gateways   []string `json:"gateways"`    // host:port, the preferred one first
}

// SnapshotPart is a kind of data in a snapshot.
type SnapshotPart struct {
	Name    string    `json:"name"`             // "servers" or "datacenters"
	Origin  string    `json:"origin"`           // where the data comes from
	Updated time.Time `json:"updated,omitzero"` // time at which the origin last confirmed the data
}

// EnvoyConnection is a connection of an Envoy that receives its configuration.
type EnvoyConnection struct {
	Version   string      `json:"version"`
	Connected time.Time   `json:"connected"`
	Types     []EnvoyType `json:"types"`
}

// EnvoyType is what an Envoy has of one type of resources.
type EnvoyType struct {
	TypeURL  string `json:"type_url"`
	Sent     int    `json:"sent"`     // responses
	Accepted int    `json:"accepted"` // responses
	// Resources is the number of resources, and of removed ones, in the sent
	// responses.
	Resources int `json:"resources"`
	// Rejected is Envoy's message if it rejected the last response. Envoy then
	// uses the last accepted resources.
	Rejected   string    `json:"rejected,omitempty"`
	RejectedAt time.Time `json:"rejected_at,omitzero"`
}

// GatewaySnapshots returns the snapshots of the gateways in the catalog, by
// name.
func (c *Client) GatewaySnapshots(ctx context.Context, q QueryOptions) ([]GatewaySnapshot, error) {
	var out []GatewaySnapshot
	_, err := c.get(ctx, GatewaySnapshotsPath, q, nil, &out)
	return out, err
}
