// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/go-metrics"
	"github.com/hashicorp/go-metrics/prometheus"
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

type serverSettings struct {
	DC              string   `hcl:"dc,optional" help:"name of this datacenter (required)"`
	Node            string   `hcl:"node,optional" help:"name of this server in its datacenter (required)"`
	DataDir         string   `hcl:"data_dir,optional" help:"folder for the Raft log, snapshots and last known addresses (required)"`
	CAFile          string   `hcl:"ca_file,optional" help:"PEM file of the CA (required)"`
	CertFile        string   `hcl:"cert_file,optional" help:"PEM file of this server's certificate (required)"`
	KeyFile         string   `hcl:"key_file,optional" help:"PEM file of its key (required)"`
	EncryptFile     string   `hcl:"encrypt_file,optional" help:"file (mode 0600) with the gossip key to begin with, of: wanfed keyring generate; the keyring in the data dir beats it"`
	EncryptIncoming bool     `hcl:"encrypt_verify_incoming,optional" help:"with a gossip key: refuse gossip that is not encrypted"`
	EncryptOutgoing bool     `hcl:"encrypt_verify_outgoing,optional" help:"with a gossip key: encrypt what is sent"`
	PrimaryDC       string   `hcl:"primary_datacenter,optional" help:"name of the primary datacenter (default: this one is it)"`
	PrimaryGateways []string `hcl:"primary_gateways,optional" flag:"primary-gateway" help:"WAN address (host:port) of a gateway of the primary; needed in a secondary; may be given again"`
	MeshGatewayMode string   `hcl:"mesh_gateway_mode,optional" help:"gateways by which other datacenters are reached first: local (the own ones), remote (theirs) or auto (what measures best)"`
	Bind            string   `hcl:"bind,optional" help:"IP address to listen on"`
	Advertise       string   `hcl:"advertise,optional" help:"IP address that other servers of this datacenter dial (default: that of --bind, or a private one of this machine)"`
	Port            int      `hcl:"port,optional" help:"the one port for other machines; 0: the system chooses"`
	HTTPAddr        string   `hcl:"http_addr,optional" help:"host:port or URL for people and tools; https:// is required where it is not loopback"`
	ProxyProtocol   []string `hcl:"proxy_protocol,optional" help:"address or network (CIDR) of gateways with server_proxy_protocol: each connection from there has to begin with a PROXY header, version 2, that tells whom it forwards; may be given again"`
	BootstrapExpect int      `hcl:"bootstrap_expect,optional" help:"how many servers form the datacenter: 1, 3 or 5"`
	RetryJoin       []string `hcl:"retry_join,optional" help:"host:port of another server of this datacenter; needed with --bootstrap-expect above 1; may be given again"`
	RemoteWrites    []string `hcl:"remote_writes_from,optional" flag:"remote-writes-from" help:"datacenter whose servers may hand on writes of their operators to this one (* is every one; default: none); may be given again"`
	DeadServerAfter string   `hcl:"dead_server_after,optional" help:"how long a server of the datacenter is down before it is taken out of the Raft group, as 10m or 1h; at least 10s"`
	Domain          string   `hcl:"domain,optional" help:"domain of names on the wire"`
	LogLevel        string   `hcl:"log_level,optional" help:"debug, info, warn or error"`
	LogFormat       string   `hcl:"log_format,optional" help:"text or json, on stderr"`
}

func defaultServerSettings() serverSettings {
	return serverSettings{
		MeshGatewayMode: "local",
		Bind:            "0.0.0.0",
		Port:            8300,
		HTTPAddr:        "127.0.0.1:8500",
		BootstrapExpect: 1,
		EncryptIncoming: true,
		EncryptOutgoing: true,
		DeadServerAfter: "10m",
		Domain:          tlsutil.DefaultDomain,
		LogLevel:        "info",
		LogFormat:       "text",
	}
}

