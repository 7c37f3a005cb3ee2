// SPDX-License-Identifier: MPL-2.0

package serverd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

// Settings are the settings of a server: see their help texts.
type Settings struct {
	DC                string   `hcl:"dc,optional" help:"name of this datacenter (required)"`
	Node              string   `hcl:"node,optional" help:"name of this server in its datacenter (required)"`
	DataDir           string   `hcl:"data_dir,optional" help:"directory of the Raft log, snapshots, keyring and cached addresses (required)"`
	CAFile            string   `hcl:"ca_file,optional" help:"PEM file with the CA certificates (required)"`
	CertFile          string   `hcl:"cert_file,optional" help:"PEM file with the certificate of this server (required)"`
	KeyFile           string   `hcl:"key_file,optional" help:"PEM file with the private key of the certificate (required)"`
	EncryptFile       string   `hcl:"encrypt_file,optional" help:"file (mode 0600) with the first gossip key, see: wanfed keyring generate; the keyring in the data directory takes precedence (default: gossip is not encrypted)"`
	EncryptIncoming   bool     `hcl:"encrypt_verify_incoming,optional" help:"refuse unencrypted gossip, if there is a gossip key"`
	EncryptOutgoing   bool     `hcl:"encrypt_verify_outgoing,optional" help:"encrypt sent gossip, if there is a gossip key"`
	PrimaryDC         string   `hcl:"primary_datacenter,optional" help:"name of the primary datacenter (default: this datacenter)"`
	PrimaryGateways   []string `hcl:"primary_gateways,optional" flag:"primary-gateway" help:"WAN address (host:port) of a gateway of the primary, required in a secondary; repeatable"`
	MeshGatewayMode   string   `hcl:"mesh_gateway_mode,optional" help:"gateways used first to reach other datacenters: local (of this datacenter), remote (of the other) or auto (by measured latency)"`
	Bind              string   `hcl:"bind,optional" help:"IP address to listen on"`
	Advertise         string   `hcl:"advertise,optional" help:"IP address that other servers of this datacenter dial (default: --bind, or a private address of this machine)"`
	Port              int      `hcl:"port,optional" help:"server port, for other servers and gateways; 0: 8300, -1: chosen by the system"`
	HTTPAddr          string   `hcl:"http_addr,optional" help:"host:port or URL of the HTTP API; https:// is required if it is not loopback"`
	HTTPPlain         bool     `hcl:"http_plain,optional" help:"accept connections without TLS, and so without a certificate, at a loopback --http-addr"`
	HTTPSocket        string   `hcl:"http_socket,optional" help:"path of a Unix socket of the HTTP API, for callers without a certificate (default: none)"`
	HTTPSocketMode    string   `hcl:"http_socket_mode,optional" help:"mode of --http-socket, octal; who may write it may connect"`
	HTTPSocketGroup   string   `hcl:"http_socket_group,optional" help:"name or number of the group of --http-socket (default: the group of the process)"`
	MonitorAddr       string   `hcl:"monitor_addr,optional" help:"host:port or URL of /healthz, /readyz and /metrics, at any address; https:// uses the certificate of this server (default: none)"`
	MonitorTokenFile  string   `hcl:"monitor_token_file,optional" help:"file (mode 0600) with the bearer token that /metrics of --monitor-addr requires (default: no token)"`
	ProxyProtocol     []string `hcl:"proxy_protocol,optional" help:"address or network (CIDR) of load balancers before this server; their connections must begin with a PROXY header, version 2; repeatable"`
	BootstrapExpect   int      `hcl:"bootstrap_expect,optional" help:"number of servers that together form a new datacenter: 1, 3 or 5 (default: 1; if --retry-join is given, the server only joins an existing one)"`
	RetryJoin         []string `hcl:"retry_join,optional" live:"yes" help:"host:port of another server of this datacenter; required if --bootstrap-expect is above 1; servers of earlier runs need not be listed; repeatable"`
	OperatorsFrom     []string `hcl:"operators_from,optional" flag:"operators-from" live:"yes" help:"other datacenter whose operators and users act in this one with their certificates, or * for all (default: none); repeatable"`
	ReadsFrom         []string `hcl:"reads_from,optional" flag:"reads-from" live:"yes" help:"other datacenter whose callers may read in this one what they may read in theirs, such as keys, or * for all (default: none); repeatable"`
	AllowRemoteWrites []string `hcl:"allow_remote_writes_from,optional" live:"yes" help:"other datacenter whose operators and users act in this one, also through its servers, or * for all (default: none); repeatable"`
	DeadServerAfter   string   `hcl:"dead_server_after,optional" live:"yes" help:"time until a failed server is removed from the Raft group, for example 10m or 1h; at least 10s"`
	SnapshotEvery     string   `hcl:"snapshot_every,optional" help:"time between two snapshots that the leader writes to --snapshot-dir, for example 1h (default: none)"`
	SnapshotDir       string   `hcl:"snapshot_dir,optional" help:"directory of the snapshots that the server writes (default: snapshots in --data-dir)"`
	SnapshotKeep      int      `hcl:"snapshot_keep,optional" help:"number of snapshots that the server keeps in --snapshot-dir"`
	AuditLog          string   `hcl:"audit_log,optional" help:"file of the audit log: a line of JSON for each write and each denied call (default: none)"`
	AuditLogMaxSize   int      `hcl:"audit_log_max_size,optional" help:"size in MiB above which the audit log is rotated; 0: never"`
	AuditLogKeep      int      `hcl:"audit_log_keep,optional" help:"number of rotated audit logs that the server keeps"`
	AuditLogWhenFull  string   `hcl:"audit_log_when_full,optional" help:"what happens while the audit log cannot be written: refuse (writes are refused) or drop (lines are dropped and counted)"`
	CertLife          string   `hcl:"cert_life,optional" help:"life of the certificates of servers and gateways that this server issues, from 10s; they renew themselves at two thirds of it"`
	IssuingPassphrase string   `hcl:"issuing_key_passphrase_file,optional" help:"file (mode 0600) with the passphrase that encrypts the keys of the CAs in the data directory (default: the systemd credential wanfed-ca-passphrase, or no encryption)"`
	SignerCommand     []string `hcl:"signer_command,optional" help:"program, and its arguments, that issues certificates in place of the keys of the CAs; repeatable (default: none)"`
	PrimaryLease      string   `hcl:"primary_lease,optional" help:"time without a call of another datacenter after which the primary refuses writes of federated resources, at least 10s (default: no limit)"`
	Domain            string   `hcl:"domain,optional" help:"domain of the names in certificates and SNI"`
	LogLevel          string   `hcl:"log_level,optional" live:"yes" help:"lowest level of log lines: debug, info, warn or error"`
	LogFormat         string   `hcl:"log_format,optional" help:"format of the log on stderr: text or json"`
}

