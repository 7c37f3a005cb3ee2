// SPDX-License-Identifier: MPL-2.0

package api

import (
	"slices"
	"time"
)

// StatusPath is the path of Status, an endpoint that Consul does not have.
const StatusPath = "/v1/agent/federation-status"

// Status is the state of the federation as one server sees it.
type Status struct {
	Datacenter        string `json:"datacenter"`
	Node              string `json:"node"`
	Leader            string `json:"leader"` // ip:port of the datacenter's Raft leader, or ""
	PrimaryDatacenter string `json:"primary_datacenter"`
	PrimaryEpoch      uint64 `json:"primary_epoch"`     // grows with each change of the primary; 0: unknown
	MeshGatewayMode   string `json:"mesh_gateway_mode"` // "local", "remote" or "auto"
	Version           string `json:"version"`
	// Headline is the state of the federation with the most important cause, in
	// one sentence.
	Headline    string             `json:"headline,omitempty"`
	Gossip      GossipStatus       `json:"gossip"`
	Datacenters []DatacenterStatus `json:"datacenters"` // the local datacenter first, then by name; never null
	Components  []ComponentStatus  `json:"components"`  // parts of the responding server; never null
	// Replicated is the state of replication by type. Only the leader of a
	// secondary has it.
	Replicated []ReplicatedType `json:"replicated,omitempty"`
}

// ReplicatedType is the state of one type that a secondary replicates.
type ReplicatedType struct {
	// Type is group/version/Kind, or group/Kind of an unknown type.
	Type string `json:"type"`
	// Known reports whether the server's version supports the type. Resources
	// of an unknown type are not replicated.
	Known   bool   `json:"known"`
	Records uint64 `json:"records"` // number of replicas
	// PrimaryRecords is the number of resources in the primary when the server
	// last connected to the primary.
	PrimaryRecords uint64 `json:"primary_records"`
	// UnknownRecords is the number of resources in the primary that are not
	// replicated because their type is unknown.
	UnknownRecords uint64 `json:"unknown_records"`
	// Lag is the time since the replicas were last known to be current, in
	// seconds. Lag is absent until the replicas have been current once.
	Lag *float64 `json:"lag,omitempty"`
	// PrimaryIndex is the highest PrimaryModifyIndex of the replicas.
	PrimaryIndex  uint64    `json:"primary_index"`
	LastChange    time.Time `json:"last_change,omitzero"` // receipt of the last change
	Changes       uint64    `json:"changes"`              // received since the server started
	ReceivedBytes uint64    `json:"received_bytes"`       // total size of Changes, in bytes
}

// GossipStatus is the state of the gossip encryption of the responding server.
type GossipStatus struct {
	Encrypted bool `json:"encrypted"`
	Keys      int  `json:"keys"`
	// Primary is the fingerprint of the primary key, or "". Two servers have
	// the same keyring if Primary and Version are equal.
	Primary string `json:"primary,omitempty"`
	// Version is the number of changes that operators have made to the keyring.
	Version uint64 `json:"version"`
	// AcceptsPlain reports whether the server accepts unencrypted gossip, and
	// SendsPlain whether the server sends unencrypted gossip.
	AcceptsPlain bool `json:"accepts_plain"`
	SendsPlain   bool `json:"sends_plain"`
}

// DatacenterStatus is the state of one datacenter.
type DatacenterStatus struct {
	Name    string `json:"name"`
	Primary bool   `json:"primary"`
	Own     bool   `json:"own"` // local: the datacenter of the responding server

	// State summarizes the fields below. Servers before version 0.2 do not send
	// it. The method Health derives it for them.
	State Health `json:"state,omitempty"`
	// Cause is the reason of a State that is not ok, in one sentence.
	Cause string `json:"cause,omitempty"`
	// Outbound is the state of the paths from the responding server to the
	// datacenter. Inbound is the state of the paths from the datacenter to the
	// local datacenter. The local datacenter has neither.
	Outbound Direction `json:"outbound,omitempty"`
	Inbound  Direction `json:"inbound,omitempty"`

	// ServersAlive and ServersKnown are numbers of members of the WAN pool,
	// without members that left.
	ServersAlive int `json:"servers_alive"`
	ServersKnown int `json:"servers_known"`
	// GatewaysHealthy and GatewaysKnown are numbers of gateways: of the catalog
	// for the local datacenter, and otherwise of the federation state.
	GatewaysHealthy int `json:"gateways_healthy"`
	GatewaysKnown   int `json:"gateways_known"`

	// UpdatedAt is the time of the last write of the federation state.
	// RecordAge is the time since UpdatedAt in seconds, by the clock of the
	// responding server. Both are absent if the datacenter has no federation
	// state.
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	RecordAge *float64  `json:"record_age,omitempty"`
	// ReplicationLag is the time since the local replica was last known to
	// match the primary, in seconds. ReplicationLag is absent in the primary,
	// and in a secondary that has not followed the primary yet.
	ReplicationLag *float64 `json:"replication_lag,omitempty"`

	// UnreachableGateways are gateways of the datacenter that another datacenter
	// cannot connect to, although it can connect to another gateway of the
	// datacenter.
	UnreachableGateways []UnreachableGateway `json:"unreachable_gateways,omitempty"`

	// Paths are the paths to the datacenter in the order in which a new
	// connection tries them. The local datacenter has no paths.
	Paths []PathStatus `json:"paths,omitempty"`

	// LastError describes the last failure to reach the datacenter, with path
	// and address. The text stays after the path has recovered.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	// Advice is the action that an operator should take now, or "".
	Advice string `json:"advice,omitempty"`
}

