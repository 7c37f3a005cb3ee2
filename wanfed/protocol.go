// SPDX-License-Identifier: MPL-2.0

package wanfed

import "cmp"

// Protocol ids are the ALPN (RFC 7301) values of the server port. SPEC.md
// specifies the protocols.
const (
	ProtoGossip = "wanfed/gossip/1" // packets for any server of one datacenter
	ProtoRelay  = "wanfed/gossip/2" // the same between servers of one datacenter, with relayed packets
	// ProtoDuplex is ProtoGossip with packets in both directions.
	ProtoDuplex = "wanfed/gossip/3"
	ProtoStream = "wanfed/stream/1" // a yamux session; each stream begins with a header
	ProtoRaft   = "wanfed/raft/1"   // Raft between servers of one datacenter
	ProtoGRPC   = "h2"
	// ProtoEnroll is a request for a certificate by a client that has none.
	// Package enroll has its format.
	ProtoEnroll = "wanfed/enroll/1"
	// Servers that use Consul's framing have these protocols instead of
	// ProtoGossip and ProtoStream.
	ProtoConsulPacket = "consul/wan-gossip/packet"
	ProtoConsulStream = "consul/wan-gossip/stream"
)

// Pool is the gossip pool of a packet or stream. Its value is part of the wire
// format.
type Pool uint8

const (
	PoolWAN Pool = 1 // servers of every datacenter; members are called <node>.<dc>
	PoolLAN Pool = 2 // servers of one datacenter; members are called <node>

	poolEcho    Pool = 0 // marks an echo frame, which carries no packet
	poolGRPC    Pool = 3 // marks a stream that carries gRPC to the server that accepts it
	poolRelayed Pool = 4 // marks a frame with a packet of PoolWAN that a server relays, and its sender
)

// String returns the name of the pool in logs, errors and metrics.
func (p Pool) String() string {
	return cmp.Or(map[Pool]string{PoolWAN: "wan", PoolLAN: "lan", poolGRPC: "grpc"}[p], "unknown")
}
