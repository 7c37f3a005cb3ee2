// SPDX-License-Identifier: MPL-2.0

package api

import "time"

// StatusPath is the path of Status, an endpoint that Consul does not have.
const StatusPath = "/v1/agent/federation-status"

// Status is the state of the federation as one server sees it.
type Status struct {
	Datacenter string `json:"datacenter"`
	Node       string `json:"node"`
	// Leader is the ip:port of the Raft leader of this datacenter, or "".
	Leader            string `json:"leader"`
	PrimaryDatacenter string `json:"primary_datacenter"`
	// MeshGatewayMode is the preferred path to other datacenters: "local",
	// "remote" or "auto".
	MeshGatewayMode string             `json:"mesh_gateway_mode"`
	Version         string             `json:"version"`
	Gossip          GossipStatus       `json:"gossip"`
	Datacenters     []DatacenterStatus `json:"datacenters"` // this datacenter first; never null
	Components      []ComponentStatus  `json:"components"`  // of the responding server; never null
	// Replicated is the state of replication by type. It is absent in the primary
	// and on servers that are not the leader.
	Replicated []ReplicatedType `json:"replicated,omitempty"`
}

// ReplicatedType is the state of one type that a secondary replicates.
type ReplicatedType struct {
	// Type is group/version/Kind, or group/Kind if the server does not know it.
	Type string `json:"type"`
	// Known reports whether the server's version supports the type. Resources of
	// an unknown type are not replicated.
	Known bool `json:"known"`
	// Records is the number of replicas.
	Records uint64 `json:"records"`
	// PrimaryRecords is the number of resources in the primary at the last
	// connection.
	PrimaryRecords uint64 `json:"primary_records"`
	// UnknownRecords is the number of resources in the primary that are not
	// replicated because their type is unknown.
	UnknownRecords uint64 `json:"unknown_records"`
	// Lag is the time since the replicas were last known to be current, in
	// seconds. It is absent until the replicas have been current once.
	Lag *float64 `json:"lag,omitempty"`
	// PrimaryIndex is the highest index of the primary among the replicas.
	PrimaryIndex uint64 `json:"primary_index"`
	// LastChange is the time at which the last change was received.
	LastChange time.Time `json:"last_change,omitzero"`
	// Changes is the number of changes received since the server started.
	Changes uint64 `json:"changes"`
	// ReceivedBytes is the size of these changes in bytes.
	ReceivedBytes uint64 `json:"received_bytes"`
}

// GossipStatus is the state of the gossip encryption of the responding server.
type GossipStatus struct {
	Encrypted bool `json:"encrypted"`
	Keys      int  `json:"keys"`
	// Primary is the fingerprint of the primary key, or "". Two servers have the
	// same keyring if Primary and Version are equal.
	Primary string `json:"primary,omitempty"`
	// Version is the number of changes that operators have made to the keyring.
	Version uint64 `json:"version"`
	// AcceptsPlain reports whether unencrypted gossip is accepted.
	AcceptsPlain bool `json:"accepts_plain"`
	// SendsPlain reports whether gossip is sent unencrypted.
	SendsPlain bool `json:"sends_plain"`
}

// DatacenterStatus is the state of one datacenter.
type DatacenterStatus struct {
	Name    string `json:"name"`
	Primary bool   `json:"primary"`
	Own     bool   `json:"own"` // the responding server is in it

	// ServersAlive and ServersKnown are numbers of members of the WAN pool.
	// Members that left are not counted.
	ServersAlive int `json:"servers_alive"`
	ServersKnown int `json:"servers_known"`
	// GatewaysHealthy and GatewaysKnown are numbers of gateways in the federation
	// state.
	GatewaysHealthy int `json:"gateways_healthy"`
	GatewaysKnown   int `json:"gateways_known"`

	// UpdatedAt is the time of the last write of the federation state. It is
	// absent if there is no state.
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	// RecordAge is the time since UpdatedAt in seconds, by the clock of the
	// responding server. It is absent if there is no state.
	RecordAge *float64 `json:"record_age,omitempty"`
	// ReplicationLag is the time since the local replica was last known to match
	// the primary, in seconds. It is absent in the primary, and in a secondary
	// that has not followed the primary yet.
	ReplicationLag *float64 `json:"replication_lag,omitempty"`

	// Paths are the paths to the datacenter in the order in which a new
	// connection tries them. The local datacenter has no paths.
	Paths []PathStatus `json:"paths,omitempty"`

	// LastError describes the last failure to reach the datacenter, with path
	// and address. It is empty without a failure. It stays after the path has
	// recovered.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	// Advice is the action that an operator should take now, or "".
	Advice string `json:"advice,omitempty"`
}

// PathStatus is the state of one path to a datacenter, from the connections and
// probes of the responding server.
type PathStatus struct {
	Address string `json:"address"` // host:port
	// Via is "own gateway", "remote gateway", "configured address" or "cached
	// address".
	Via  string `json:"via"`
	Used bool   `json:"used"` // gossip uses the path now
	// Health is "ok", "failing", "untested" or "slow". A path is slow if a later
	// path in DatacenterStatus.Paths is faster.
	Health string `json:"health"`
	// RTT is the smoothed round-trip time to a server over this path, in seconds.
	// It is absent if there is no measurement.
	RTT         *float64  `json:"rtt,omitempty"`
	LastSuccess time.Time `json:"last_success,omitzero"`
	LastFailure time.Time `json:"last_failure,omitzero"`
	// LastError is the error of LastFailure. It stays after the path has recovered.
	LastError string `json:"last_error,omitempty"`

	// Sources are the sources of the address: "heartbeat", "gossip", "federation
	// state", "configuration", "cache".
	Sources []string `json:"sources,omitempty"`
	// KnowledgeAge is the time since a source last contained the address, in
	// seconds. It is absent if a source contains the address now.
	KnowledgeAge *float64 `json:"knowledge_age,omitempty"`
}

// Health is the state of a datacenter in one word.
type Health string

// The values of Health.
const (
	HealthOK          Health = "ok"
	HealthDegraded    Health = "degraded"    // some servers or gateways are down, or Advice is not empty
	HealthUnreachable Health = "unreachable" // the responding server sees no server alive
)

// Health returns the state according to the counts and the advice.
func (d DatacenterStatus) Health() Health {
	switch {
	case d.ServersAlive == 0:
		return HealthUnreachable
	case d.ServersAlive < d.ServersKnown, d.GatewaysHealthy < d.GatewaysKnown, d.Advice != "":
		return HealthDegraded
	}
	return HealthOK
}

// SecondsPtr returns a pointer to d in seconds, for optional fields of the
// status types.
func SecondsPtr(d time.Duration) *float64 { return new(d.Seconds()) }

// ComponentStatus is the state of one part of a server.
type ComponentStatus struct {
	Name string `json:"name"` // "raft", "wan pool", "replication", ...
	// State is "ok", or a short description of the problem.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}
