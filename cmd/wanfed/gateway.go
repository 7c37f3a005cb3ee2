// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/proc"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

type gatewaySettings struct {
	DC        string   `hcl:"dc,optional" help:"name of this datacenter (required)"`
	Node      string   `hcl:"node,optional" help:"name of this gateway in its datacenter (required)"`
	DataDir   string   `hcl:"data_dir,optional" help:"folder for the last snapshot (required)"`
	CAFile    string   `hcl:"ca_file,optional" help:"PEM file of the CA (required)"`
	CertFile  string   `hcl:"cert_file,optional" help:"PEM file of this gateway's certificate (required)"`
	KeyFile   string   `hcl:"key_file,optional" help:"PEM file of its key (required)"`
	Servers   []string `hcl:"servers,optional" flag:"server" help:"host:port of a server of this datacenter (required); may be given again"`
	LAN       string   `hcl:"lan,optional" help:"ip:port for the servers of this datacenter (required)"`
	WAN       string   `hcl:"wan,optional" help:"host:port that other datacenters dial; listened on too, unless --wan-bind is given (required)"`
	WANBind   string   `hcl:"wan_bind,optional" help:"ip:port to listen on for other datacenters, where --wan is no address of this machine (behind NAT)"`
	AdminAddr string   `hcl:"admin_addr,optional" help:"host:port for /healthz, /readyz, /routes and /metrics; loopback only"`
	Listen    []string `hcl:"listen,optional" help:"alone, with --routes: ip:port to listen on; may be given again"`
	Routes    string   `hcl:"routes,optional" help:"alone: HCL file of routes"`
	Domain    string   `hcl:"domain,optional" help:"domain of names on the wire"`
	LogLevel  string   `hcl:"log_level,optional" help:"debug, info, warn or error"`
	LogFormat string   `hcl:"log_format,optional" help:"text or json, on stderr"`
}

func defaultGatewaySettings() gatewaySettings {
	return gatewaySettings{Domain: tlsutil.DefaultDomain, LogLevel: "info", LogFormat: "text"}
}

