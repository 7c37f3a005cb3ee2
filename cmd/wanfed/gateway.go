// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

// gatewaySettings are what a gateway is told. SIGHUP changes those with the tag live while it runs.
type gatewaySettings struct {
	DC          string   `hcl:"dc,optional" help:"name of this datacenter (required)"`
	Node        string   `hcl:"node,optional" help:"name of this gateway in its datacenter (required)"`
	DataDir     string   `hcl:"data_dir,optional" help:"folder for the last snapshot (required)"`
	CAFile      string   `hcl:"ca_file,optional" help:"PEM file of the CA (required)"`
	CertFile    string   `hcl:"cert_file,optional" help:"PEM file of this gateway's certificate (required)"`
	KeyFile     string   `hcl:"key_file,optional" help:"PEM file of its key (required)"`
	Servers     []string `hcl:"servers,optional" flag:"server" help:"host:port of a server of this datacenter (required); may be given again"`
	Protocols   []string `hcl:"server_protocols,optional" flag:"server-protocol" help:"protocol (ALPN) that this datacenter's servers speak: clients that offer none of those given are refused; none given: the servers decide; may be given again"`
	TellServers bool     `hcl:"server_proxy_protocol,optional" help:"tell this datacenter's servers whom a connection is from, by a PROXY header, version 2: their proxy_protocol has to name this gateway's address"`
	LAN         string   `hcl:"lan,optional" help:"ip:port for the servers of this datacenter (required)"`
	WAN         string   `hcl:"wan,optional" help:"host:port that other datacenters dial; listened on too, unless --wan-bind is given (required)"`
	WANBind     string   `hcl:"wan_bind,optional" help:"ip:port to listen on for other datacenters, where --wan is no address of this machine (behind NAT)"`
	AdminAddr   string   `hcl:"admin_addr,optional" help:"host:port for /healthz, /readyz, /routes, /metrics and /debug/pprof; loopback only"`
	Listen      []string `hcl:"listen,optional" help:"alone, with --routes: ip:port to listen on; may be given again"`
	Routes      string   `hcl:"routes,optional" live:"yes" help:"alone: HCL file of routes"`

	MaxConns          int      `hcl:"max_conns,optional" live:"yes" help:"client connections at a time, at most; 0: as many as files allow, 65536 at most"`
	MaxPerSource      int      `hcl:"max_conns_per_source,optional" live:"yes" help:"those of one source, an IPv4 address or IPv6 /64; 0: three quarters of all, -1: no limit"`
	MaxPerUpstream    int      `hcl:"max_conns_per_upstream,optional" live:"yes" help:"connections to one address of an upstream at a time, at most; 0: no limit"`
	LANAllow          []string `hcl:"lan_allow,optional" live:"yes" help:"networks (CIDR) that may connect to --lan; none given: all; may be given again"`
	LANDeny           []string `hcl:"lan_deny,optional" live:"yes" help:"networks (CIDR) that may not connect to --lan, even if allowed; may be given again"`
	WANAllow          []string `hcl:"wan_allow,optional" live:"yes" help:"as --lan-allow, for --wan"`
	WANDeny           []string `hcl:"wan_deny,optional" live:"yes" help:"as --lan-deny, for --wan"`
	Allow             []string `hcl:"allow,optional" live:"yes" help:"alone: as --lan-allow, for --listen"`
	Deny              []string `hcl:"deny,optional" live:"yes" help:"alone: as --lan-deny, for --listen"`
	LANProxyProtocol  []string `hcl:"lan_proxy_protocol,optional" live:"yes" help:"networks (CIDR) of balancers whose connections to --lan begin with a PROXY header, version 2; may be given again"`
	WANProxyProtocol  []string `hcl:"wan_proxy_protocol,optional" live:"yes" help:"as --lan-proxy-protocol, for --wan"`
	ProxyProtocol     []string `hcl:"proxy_protocol,optional" live:"yes" help:"alone: as --lan-proxy-protocol, for --listen"`
	DrainGrace        string   `hcl:"drain_grace,optional" live:"yes" help:"at a stop, how long connections are still taken after it was announced"`
	DrainTime         string   `hcl:"drain_time,optional" live:"yes" help:"then, how long open connections may go on"`
	HandoverDrainTime string   `hcl:"handover_drain_time,optional" live:"yes" help:"how long they may go on in this process once a new one has taken over"`
	AccessLog         string   `hcl:"access_log,optional" live:"yes" help:"file for a line of JSON per connection, or stdout or stderr; none given: no such lines"`
	AccessLogSample   int      `hcl:"access_log_sample,optional" live:"yes" help:"one of so many connections gets a line"`

	Domain    string `hcl:"domain,optional" help:"domain of names on the wire"`
	LogLevel  string `hcl:"log_level,optional" live:"yes" help:"debug, info, warn or error"`
	LogFormat string `hcl:"log_format,optional" help:"text or json, on stderr"`
}

func defaultGatewaySettings() gatewaySettings {
	return gatewaySettings{
		Domain: tlsutil.DefaultDomain, LogLevel: "info", LogFormat: "text", AccessLogSample: 1,
		DrainGrace: "500ms", DrainTime: "2s", HandoverDrainTime: "10m",
	}
}