func newServer() *cobra.Command {
	s := defaultServerSettings()
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run one server of a datacenter",
		Long: `Run one server of a datacenter until SIGINT or SIGTERM; a second one ends it at once.

Settings come from --config-file (HCL, names with underscores), then the environment (WANFED_DATA_DIR for --data-dir),
then flags; a later one beats an earlier one. A service manager that wants to know is told of start and stop (sd_notify).`,
		Example: `  wanfed server --dc dc1 --node srv1 --data-dir /var/lib/wanfed \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-server-wanfed-0.pem --key-file dc1-server-wanfed-0-key.pem
  wanfed server --config-file /etc/wanfed/server.hcl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loadSettings(cmd, &s); err != nil {
				return err
			}
			return runServer(cmd, s)
		},
	}
	addSettings(cmd, &s)
	return cmd
}

func runServer(cmd *cobra.Command, s serverSettings) error {
	if err := s.check(); err != nil {
		return usageError{err}
	}
	logger, err := newLogger(cmd.ErrOrStderr(), s.LogLevel, s.LogFormat)
	if err != nil {
		return usageError{err}
	}
	cfg := s.config()
	cfg.Logger = logger
	cfg.Started = func(a server.Addrs) { // the system may have chosen the ports: tell whoever started this process
		fmt.Fprintln(cmd.OutOrStdout(), subprocess.ServerReady{DC: s.DC, Node: s.Node, Addr: a.Server, HTTP: a.HTTP})
		sdnotify.Send(logger, sdnotify.Ready)
	}
	if err := collectMetrics(); err != nil {
		return err
	}
	ctx := cmd.Context()
	defer context.AfterFunc(ctx, func() { sdnotify.Send(logger, sdnotify.Stopping) })()
	return faults(server.Run(ctx, cfg))
}

// check returns everything that is wrong with the settings, without opening files.
func (s serverSettings) check() error {
	var port error
	if s.Port < 0 {
		port = fmt.Errorf("port is %d: must be 0 to 65535", s.Port)
	}
	var dead error
	if d, err := time.ParseDuration(s.DeadServerAfter); err != nil || d <= 0 {
		dead = fmt.Errorf("dead_server_after is %q: write it as 10m, 90s or 1h30m", s.DeadServerAfter)
	}
	var proxy []error
	for _, cidr := range s.ProxyProtocol {
		if _, err := parseNetwork(cidr); err != nil {
			proxy = append(proxy, fmt.Errorf("proxy_protocol: %w", err))
		}
	}
	_, log := newLogger(io.Discard, s.LogLevel, s.LogFormat)
	return faults(server.CheckSettings(s.config()), port, dead, errors.Join(proxy...), log)
}

// config is what the settings mean to the server, where port 0 stands for the default and -1 for any.
func (s serverSettings) config() server.Config {
	port := s.Port
	if port <= 0 {
		port = -1
	}
	dead, err := time.ParseDuration(s.DeadServerAfter)
	if err != nil || dead < 0 {
		dead = 0 // check says so
	}
	return server.Config{
		DC: s.DC, Node: s.Node, Domain: s.Domain, DataDir: s.DataDir,
		CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile,
		EncryptFile: s.EncryptFile, GossipAcceptPlain: !s.EncryptIncoming, GossipSendPlain: !s.EncryptOutgoing,
		PrimaryDC: s.PrimaryDC, PrimaryGateways: s.PrimaryGateways, MeshGatewayMode: s.MeshGatewayMode,
		Bind: s.Bind, Advertise: s.Advertise, Port: port, HTTPAddr: s.HTTPAddr, ProxyFrom: networks(s.ProxyProtocol),
		BootstrapExpect: s.BootstrapExpect, RetryJoin: s.RetryJoin, RemoteWritesFrom: s.RemoteWrites, DeadServerAfter: dead,
	}
}

// collectMetrics lets what Raft, serf and memberlist count come out with the process's other metrics. Those libraries count
// into one place per process, so this is called once, by the command.
func collectMetrics() error {
	sink, err := prometheus.NewPrometheusSinkFrom(prometheus.PrometheusOpts{})
	if err != nil {
		return fmt.Errorf("collect metrics of libraries: %w", err)
	}
	cfg := metrics.DefaultConfig("wanfed")
	cfg.EnableHostname = false       // Prometheus knows the instance
	cfg.EnableRuntimeMetrics = false // and has its own collector for the Go runtime
	if _, err := metrics.NewGlobal(cfg, sink); err != nil {
		return fmt.Errorf("collect metrics of libraries: %w", err)
	}
	return nil
}
