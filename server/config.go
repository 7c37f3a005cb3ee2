// SPDX-License-Identifier: MPL-2.0

package server

import (
	"cmp"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/wanfed/wanfed/internal/logtail"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/server/audit"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Defaults and bounds of Config.
const (
	DefaultPort     = 8300
	DefaultHTTPAddr = "127.0.0.1:8500"
	DefaultBind     = "0.0.0.0"

	DefaultSnapshotKeep = 24

	// DefaultAuditLogMaxSize is in MiB.
	DefaultAuditLogMaxSize = 100
	DefaultAuditLogKeep    = 10

	DefaultDeadServerAfter = 10 * time.Minute
	// MinPrimaryLease is the minimum of Config.PrimaryLease. The servers of a
	// secondary call the primary every 2 s, and after the loss of a path within
	// a few seconds.
	MinPrimaryLease = 10 * time.Second
	// MinDeadServerAfter is the minimum of Config.DeadServerAfter. It equals
	// the time from the return of a removed server until the server has a vote
	// again. With a smaller value, a server could be without a vote for longer
	// than its outage.
	MinDeadServerAfter = operator.StableTime
	// MaxDeadServerAfter is the maximum of Config.DeadServerAfter. With this
	// value, in practice no server is removed.
	MaxDeadServerAfter = 365 * 24 * time.Hour
)

// Config configures one datacenter server. Run checks all fields, and its error
// lists all invalid fields.
type Config struct {
	// DC and Node are the names of the datacenter and of this server: DNS
	// labels in lower case. Both are required, and must match the certificate.
	DC   string
	Node string
	// Domain is the domain of the names in certificates. Default: "wanfed".
	Domain string
	// DataDir is the directory of the Raft log, snapshots and last known
	// addresses. Required. The server creates the directory with mode 0700. The
	// directory belongs to one process, one node and one datacenter.
	DataDir string

	// CAFile, CertFile and KeyFile are PEM files. Required. The server reads a
	// file again when it changes.
	CAFile, CertFile, KeyFile string

	// CertLife is the life of the certificates of servers and gateways that this
	// server issues. Default: enroll.DefaultLife.
	CertLife time.Duration
	// IssuingKeyPassphraseFile is a file with the passphrase of the keys in CADir.
	// The server encrypts keys that are not encrypted. Default: the systemd
	// credential enroll.CredentialName, or no encryption.
	IssuingKeyPassphraseFile string
	// SignerCommand is a program, and its arguments, that issues certificates in
	// place of the keys in CADir: see enroll.SignerCommand. Default: none.
	SignerCommand []string

	// EncryptFile is a file with the initial gossip key: base64 of 32 bytes. A
	// keyring in DataDir takes precedence. Without a file and a keyring, gossip
	// is not encrypted. Operators change keys through the KeyringService.
	EncryptFile string
	// GossipAcceptPlain accepts unencrypted gossip in addition to encrypted
	// gossip. GossipSendPlain sends gossip unencrypted. Both are needed only
	// while encryption is enabled server by server.
	GossipAcceptPlain, GossipSendPlain bool

	// PrimaryDC is the datacenter that owns federated resources. Default: DC.
	// When all alive servers of this datacenter have a new PrimaryDC, their
	// leader changes the primary: see replication.PrimaryManager.
	PrimaryDC        string
	primaryByDefault bool // PrimaryDC was empty before withDefaults
	// PrimaryGateways lists WAN addresses (host:port; IPv4, [IPv6] or DNS name)
	// of the primary's gateways. A secondary needs at least one address. If
	// PrimaryDC is set, the primary may have addresses as well, for the time
	// when it is a secondary.
	PrimaryGateways []string
	// MeshGatewayMode selects the preferred paths to other datacenters: through
	// local gateways ("local"), directly to remote gateways ("remote"), or the
	// paths with the lower latency ("auto"). The other paths are the fallback.
	// Default: "local".
	MeshGatewayMode string

	// Bind is the IP address of the TLS listener. Default: "0.0.0.0".
	Bind string
	// Advertise is the IP address that other servers of this datacenter dial.
	// Default: Bind. If Bind is unspecified, the default is the first private
	// address of this machine, or otherwise its first global address.
	Advertise string
	// Port is the TLS port. 0 means the default, 8300. With a negative value,
	// the system chooses a port.
	Port int
	// HTTPAddr is the address of the HTTP API: "host:port" or
	// "http://host:port" on a loopback address, or "https://host:port" for TLS
	// with client certificates. Default: "127.0.0.1:8500". With port 0, the
	// system chooses a port.
	HTTPAddr string

	// HTTPTLSOnly refuses connections without TLS at HTTPAddr.
	HTTPTLSOnly bool
	// HTTPSocket is the path of a Unix socket of the HTTP API, without TLS.
	// Default: none. HTTPSocketMode is its mode. Default: 0600. HTTPSocketGroup
	// is the name or the number of its group. Default: that of the process.
	HTTPSocket      string
	HTTPSocketMode  os.FileMode
	HTTPSocketGroup string
	// MonitorAddr is the address of /healthz, /readyz and /metrics: host:port,
	// http://host:port or https://host:port. Default: none.
	MonitorAddr string
	// MonitorTokenFile is a file with the bearer token of /metrics at
	// MonitorAddr. Default: no token.
	MonitorTokenFile string

	// ProxyFrom lists the addresses of load balancers that send a PROXY header,
	// version 2, with the address of their client. Each connection from these
	// addresses must begin with a header. The networks must not contain the
	// address of a server. Gateways of this datacenter may send a header without
	// an entry. Default: none.
	ProxyFrom []netip.Prefix

	// BootstrapExpect is the number of servers that form the first Raft group:
	// 1, 3 or 5. Without RetryJoin the default is 1. With RetryJoin the default
	// is 0: this server forms no group, and waits until the leader of its
	// datacenter adds this server.
	BootstrapExpect int
	// RetryJoin lists addresses (host:port) of servers of this datacenter.
	// Required if BootstrapExpect is above 1. A restarted server also uses the
	// last known addresses in DataDir.
	RetryJoin []string

	// OperatorsFrom lists the other datacenters whose operators and users act in
	// this datacenter, with their own certificates. "*" means every datacenter.
	// Default: none.
	OperatorsFrom []string
	// ReadsFrom lists the other datacenters whose callers may read in this
	// datacenter what they may read in their own, such as keys. "*" means every
	// datacenter. Default: none.
	ReadsFrom []string
	// AllowRemoteWritesFrom lists the datacenters whose operators and users act
	// in this datacenter, also through servers of their own datacenter: HTTP
	// requests with "?dc=", and writes of federated resources in a secondary.
	// "*" means every datacenter. Default: none.
	AllowRemoteWritesFrom []string

	// AuditLog is the file of the audit log: see package server/audit. Default:
	// no audit log.
	AuditLog string
	// AuditLogMaxSize is the size in bytes above which the file is rotated. 0:
	// never, for rotation by another program. AuditLogKeep is the number of
	// rotated files that stay. Default: 10.
	AuditLogMaxSize int64
	AuditLogKeep    int
	// AuditLogWhenFull is "refuse" (the default) to refuse writes whose line
	// cannot be written, or "drop" to drop and count such lines.
	AuditLogWhenFull string

	// PrimaryLease is the time without a call of another datacenter after which
	// the primary accepts no writes of federated resources. 0: no limit.
	// Minimum: MinPrimaryLease.
	PrimaryLease time.Duration

	// DeadServerAfter is the time that a server of this datacenter must be down
	// before it is removed from the Raft group. A removed server may return as
	// a new server. Default: 10 min. Bounds: MinDeadServerAfter and
	// MaxDeadServerAfter.
	DeadServerAfter time.Duration

	// SnapshotEvery is the time between two snapshots that the leader writes to
	// SnapshotDir. 0 means that the server writes none. Minimum: 1 s.
	SnapshotEvery time.Duration
	// SnapshotDir is the directory of these snapshots. Default: the directory
	// snapshots in DataDir. SnapshotKeep is the number of them that stay there.
	// Default: 24.
	SnapshotDir  string
	SnapshotKeep int

	// heartbeat is the heartbeat of raftstore.Config. checkpointInterval is
	// that of operator.Config. Only tests set them.
	heartbeat, checkpointInterval time.Duration

	// Updates, if not nil, delivers changed settings while the server runs.
	// With each update, the server also reads its certificate files again.
	Updates <-chan LiveSettings

	// Tracer records spans of requests. Default: none.
	Tracer *tracing.Tracer
	// Logger receives the log. Default: slog.Default().
	Logger *slog.Logger
	// LogTail has the same log for operators. Default: they cannot watch it.
	LogTail *logtail.Tail
	// Settings returns the settings in force, for operators. Default: none.
	Settings func() []settings.Shown
	// Started, if not nil, is called once, after both ports listen.
	Started func(Addrs)
}

// LiveSettings are the settings that can change while a server runs: see the
// fields of Config with the same names.
type LiveSettings struct {
	OperatorsFrom         []string
	ReadsFrom             []string
	AllowRemoteWritesFrom []string
	RetryJoin             []string
	DeadServerAfter       time.Duration
}

// Live returns the settings of c that can change while the server runs.
func (c Config) Live() LiveSettings {
	return LiveSettings{
		c.OperatorsFrom, c.ReadsFrom, c.AllowRemoteWritesFrom, c.RetryJoin,
		cmp.Or(c.DeadServerAfter, DefaultDeadServerAfter),
	}
}

// Addrs are the addresses at which other processes dial a started server.
type Addrs struct {
	Server  string // host:port of the TLS port, with the advertised host
	HTTP    string // URL of the HTTP API
	Monitor string // URL of the monitor address; empty without one
}

// withDefaults returns c with defaults in place of zero values. A Port that the
// system chooses becomes 0.
func (c Config) withDefaults() Config {
	c.primaryByDefault = c.primaryByDefault || c.PrimaryDC == ""
	c.PrimaryDC = cmp.Or(c.PrimaryDC, c.DC)
	c.Domain = cmp.Or(c.Domain, tlsutil.DefaultDomain)
	c.Bind = cmp.Or(c.Bind, DefaultBind)
	c.Port = max(0, cmp.Or(c.Port, DefaultPort))
	c.HTTPAddr = cmp.Or(c.HTTPAddr, DefaultHTTPAddr)
	c.HTTPSocketMode = cmp.Or(c.HTTPSocketMode, 0o600)
	c.MeshGatewayMode = cmp.Or(c.MeshGatewayMode, string(wanfed.ModeLocal))
	if c.BootstrapExpect == 0 && len(c.RetryJoin) == 0 {
		c.BootstrapExpect = 1
	}
	c.DeadServerAfter = cmp.Or(c.DeadServerAfter, DefaultDeadServerAfter)
	c.SnapshotDir = cmp.Or(c.SnapshotDir, filepath.Join(c.DataDir, "snapshots"))
	c.SnapshotKeep = cmp.Or(c.SnapshotKeep, DefaultSnapshotKeep)
	c.AuditLogKeep = cmp.Or(c.AuditLogKeep, DefaultAuditLogKeep)
	c.AuditLogWhenFull = cmp.Or(c.AuditLogWhenFull, audit.Refuse)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}