func newGateway() *cobra.Command {
	s := defaultGatewaySettings()
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Run one gateway of a datacenter",
		Long: `Run one gateway until SIGINT or SIGTERM; a second one ends it at once.

A gateway forwards TLS connections by the server name in their ClientHello and never opens them. It registers with the servers
of its datacenter and learns its routes from them. With --listen and --routes it runs alone, on a file of routes, which
SIGHUP reads again; no certificate is needed then:

    route "*.server.dc2.wanfed" { to = ["198.51.100.2:8443"] }

Settings come from --config-file (HCL, names with underscores), then the environment (WANFED_DATA_DIR for --data-dir),
then flags; a later one beats an earlier one.`,
		Example: `  wanfed gateway --dc dc1 --node gw1 --data-dir /var/lib/wanfed/gateway --server 10.0.0.5:8300 \
    --lan 10.0.0.5:8444 --wan 198.51.100.1:8443 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-gateway-wanfed-0.pem --key-file dc1-gateway-wanfed-0-key.pem
  wanfed gateway --config-file /etc/wanfed/gateway.hcl
  wanfed gateway --listen 0.0.0.0:8443 --routes routes.hcl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loadSettings(cmd, &s); err != nil {
				return err
			}
			if err := s.check(); err != nil {
				return usageError{err}
			}
			logger, err := newLogger(cmd.ErrOrStderr(), s.LogLevel, s.LogFormat)
			if err != nil {
				return usageError{err}
			}
			if s.alone() {
				return s.runAlone(cmd.Context(), cmd.OutOrStdout(), logger)
			}
			return s.run(cmd.Context(), cmd.OutOrStdout(), logger)
		},
	}
	addSettings(cmd, &s)
	return cmd
}

func (s gatewaySettings) alone() bool { return len(s.Listen) > 0 || s.Routes != "" }

// check returns everything that is wrong with the settings, without opening files.
func (s gatewaySettings) check() error {
	_, log := newLogger(io.Discard, s.LogLevel, s.LogFormat)
	if s.alone() {
		return faults(s.checkAlone(), s.checkAdmin(), log)
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct{ name, value, flag string }{
		{"dc", s.DC, "--dc dc1"}, {"node", s.Node, "--node gw1"}, {"data_dir", s.DataDir, "--data-dir /var/lib/wanfed/gateway"},
		{"ca_file", s.CAFile, "--ca-file FILE"}, {"cert_file", s.CertFile, "--cert-file FILE"}, {"key_file", s.KeyFile, "--key-file FILE"},
		{"lan", s.LAN, "--lan 10.0.0.5:8444"}, {"wan", s.WAN, "--wan 198.51.100.1:8443"},
	} {
		if f.value == "" {
			fault("%s is required, for example %s", f.name, f.flag)
		}
	}
	for _, f := range []struct{ name, label string }{{"dc", s.DC}, {"node", s.Node}} {
		if err := tlsutil.CheckLabel(f.label); f.label != "" && err != nil {
			fault("%s: %w", f.name, err)
		}
	}
	if err := tlsutil.CheckDomain(s.Domain); err != nil {
		fault("domain: %w", err)
	}
	if len(s.Servers) == 0 {
		fault("servers is empty: name at least one server of this datacenter, for example --server 10.0.0.5:8300")
	}
	for _, addr := range s.Servers {
		if err := gateway.CheckAddr(addr); err != nil {
			fault("servers: %w", err)
		}
	}
	for _, f := range []struct{ name, value string }{{"lan", s.LAN}, {"wan_bind", s.WANBind}} {
		if f.value != "" && !isIPPort(f.value) {
			fault("%s %q is not ip:port", f.name, f.value)
		}
	}
	if s.WAN != "" {
		if err := gateway.CheckAddr(s.WAN); err != nil && !isIPPort(s.WAN) {
			fault("wan: %w", err)
		} else if s.WANBind == "" && !isIPPort(s.WAN) {
			fault("wan %q is a name: say with wan_bind which ip:port to listen on", s.WAN)
		}
	}
	switch listen := or(s.WANBind, s.WAN); {
	case overlap(s.LAN, s.WAN) && s.LAN == s.WAN:
		fault("wan and lan are both %s: they have different routes, so each needs an address of its own", s.LAN)
	case overlap(s.LAN, listen):
		fault("wan side %s and lan %s cannot both be listened on: they have different routes, so each needs an address of its own", listen, s.LAN)
	}
	for _, f := range []struct{ name, addr string }{{"lan", s.LAN}, {"wan", s.WAN}} {
		if ap, err := netip.ParseAddrPort(f.addr); err == nil && ap.Addr().IsUnspecified() {
			fault("%s %q is unspecified: nobody can dial it; name the address that others dial", f.name, f.addr)
		}
	}
	return faults(append(errs, s.checkAdmin(), log)...)
}

func (s gatewaySettings) checkAdmin() error {
	if s.AdminAddr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(s.AdminAddr)
	if err != nil {
		return fmt.Errorf("admin_addr %q is not host:port", s.AdminAddr)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("admin_addr %q is not a loopback address: it has neither TLS nor a password", s.AdminAddr)
	}
	return nil
}

func isIPPort(s string) bool {
	_, err := netip.ParseAddrPort(s)
	return err == nil
}

// overlap says whether one machine cannot listen on both addresses.
func overlap(a, b string) bool {
	x, err1 := netip.ParseAddrPort(a)
	y, err2 := netip.ParseAddrPort(b)
	return err1 == nil && err2 == nil && x.Port() == y.Port() && x.Port() != 0 &&
		(x.Addr() == y.Addr() || x.Addr().IsUnspecified() || y.Addr().IsUnspecified())
}

// run is a gateway of a datacenter.
func (s gatewaySettings) run(ctx context.Context, out io.Writer, logger *slog.Logger) (err error) {
	logger = logger.With("dc", s.DC, "gateway", s.Node)
	id, err := s.files(logger)
	if err != nil {
		return err
	}
	var lns listeners
	defer func() { err = errors.Join(err, lns.close()) }()
	lan, wan := gateway.NewSide("lan"), gateway.NewSide("wan")
	lanLn, err := lns.listen("lan", s.LAN)
	if err != nil {
		return err
	}
	wanLn, err := lns.listen("wan", or(s.WANBind, s.WAN))
	if err != nil {
		return err
	}
	adminLn, err := lns.listenAdmin(s.AdminAddr, logger)
	if err != nil {
		return err
	}
	ready := proc.GatewayReady{DC: s.DC, Node: s.Node, LAN: withPort(s.LAN, lanLn), WAN: withPort(s.WAN, wanLn)}
	client, err := proxycfg.New(proxycfg.Config{
		Identity: id, Servers: s.Servers, LAN: ready.LAN, WAN: ready.WAN, DataDir: s.DataDir,
		LANSide: lan, WANSide: wan, Logger: logger,
	})
	if err != nil {
		return err
	}
	proxy, err := gateway.New(gateway.Config{Logger: logger})
	if err != nil {
		return err
	}
	admin := newAdmin(adminLn, adminHandler([]*gateway.Side{lan, wan}, client))
	fmt.Fprintln(out, ready)

	// Other datacenters must know that this gateway stops before it does: the client's group ends first.
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lower, lctx := errgroup.WithContext(base)
	lower.Go(func() error {
		return proxy.Run(lctx, gateway.Listener{Listener: lanLn, Side: lan}, gateway.Listener{Listener: wanLn, Side: wan})
	})
	lower.Go(func() error { return id.Run(lctx) })
	lower.Go(func() error { return admin.run(lctx) })
	uctx, stopUpper := context.WithCancel(ctx)
	defer stopUpper()
	defer context.AfterFunc(lctx, stopUpper)()
	err = client.Run(uctx)
	stop()
	return errors.Join(err, lower.Wait())
}

// files checks what the settings name, and gives the certificate: this gateway's.
func (s gatewaySettings) files(logger *slog.Logger) (*tlsutil.Identity, error) {
	folder := server.CheckFolder("data_dir", s.DataDir)
	id, err := tlsutil.Load(tlsutil.Files{CA: s.CAFile, Cert: s.CertFile, Key: s.KeyFile}, s.Domain, logger)
	if err == nil {
		err = id.CheckHolder(tlsutil.RoleGateway, s.Node, s.DC)
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
func withPort(addr string, ln net.Listener) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return addr
	}
	_, port, _ = net.SplitHostPort(ln.Addr().String())
	return net.JoinHostPort(host, port)
}
