// SPDX-License-Identifier: MPL-2.0

package api

import "time"

// StatusPath is the path of Status, an endpoint that Consul does not have.
const StatusPath = "/v1/agent/federation-status"

// Status is the state of the federation as one server sees it.
type Status struct {
	Datacenter string
	Node       string
	// Leader is the ip:port of the Raft leader of this datacenter, or "".
	Leader            string
	PrimaryDatacenter string
	// MeshGatewayMode is the preferred path to other datacenters: "local",
	// "remote" or "auto".
	MeshGatewayMode string
	Version         string
	Gossip          GossipStatus
	Datacenters     []DatacenterStatus // this datacenter first; never null
	Components      []ComponentStatus  // of the responding server; never null
	// Replicated is the state of replication by type. It is absent in the primary
	// and on servers that are not the leader.
	Replicated []ReplicatedType `json:",omitempty"`
}

// ReplicatedType is the state of one type that a secondary replicates.
type ReplicatedType struct {
	// Type is group/version/Kind, or group/Kind if the server does not know it.
	Type string
	// Known reports whether the server's version supports the type. Resources of
	// an unknown type are not replicated.
	Known bool
	// Records is the number of replicas.
	Records uint64
	// PrimaryRecords is the number of resources in the primary at the last
	// connection.
	PrimaryRecords uint64
	// UnknownRecords is the number of resources in the primary that are not
	// replicated because their type is unknown.
	UnknownRecords uint64
	// Lag is the time since the replicas were last known to be current, in
	// seconds. It is absent until the replicas have been current once.
	Lag *float64 `json:",omitempty"`
	// PrimaryIndex is the highest index of the primary among the replicas.
	PrimaryIndex uint64
	// LastChange is the time at which the last change was received.
	LastChange time.Time `json:",omitzero"`
	// Changes is the number of changes that were received since the server
	// started. ReceivedBytes is their size in bytes.
	Changes, ReceivedBytes uint64
}

// GossipStatus is the state of the gossip encryption of the responding server.
type GossipStatus struct {
	Encrypted bool
	Keys      int
	// Primary is the fingerprint of the primary key, or "". Two servers have the
	// same keyring if Primary and Version are equal.
	Primary string `json:",omitempty"`
	// Version is the number of changes that operators have made to the keyring.
	Version uint64
	// AcceptsPlain reports whether unencrypted gossip is accepted.
	AcceptsPlain bool
	// SendsPlain reports whether gossip is sent unencrypted.
	SendsPlain bool
}

// DatacenterStatus is the state of one datacenter.
type DatacenterStatus struct {
	Name    string
	Primary bool
	Own     bool // the responding server is in it

	// ServersAlive and ServersKnown are numbers of members of the WAN pool.
	// Members that left are not counted.
	ServersAlive int
	ServersKnown int
	// GatewaysHealthy and GatewaysKnown are numbers of gateways in the federation
	// state.
	GatewaysHealthy int
	GatewaysKnown   int

	// UpdatedAt is the time of the last write of the federation state. It is
	// absent if there is no state.
	UpdatedAt time.Time `json:",omitzero"`
	// RecordAge is the time since UpdatedAt in seconds, by the clock of the
	// responding server. It is absent if there is no state.
	RecordAge *float64 `json:",omitempty"`
	// ReplicationLag is the time since the local replica was last known to match
	// the primary, in seconds. It is absent in the primary, and in a secondary
	// that has not followed the primary yet.
	ReplicationLag *float64 `json:",omitempty"`

	// Paths are the paths to the datacenter in the order in which a new
	// connection tries them. The local datacenter has no paths.
	Paths []PathStatus `json:",omitempty"`

	// LastError describes the last failure to reach the datacenter, with path
	// and address. It is empty without a failure. It stays after the path has
	// recovered.
	LastError   string    `json:",omitempty"`
	LastErrorAt time.Time `json:",omitzero"`
	// Advice is the action that an operator should take now, or "".
	Advice string `json:",omitempty"`
}

// PathStatus is the state of one path to a datacenter, from the connections and
// probes of the responding server.
type PathStatus struct {
	Address string // host:port
	// Via is "own gateway", "remote gateway", "configured address" or "cached
	// address".
	Via  string
	Used bool // gossip uses the path now
	// Health is "ok", "failing", "untested" or "slow". A path is slow if a later
	// path in DatacenterStatus.Paths is faster.
	Health string
	// RTT is the smoothed round-trip time to a server over this path, in seconds.
	// It is absent if there is no measurement.
	RTT         *float64  `json:",omitempty"`
	LastSuccess time.Time `json:",omitzero"`
	LastFailure time.Time `json:",omitzero"`
	// LastError is the error of LastFailure. It stays after the path has recovered.
	LastError string `json:",omitempty"`

	// Sources are the sources of the address: "heartbeat", "gossip", "federation
	// state", "configuration", "cache".
	Sources []string `json:",omitempty"`
	// KnowledgeAge is the time since a source last contained the address, in
	// seconds. It is absent if a source contains the address now.
	KnowledgeAge *float64 `json:",omitempty"`
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
	Name string // "raft", "wan pool", "replication", ...
	// State is "ok", or a short description of the problem.
	State  string
	Detail string `json:",omitempty"`
}
