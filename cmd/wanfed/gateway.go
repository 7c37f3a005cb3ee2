// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
)

func newGateway() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Run a gateway of a datacenter",
		Long: `Run a gateway until SIGINT or SIGTERM. A second signal ends it at once.

A gateway forwards TLS connections by the server name (SNI) in their ClientHello
and does not decrypt them. It registers with the servers of its datacenter and
receives its routes from them. With --listen and --routes, a standalone gateway
reads its routes from a file and needs no certificate:

    route "*.server.dc2.wanfed" { to = ["198.51.100.2:8443"] }

With --consul, the gateway is a mesh gateway of a Consul WAN federation in place
of Envoy. It registers with the Consul agent as the service --node of kind
mesh-gateway and follows Consul's federation states and servers. It needs no
certificate, and reads CONSUL_HTTP_TOKEN, CONSUL_HTTP_TOKEN_FILE, CONSUL_CACERT,
CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY and CONSUL_TLS_SERVER_NAME, as Consul's
commands do.

A route has these options:

    ordered = true          use the addresses in their order
    protocols = ["h2"]      refuse clients that offer none of these ALPN ids
    proxy_protocol = true   send a PROXY header, version 2, to the addresses

Signals:

  SIGTERM  Stop: accept connections for --shutdown-delay, then close the open
           ones after --drain-time.
  SIGHUP   Reload the settings and the file of routes, and open the access log
           again. The log names settings that need a new process.
  SIGUSR2  Hot restart: start a new process that takes over the sockets. No
           connection is refused. Open connections stay in the old process for
           --hot-restart-drain-time. If the new process fails, the old one
           continues.

The gateway notifies systemd of start, reload and stop (sd_notify). It uses a
socket that systemd opened (socket activation) in place of its own socket, if
the address of the socket is the address in a setting.

Settings come from --config-file (HCL, names with underscores), then the
environment (WANFED_DATA_DIR for --data-dir), then flags. A later source
overrides an earlier one.`,
		Example: `  wanfed gateway --dc dc1 --node gw1 --data-dir /var/lib/wanfed/gateway \
    --server 10.0.0.5:8300 --lan 10.0.0.5:8444 --wan 198.51.100.1:8443 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-gateway-wanfed-0.pem \
    --key-file dc1-gateway-wanfed-0-key.pem
  wanfed gateway --config-file /etc/wanfed/gateway.hcl
  wanfed gateway --listen 0.0.0.0:8443 --routes routes.hcl
  wanfed gateway --consul http://127.0.0.1:8500 --dc dc1 --node gw1 \
    --data-dir /var/lib/wanfed/gateway --lan 10.0.0.5:8444 --wan 198.51.100.1:8443
  systemctl kill --kill-whom=main -s USR2 wanfed-gateway  # hot restart
  wanfed gateway routes --admin-addr 127.0.0.1:9102`,
		Args: noArgs,
	}
	load := addSettings(cmd, gatewayd.DefaultSettings)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load()
		if err != nil {
			return err
		}
		return gatewayd.Run(cmd.Context(), gatewayd.Config{
			Settings: s, Reload: load, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		})
	}
	cmd.AddCommand(newGatewayRoutes(), newGatewaySnapshot())
	return cmd
}

func newGatewayRoutes() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "routes",
		Short: "List the routes of a running gateway",
		Long: `List the routes of a running gateway: the server names and upstream addresses of
each listener. An exact name takes precedence over a wildcard.

Use is "shared" if a connection goes to the address with the fewest open
connections, and "first" if it goes to the first reachable address. Open has the
number of connections to each address, including connections of other routes.

The command calls the admin address of the gateway: --admin-addr,
WANFED_ADMIN_ADDR, or admin_addr in the file of --config-file.`,
		Example: `  wanfed gateway routes --admin-addr 127.0.0.1:9102
  wanfed gateway routes --config-file /etc/wanfed/gateway.hcl --output json`,
		Args: noArgs,
	}
	cmd.Flags().String("admin-addr", "", "host:port of the admin address of the gateway (WANFED_ADMIN_ADDR)")
	cmd.Flags().String(settings.ConfigFileFlag, "", "HCL or JSON (.json) `file` with the settings of the gateway")
	printer := output.AddFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		addr, err := adminAddr(cmd)
		if err != nil {
			return err
		}
		routes, err := gatewayd.FetchRoutes(cmd.Context(), addr)
		if err != nil {
			return err
		}
		out := printer()
		return out.Print(routes, func() error { return out.Table(routeRows(routes, out.IsWide())) })
	}
	return cmd
}

// adminAddr returns the admin address of a gateway from the flags, the
// environment or the settings file.
func adminAddr(cmd *cobra.Command) (string, error) {
	s := gatewayd.DefaultSettings()
	if path := settings.FlagOrEnv(cmd.Flags(), settings.ConfigFileFlag); path != "" {
		if err := settings.Read(path, &s); err != nil {
			return "", usageError{err}
		}
	}
	s.AdminAddr = cmp.Or(settings.FlagOrEnv(cmd.Flags(), "admin-addr"), s.AdminAddr)
	if s.AdminAddr == "" {
		return "", usagef("the admin address of the gateway is required, for example: --admin-addr 127.0.0.1:9102")
	}
	if err := s.CheckAdminAddr(); err != nil {
		return "", usageError{err}
	}
	return s.AdminAddr, nil
}

func routeRows(routes map[string][]gatewayd.Route, wide bool) [][]string {
	rows := [][]string{{"Listener", "Name", "Open", "Use", "Addresses"}}
	if wide {
		rows[0] = append(rows[0], "Protocols")
	}
	for _, listener := range slices.Sorted(maps.Keys(routes)) {
		for _, r := range routes[listener] {
			var open []string
			for _, n := range r.Open {
				open = append(open, strconv.Itoa(n))
			}
			use := "shared"
			switch {
			case len(r.To) == 1:
				use = "-"
			case r.Ordered:
				use = "first"
			}
			row := []string{listener, r.Match, strings.Join(open, ", "), use, strings.Join(r.To, ", ")}
			if wide {
				row = append(row, cmp.Or(strings.Join(r.Protocols, ", "), "any"))
			}
			rows = append(rows, row)
		}
	}
	return rows
}
