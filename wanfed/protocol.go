// SPDX-License-Identifier: MPL-2.0

package wanfed

// Protocol ids: the ALPN (RFC 7301) values of the server port. The negotiated id replaces any type byte.
const (
	// ProtoGossip carries packets for any server of one datacenter over one connection. See SPEC.md.
	ProtoGossip = "wanfed/gossip/1"
	// ProtoStream carries a yamux session; each of its streams begins with a stream header. See SPEC.md.
	ProtoStream = "wanfed/stream/1"
	// ProtoRaft carries Raft between servers of one datacenter.
	ProtoRaft = "wanfed/raft/1"
	// ProtoGRPC carries gRPC.
	ProtoGRPC = "h2"
	// ProtoConsulPacket and ProtoConsulStream do the jobs of ProtoGossip and ProtoStream in Consul's framing.
	ProtoConsulPacket = "consul/wan-gossip/packet"
	ProtoConsulStream = "consul/wan-gossip/stream"
)

// Pool tells which gossip pool a packet or stream belongs to. It stands on the wire.
type Pool uint8

const (
	// PoolWAN has the servers of every datacenter; members are called <node>.<dc>.
	PoolWAN Pool = 1
	// PoolLAN has the servers of one datacenter; members are called <node>.
	PoolLAN Pool = 2
)

// String gives the pool's name in logs, errors and metrics.
func (p Pool) String() string {
	switch p {
	case PoolWAN:
		return "wan"
	case PoolLAN:
		return "lan"
	case poolCalls:
		return "calls"
	}
	return "unknown"
}
