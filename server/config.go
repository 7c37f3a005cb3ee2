// SPDX-License-Identifier: MPL-2.0

package server

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Defaults and bounds of Config.
const (
	DefaultPort     = 8300
	DefaultHTTPAddr = "127.0.0.1:8500"
	DefaultBind     = "0.0.0.0"

	DefaultDeadServerAfter = 10 * time.Minute
	// MinDeadServerAfter is how long a server that was removed and returned has
	// no vote. With a smaller value, a short outage would cost more than it
	// lasts.
	MinDeadServerAfter = operator.StableTime
	// MaxDeadServerAfter stands for never.
	MaxDeadServerAfter = 365 * 24 * time.Hour
)

// Config configures one datacenter server. Run rejects an invalid Config with
// all its faults at once.
type Config struct {
	// DC and Node name this server: DNS labels in lower case. Both are
	// required, and must be those of the certificate.
	DC   string
	Node string
	// Domain is the domain of names on the wire. Default: "wanfed".
	Domain string
	// DataDir is the directory of the Raft log, snapshots and last known
	// addresses. Required. It is created with mode 0700, and belongs to one
	// process, one node and one datacenter.
	DataDir string

	// CAFile, CertFile and KeyFile are PEM files. Required. They are read again
	// when they change.
	CAFile, CertFile, KeyFile string

	// EncryptFile is a file with the initial gossip key: base64 of 32 bytes. A
	// keyring in DataDir takes precedence. Without either, gossip is not
	// encrypted. Operators change keys by the KeyringService.
	EncryptFile string
	// GossipAcceptPlain accepts gossip that is not encrypted, too, and
	// GossipSendPlain sends such gossip. They are for enabling encryption
	// server by server.
	GossipAcceptPlain, GossipSendPlain bool

	// PrimaryDC is the datacenter that owns federated resources. Default: DC.
	// When all living servers of a datacenter name another one than before,
	// their leader carries out the change: see replication.PrimaryManager.
	PrimaryDC        string
	primaryByDefault bool // PrimaryDC was empty
	// PrimaryGateways lists WAN addresses (host:port; IPv4, [IPv6] or DNS name)
	// of the primary's gateways. A secondary needs at least one. The primary
	// may have them too, for when it becomes a secondary, if PrimaryDC is set.
	PrimaryGateways []string
	// MeshGatewayMode is how other datacenters are reached first: "local"
	// through local gateways, "remote" directly through theirs, "auto" by
	// measured latency. The other paths are the fallback. Default: "local",
	// since many networks let traffic leave a datacenter through its gateways
	// alone.
	MeshGatewayMode string

	// Bind is the IP address to listen on. Default: "0.0.0.0".
	Bind string
	// Advertise is the IP address that other servers of this datacenter dial.
	// Default: Bind, or, if that is unspecified, the first private address of
	// this machine, or else its first global address.
	Advertise string
	// Port is the TLS port. Default, with 0: 8300. A negative value lets the
	// system choose.
	Port int
	// HTTPAddr is the address of the HTTP API: "host:port" or
	// "http://host:port" on a loopback address, or "https://host:port" for TLS
	// with client certificates. Default: "127.0.0.1:8500". Port 0 lets the
	// system choose.
	HTTPAddr string

	// ProxyFrom lists the addresses of gateways that send a PROXY header,
	// version 2, with the address of their client. Each connection from there
	// must begin with one. No server may be among them. Default: none.
	ProxyFrom []netip.Prefix

	// BootstrapExpect is how many servers form the first Raft group: 1, 3 or 5.
	// Default: 1.
	BootstrapExpect int
	// RetryJoin lists addresses (host:port) of servers of this datacenter.
	// Required if BootstrapExpect is above 1.
	RetryJoin []string

	// AllowRemoteWritesFrom lists the datacenters whose servers may forward
	// writes of their operators to this one: "?dc=" of the HTTP API, and
	// federated resources that are written in a secondary. "*" is every
	// datacenter. Default: none.
	AllowRemoteWritesFrom []string

	// DeadServerAfter is how long a server of this datacenter is down before it
	// is removed from the Raft group. It may return later, as a new server.
	// Default: 10 min. Bounds: MinDeadServerAfter and MaxDeadServerAfter.
	DeadServerAfter time.Duration

	// heartbeat is that of raftstore.Config. Tests set it when they do not test
	// elections.
	heartbeat time.Duration

	// Logger receives the log. Default: slog.Default().
	Logger *slog.Logger
	// Started, if not nil, is called once, when both ports listen.
	Started func(Addrs)
}

// Addrs are the addresses of a started server, as others dial them.
type Addrs struct {
	Server string // host:port of the TLS port, with the advertised host
	HTTP   string // URL of the HTTP API
}

// withDefaults returns c with defaults in place of zero values. A Port that the
// system chooses becomes 0.
func (c Config) withDefaults() Config {
	if c.Domain == "" {
		c.Domain = tlsutil.DefaultDomain
	}
	if c.PrimaryDC == "" {
		c.PrimaryDC, c.primaryByDefault = c.DC, true
	}
	if c.Bind == "" {
		c.Bind = DefaultBind
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	} else if c.Port < 0 {
		c.Port = 0
	}
	if c.HTTPAddr == "" {
		c.HTTPAddr = DefaultHTTPAddr
	}
	if c.MeshGatewayMode == "" {
		c.MeshGatewayMode = string(wanfed.ModeLocal)
	}
	if c.BootstrapExpect == 0 {
		c.BootstrapExpect = 1
	}
	if c.DeadServerAfter == 0 {
		c.DeadServerAfter = DefaultDeadServerAfter
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}
