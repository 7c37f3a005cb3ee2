// SPDX-License-Identifier: MPL-2.0

package api

import "time"

// StatusPath is where Status is served: wanfed's own endpoint beside those with Consul's names.
const StatusPath = "/v1/agent/federation-status"

// Status is how well one datacenter sees the federation, as one of its servers knows it.
type Status struct {
	Datacenter string
	Node       string
	// Leader is the ip:port of the Raft leader of this datacenter; empty: none known.
	Leader            string
	PrimaryDatacenter string
	// MeshGatewayMode is how other datacenters are reached first: "local", "remote" or "auto".
	MeshGatewayMode string
	Version         string
	Gossip          GossipStatus
	Datacenters     []DatacenterStatus // own first; never null
	Components      []ComponentStatus  // parts of the server that answers; never null
	// Replicated says how copies of the primary's records go, by type. Absent in the primary, and where another server leads.
	Replicated []ReplicatedType `json:",omitempty"`
}

// ReplicatedType is a type of records of which a secondary has copies.
type ReplicatedType struct {
	Type string // group/version/Kind; group/Kind of one that this server does not know
	// Known: this server's version of wanfed has the type. If not, nothing is copied.
	Known bool
	// Records are the copies here, PrimaryRecords how many records the primary had when it was last connected to, and
	// UnknownRecords those of them that are not copied, since their type is not known here.
	Records, PrimaryRecords, UnknownRecords uint64
	// Lag is how long ago the copies were last known to be true, in seconds; absent before they first were.
	Lag *float64 `json:",omitempty"`
	// What came since this server started: the highest of the primary's indexes, when the last change came, how many, and
	// their size, encoded.
	PrimaryIndex           uint64
	LastChange             time.Time `json:",omitzero"`
	Changes, ReceivedBytes uint64
}

// GossipStatus says how the server that answers encrypts gossip.
type GossipStatus struct {
	Encrypted bool
	Keys      int
	// Primary is the fingerprint of the key that is used; empty: gossip is not encrypted. Version counts the changes that
	// operators made to the keys. Servers between which either differs do not have the same keys.
	Primary string `json:",omitempty"`
	Version uint64
	// AcceptsPlain and SendsPlain: gossip that is not encrypted is accepted, and sent.
	AcceptsPlain, SendsPlain bool
}

// DatacenterStatus is what is known of one datacenter.
type DatacenterStatus struct {
	Name    string
	Primary bool
	Own     bool

	// Members of the WAN pool; those that left are not counted.
	ServersAlive int
	ServersKnown int
	// Gateways in its federation state.
	GatewaysHealthy int
	GatewaysKnown   int

	// UpdatedAt is when its federation state was last written; absent (zero) when there is none.
	UpdatedAt time.Time `json:",omitzero"`
	// RecordAge is the time since UpdatedAt by the clock of the server that answers, in seconds; absent without a record.
	RecordAge *float64 `json:",omitempty"`
	// ReplicationLag is how long ago the copy here was last known to be the same as the primary's, in seconds. Absent in
	// the primary, and in a secondary that has not followed the primary yet.
	ReplicationLag *float64 `json:",omitempty"`

	// Hops are the ways there, in the order in which a connection would try them now; none to the own datacenter.
	Hops []HopStatus `json:",omitempty"`

	// LastError is why it was last not reached, with hop and address; empty: it never failed. LastErrorAt is when. An error
	// stays here after the path has come back; Advice does not.
	LastError   string    `json:",omitempty"`
	LastErrorAt time.Time `json:",omitzero"`
	// Advice says what an operator should do now; empty: nothing.
	Advice string `json:",omitempty"`
}

// HopStatus is what the server that answers knows of one way to a datacenter: from its own connections and probes.
type HopStatus struct {
	Address string // host:port that is dialed
	Via     string // "own gateway", "remote gateway", "configured address" or "cached address"
	Used    bool   // gossip goes over it now
	Health  string // "ok", "failing", "untested", or "slow": another one, tried later, was faster
	// RTT is the smoothed round trip to a server there over this hop, in seconds; absent: not measured.
	RTT         *float64  `json:",omitempty"`
	LastSuccess time.Time `json:",omitzero"`
	LastFailure time.Time `json:",omitzero"`
	LastError   string    `json:",omitempty"` // of LastFailure, also when it works again

	// Sources say where the address is known from: "heartbeat", "gossip", "federation state", "configuration", "cache".
	Sources []string `json:",omitempty"`
	// KnowledgeAge is how long ago the latest of Sources said so, in seconds; absent when one says so now.
	KnowledgeAge *float64 `json:",omitempty"`
}

// Health is a datacenter's state in one word.
type Health string

// The words.
const (
	HealthOK          Health = "ok"
	HealthDegraded    Health = "degraded"    // some servers or gateways are down, or something is to be done
	HealthUnreachable Health = "unreachable" // no server of it is alive for us
)

// Health sums up the counts.
func (d DatacenterStatus) Health() Health {
	switch {
	case d.ServersAlive == 0:
		return HealthUnreachable
	case d.ServersAlive < d.ServersKnown, d.GatewaysHealthy < d.GatewaysKnown, d.Advice != "":
		return HealthDegraded
	}
	return HealthOK
}

// Seconds is d as the Status types carry it.
func SecondsPtr(d time.Duration) *float64 { return new(d.Seconds()) }

// ComponentStatus is one part of the server: "raft", "wan pool", "replication", ...
type ComponentStatus struct {
	Name string
	// State is "ok", or a word or two about what is not.
	State  string
	Detail string `json:",omitempty"`
}