func newGateway() *cobra.Command {
	s := defaultGatewaySettings()
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Run one gateway of a datacenter",
		Long: `Run one gateway until SIGINT or SIGTERM; a second one ends it at once.

A gateway forwards TLS connections by the server name in their ClientHello and never opens them. It registers with the servers
of its datacenter and learns its routes from them. With --listen and --routes it runs alone, on a file of routes; no
certificate is needed then:

    route "*.server.dc2.wanfed" { to = ["198.51.100.2:8443"] }

A route may also have ordered = true (the first address is the best), protocols = [...] (ids of which a client must offer one)
and proxy_protocol = true (its addresses want a PROXY header, version 2).

Signals: SIGTERM announces the stop, takes connections for --drain-grace more, and ends the open ones after --drain-time.
SIGHUP reads the settings, the file of routes too, again, and opens the access log anew; it says what only a new process
can change. SIGUSR2 starts the program anew and has it take over the sockets: no connection is refused, and the open ones
stay with the old process until --handover-drain-time. If the new one does not come up, the old one goes on.

A service manager that wants to know is told of start, reload and stop (sd_notify), and may open the sockets (socket
activation): each is used for the setting that names its address.

Settings come from --config-file (HCL, names with underscores), then the environment (WANFED_DATA_DIR for --data-dir),
then flags; a later one beats an earlier one.`,
		Example: `  wanfed gateway --dc dc1 --node gw1 --data-dir /var/lib/wanfed/gateway --server 10.0.0.5:8300 \
    --lan 10.0.0.5:8444 --wan 198.51.100.1:8443 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-gateway-wanfed-0.pem --key-file dc1-gateway-wanfed-0-key.pem
  wanfed gateway --config-file /etc/wanfed/gateway.hcl
  wanfed gateway --listen 0.0.0.0:8443 --routes routes.hcl
  wanfed gateway --config-file /etc/wanfed/gateway.hcl --wan-allow 198.51.100.0/24 --access-log /var/log/wanfed/access.json
  systemctl kill --kill-whom=main -s USR2 wanfed-gateway  # a new binary is in place: have it take over
  wanfed gateway routes --admin-addr 127.0.0.1:9102`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loadSettings(cmd, &s); err != nil {
				return err
			}
			if err := s.check(); err != nil {
				return usageError{err}
			}
			return s.start(cmd, func() (gatewaySettings, error) {
				next := defaultGatewaySettings()
				if err := loadSettings(cmd, &next); err != nil {
					return next, err
				}
				return next, next.check()
			})
		},
	}
	addSettings(cmd, &s)
	cmd.AddCommand(newGatewayRoutes())
	return cmd
}

// start runs a gateway of the kind that the settings ask for. load reads them again.
func (s gatewaySettings) start(cmd *cobra.Command, load func() (gatewaySettings, error)) (err error) {
	p, err := newGatewayProcess(s, load, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if s.alone() {
		return s.runAlone(cmd.Context(), cmd.OutOrStdout(), p)
	}
	return s.run(cmd.Context(), cmd.OutOrStdout(), p)
}

func (s gatewaySettings) alone() bool { return len(s.Listen) > 0 || s.Routes != "" }

// run is a gateway of a datacenter.
func (s gatewaySettings) run(ctx context.Context, out io.Writer, p *gatewayProcess) error {
	p.log = p.log.With("dc", s.DC, "gateway", s.Node)
	id, err := s.files(p.log)
	if err != nil {
		return err
	}
	lan, err := p.addListener(listenerLAN, "lan", s.LAN)
	if err != nil {
		return err
	}
	wan, err := p.addListener(listenerWAN, "wan", or(s.WANBind, s.WAN))
	if err != nil {
		return err
	}
	if p.adminLn, err = p.listeners.listenAdmin(s.AdminAddr, p.log); err != nil {
		return err
	}
	ready := subprocess.GatewayReady{DC: s.DC, Node: s.Node, LAN: withPort(s.LAN, lan.Addrs()[0]), WAN: withPort(s.WAN, wan.Addrs()[0])}
	p.client, err = proxycfg.New(proxycfg.Config{
		Identity: id, Servers: s.Servers, LAN: ready.LAN, WAN: ready.WAN, DataDir: s.DataDir,
		Upstream:    proxycfg.UpstreamOptions{Protocols: s.Protocols, ProxyProtocol: s.TellServers},
		LANListener: lan, WANListener: wan, Logger: p.log,
	})
	if err != nil {
		return err
	}
	p.identity = id.Run
	if err := p.open(); err != nil {
		return err
	}
	fmt.Fprintln(out, ready)
	return p.run(ctx)
}

// files checks what the settings name, and gives the certificate: this gateway's.
func (s gatewaySettings) files(logger *slog.Logger) (*tlsutil.Identity, error) {
	folder := server.CheckDir("data_dir", s.DataDir)
	id, err := tlsutil.Load(tlsutil.Files{CA: s.CAFile, Cert: s.CertFile, Key: s.KeyFile}, s.Domain, logger)
	if err == nil {
		err = id.VerifySubject(tlsutil.RoleGateway, s.Node, s.DC)
	}
	return id, faults(folder, err)
}

func or(s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	return s
}

// withPort gives an address whose port is 0 the port that was chosen.
func withPort(addr string, bound net.Addr) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return addr
	}
	_, port, _ = net.SplitHostPort(bound.String())
	return net.JoinHostPort(host, port)
}