// DefaultSettings returns settings with the default values.
func DefaultSettings() Settings {
	return Settings{
		MeshGatewayMode: "local",
		Bind:            "0.0.0.0",
		Port:            server.DefaultPort,
		HTTPAddr:        "127.0.0.1:8500",
		HTTPPlain:       true,
		HTTPSocketMode:  "0600",
		EncryptIncoming: true,
		EncryptOutgoing: true,
		DeadServerAfter: "10m",
		SnapshotKeep:    server.DefaultSnapshotKeep,
		CertLife:        "720h",
		Domain:          tlsutil.DefaultDomain,
		LogLevel:        "info",
		LogFormat:       "text",

		AuditLogMaxSize:  server.DefaultAuditLogMaxSize,
		AuditLogKeep:     server.DefaultAuditLogKeep,
		AuditLogWhenFull: "refuse",
	}
}

// Check returns all errors of the settings. It opens no file.
func (s Settings) Check() error {
	var port, dead, lease error
	if s.Port < -1 {
		port = fmt.Errorf("port is %d: must be -1 to 65535", s.Port)
	}
	if d, err := time.ParseDuration(s.DeadServerAfter); err != nil || d <= 0 {
		dead = fmt.Errorf("dead_server_after is %q: write, for example, 90s, 10m or 1h30m", s.DeadServerAfter)
	}
	var every, keep, auditKeep, mode, life error
	if d, err := time.ParseDuration(s.CertLife); err != nil || d <= 0 {
		life = fmt.Errorf("cert_life is %q: write, for example, 720h", s.CertLife)
	}
	if _, err := strconv.ParseUint(s.HTTPSocketMode, 8, 9); err != nil {
		mode = fmt.Errorf("http_socket_mode is %q: write an octal mode, for example 0660", s.HTTPSocketMode)
	}
	if d, err := time.ParseDuration(s.SnapshotEvery); s.SnapshotEvery != "" && (err != nil || d < 0) {
		every = fmt.Errorf("snapshot_every is %q: write, for example, 30m, 1h or 24h", s.SnapshotEvery)
	}
	if s.SnapshotKeep == 0 {
		keep = errors.New("snapshot_keep is 0: must be 1 or more")
	}
	if s.AuditLogKeep == 0 {
		auditKeep = errors.New("audit_log_keep is 0: must be 1 or more")
	}
	if _, err := time.ParseDuration(s.PrimaryLease); s.PrimaryLease != "" && err != nil {
		lease = fmt.Errorf("primary_lease is %q: write, for example, 30s or 5m", s.PrimaryLease)
	}
	return settings.Join(server.CheckSettings(s.config()), port, dead, every, keep, auditKeep, mode, lease, life,
		settings.CheckNetworks("proxy_protocol", s.ProxyProtocol), settings.CheckLog(s.LogLevel, s.LogFormat))
}