// UnreachableGateway is a gateway to which datacenters cannot connect.
type UnreachableGateway struct {
	Gateway string   `json:"gateway"` // node
	Address string   `json:"address"` // host:port
	From    []string `json:"from"`    // datacenters, by name
	// Failure is the class of the failure, such as "timeout" or "connection
	// refused".
	Failure string `json:"failure"`
}

// PathStatus is the state of one path to a datacenter, from the connections and
// probes of the responding server.
type PathStatus struct {
	Address string `json:"address"` // host:port
	// Via is "own gateway", "remote gateway", "configured address" or "cached
	// address".
	Via  string `json:"via"`
	Used bool   `json:"used"` // gossip uses the path now
	// Health is "ok", "failing", "untested", "slow" or "unknown". A path is
	// slow if a later path in DatacenterStatus.Paths is faster. The health is
	// unknown if the last success is too old.
	Health string `json:"health"`
	// RTT is the smoothed round-trip time to a server over this path, in
	// seconds. RTT is absent before the first measurement.
	RTT         *float64  `json:"rtt,omitempty"`
	LastSuccess time.Time `json:"last_success,omitzero"`
	LastFailure time.Time `json:"last_failure,omitzero"`
	LastError   string    `json:"last_error,omitempty"` // the error of LastFailure
	// Failure is the class of LastError, such as "timeout" or "connection
	// refused".
	Failure string `json:"failure,omitempty"`

	// Sources are the sources of the address: "heartbeat", "gossip",
	// "federation state", "configuration", "cache".
	Sources []string `json:"sources,omitempty"`
	// KnowledgeAge is the time since a source last contained the address, in
	// seconds. KnowledgeAge is absent while a source contains the address.
	KnowledgeAge *float64 `json:"knowledge_age,omitempty"`
}

// Health summarizes the state of a datacenter.
type Health string

// The values of Health.
const (
	HealthOK Health = "ok"
	// HealthDegraded means that the datacenter is reachable, and that servers
	// or gateways are down, or that an operator should act for another reason.
	HealthDegraded Health = "degraded"
	// HealthOneWay means that the responding server reaches the datacenter, but
	// the datacenter does not reach the local datacenter. The local datacenter
	// has this state if no other datacenter reaches it.
	HealthOneWay Health = "one way"
	// HealthUnreachable means that no path to the datacenter works.
	HealthUnreachable Health = "unreachable"
	// HealthUnknown means that no path has a recent result.
	HealthUnknown Health = "unknown"
)

// Direction is the state of all paths in one direction.
type Direction string

// The values of Direction.
const (
	DirectionOK      Direction = "ok"      // at least one path works
	DirectionFailing Direction = "failing" // no path works
	DirectionUnknown Direction = "unknown" // no path has a recent result
)

// Health returns State. If the server did not send State, Health returns a
// state according to the counts and the advice.
func (d DatacenterStatus) Health() Health {
	switch {
	case d.State != "":
		return d.State
	case d.ServersAlive == 0:
		return HealthUnreachable
	case d.ServersAlive < d.ServersKnown, d.GatewaysHealthy < max(d.GatewaysKnown, 1), d.Advice != "":
		return HealthDegraded
	}
	return HealthOK
}

// OK reports whether every datacenter is ok.
func (s Status) OK() bool {
	return !slices.ContainsFunc(s.Datacenters, func(d DatacenterStatus) bool { return d.Health() != HealthOK })
}

// SecondsPtr returns a pointer to d in seconds, for the optional fields of
// Status.
func SecondsPtr(d time.Duration) *float64 { return new(d.Seconds()) }

// ComponentStatus is the state of one part of a server.
type ComponentStatus struct {
	Name string `json:"name"` // "raft", "wan pool", "replication", ...
	// State is "ok", or a short description of the problem.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}
