// SPDX-License-Identifier: MPL-2.0

package server

import (
	"log/slog"
	"net/netip"
	"time"
)

// Config is what one datacenter server is told. Run refuses what is wrong with it, all faults at once.
type Config struct {
	// DC and Node name this server: DNS labels in lower case. Both required, both in the certificate.
	DC   string
	Node string
	// Domain of names on the wire. Default "wanfed".
	Domain string
	// DataDir holds the Raft log, snapshots and the last known addresses. Required; made with mode 0700 if absent; used
	// by one process, one node name and one datacenter.
	DataDir string

	// CAFile, CertFile and KeyFile are PEM files. Required. Changed files are loaded again while running.
	CAFile, CertFile, KeyFile string

	// EncryptFile is a file with the gossip key to begin with: base64 of 32 bytes. Empty: gossip is not encrypted, unless the
	// data dir has a keyring, which also beats this key. Operators change keys by the KeyringService.
	EncryptFile string
	// GossipAcceptPlain and GossipSendPlain are for a federation that is becoming encrypted, server by server: gossip that is
	// not encrypted is accepted too, and what is sent is not encrypted yet.
	GossipAcceptPlain, GossipSendPlain bool

	// PrimaryDC owns the federated records. Default: DC, that is, this datacenter is the primary. When all living servers of a datacenter
	// name another one than before, their leader sees to the change: see replication.PrimaryManager.
	PrimaryDC        string
	primaryByDefault bool // it was left empty
	// PrimaryGateways are WAN addresses (host:port; IPv4, [IPv6] or DNS name) of the primary's gateways. A secondary needs
	// at least one. The primary does not use them; it may have them if it names itself as PrimaryDC, for the day it is a secondary.
	PrimaryGateways []string
	// MeshGatewayMode says how other datacenters are reached first: "local", through the own gateways; "remote", directly through
	// theirs; "auto", by what measures best, where a tie goes to the own. In every mode the others are the fallback. Default
	// "local": operators expect that everything leaves a datacenter by its gateways, and the network often allows nothing else.
	MeshGatewayMode string

	// Bind is the IP address to listen on. Default "0.0.0.0".
	Bind string
	// Advertise is the IP address that other servers of this datacenter dial. Default: Bind, or, when that is unspecified,
	// the first private, else the first global, address of this machine.
	Advertise string
	// Port of the one TLS port. Default 8300. 0 in a Config means the default; -1 lets the system choose.
	Port int
	// HTTPAddr is where people and tools ask: host:port, "http://host:port" (loopback only) or "https://host:port" (TLS with
	// client certificates). Default "127.0.0.1:8500". Port 0 lets the system choose.
	HTTPAddr string

	// ProxyFrom are the addresses of gateways that tell, in a PROXY header of version 2, whom they forward: each connection from there has
	// to begin with one. None of other servers may be among them. Default: nobody sends one.
	ProxyFrom []netip.Prefix

	// BootstrapExpect is how many servers form the first Raft group: 1, 3 or 5. Default 1.
	BootstrapExpect int
	// RetryJoin are addresses (host:port) of servers of this datacenter. Needed with BootstrapExpect above 1.
	RetryJoin []string

	// RemoteWritesFrom are datacenters whose servers may hand on writes of their operators to this one: "?dc=" of the HTTP API, and
	// federated records that are written in a secondary. "*" is every one. Default: none; operators write here themselves.
	RemoteWritesFrom []string

	// DeadServerAfter is how long a server of this datacenter is down before it is taken out of the Raft group. It may come
	// back any time, as a new server. Default 10 min, within MinDeadServerAfter and MaxDeadServerAfter.
	DeadServerAfter time.Duration

	// heartbeat is that of raftstore.Config, 0 for its default. Tests set it that are about something else than who leads.
	heartbeat time.Duration

	// Logger. Default: slog.Default().
	Logger *slog.Logger
	// Started, if not nil, is called once, when both ports listen.
	Started func(Addrs)
}

// Addrs are the addresses a started server listens on, as others dial them.
type Addrs struct {
	Server string // host:port of the TLS port, with the advertised host
	HTTP   string // URL
}