// CheckFiles returns all errors of the files that the settings name.
func (s Settings) CheckFiles() error { return server.CheckFiles(s.config()) }

// config returns the configuration of the server. It replaces invalid values
// without an error, because Check reports them.
func (s Settings) config() server.Config {
	dead, err := time.ParseDuration(s.DeadServerAfter)
	if err != nil || dead < 0 {
		dead = 0
	}
	every, err := time.ParseDuration(s.SnapshotEvery)
	if err != nil || every < 0 {
		every = 0
	}
	lease, _ := time.ParseDuration(s.PrimaryLease)
	life, _ := time.ParseDuration(s.CertLife)
	mode, _ := strconv.ParseUint(s.HTTPSocketMode, 8, 9)
	return server.Config{
		DC: s.DC, Node: s.Node, Domain: s.Domain, DataDir: s.DataDir,
		CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile,
		EncryptFile: s.EncryptFile, GossipAcceptPlain: !s.EncryptIncoming, GossipSendPlain: !s.EncryptOutgoing,
		PrimaryDC: s.PrimaryDC, PrimaryGateways: s.PrimaryGateways, MeshGatewayMode: s.MeshGatewayMode,
		Bind: s.Bind, Advertise: s.Advertise, Port: max(s.Port, -1), HTTPAddr: s.HTTPAddr,
		HTTPTLSOnly: !s.HTTPPlain, HTTPSocket: s.HTTPSocket, HTTPSocketMode: os.FileMode(mode), HTTPSocketGroup: s.HTTPSocketGroup,
		MonitorAddr: s.MonitorAddr, MonitorTokenFile: s.MonitorTokenFile,
		ProxyFrom: settings.Networks(s.ProxyProtocol), BootstrapExpect: s.BootstrapExpect, RetryJoin: s.RetryJoin,
		OperatorsFrom: s.OperatorsFrom, ReadsFrom: s.ReadsFrom, AllowRemoteWritesFrom: s.AllowRemoteWrites, DeadServerAfter: dead,
		SnapshotEvery: every, SnapshotDir: s.SnapshotDir, SnapshotKeep: s.SnapshotKeep,
		AuditLog: s.AuditLog, AuditLogMaxSize: int64(s.AuditLogMaxSize) << 20, AuditLogKeep: s.AuditLogKeep,
		AuditLogWhenFull: s.AuditLogWhenFull,
		PrimaryLease:     lease, CertLife: life, IssuingKeyPassphraseFile: s.IssuingPassphrase, SignerCommand: s.SignerCommand,
	}
}
