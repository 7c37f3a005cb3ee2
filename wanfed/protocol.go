// SPDX-License-Identifier: MPL-2.0

package wanfed

// Protocol ids are the ALPN (RFC 7301) values of the server port.
const (
	// ProtoGossip carries packets for any server of one datacenter over one
	// connection. See SPEC.md.
	ProtoGossip = "wanfed/gossip/1"
	// ProtoStream carries a yamux session. Each of its streams begins with a
	// stream header. See SPEC.md.
	ProtoStream = "wanfed/stream/1"
	// ProtoRaft carries Raft between servers of one datacenter.
	ProtoRaft = "wanfed/raft/1"
	// ProtoGRPC carries gRPC.
	ProtoGRPC = "h2"
	// ProtoConsulPacket and ProtoConsulStream replace ProtoGossip and
	// ProtoStream for servers that use Consul's framing.
	ProtoConsulPacket = "consul/wan-gossip/packet"
	ProtoConsulStream = "consul/wan-gossip/stream"
)

// Pool is the gossip pool of a packet or stream. Its value is part of the wire
// format.
type Pool uint8

const (
	// PoolWAN contains the servers of every datacenter. Members are called
	// <node>.<dc>.
	PoolWAN Pool = 1
	// PoolLAN contains the servers of one datacenter. Members are called
	// <node>.
	PoolLAN Pool = 2

	// poolEcho marks an echo frame, which carries no packet.
	poolEcho Pool = 0
	// poolGRPC marks a stream that carries gRPC to the server that accepts it.
	// It has no packets.
	poolGRPC Pool = 3
)

// String returns the name of the pool in logs, errors and metrics.
func (p Pool) String() string {
	switch p {
	case PoolWAN:
		return "wan"
	case PoolLAN:
		return "lan"
	case poolGRPC:
		return "grpc"
	}
	return "unknown"
}
