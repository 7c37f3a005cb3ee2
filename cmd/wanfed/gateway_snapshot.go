// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/output"
)

func newGatewaySnapshot() *cobra.Command {
	cmd := addReadFlags(&cobra.Command{
		Use:   "snapshot [NAME]",
		Short: "Show the configuration that a server has for gateways",
		Long: `Show the configuration that a server has for the gateways of its datacenter, or
for the gateway NAME.

With --admin-addr, show the configuration that a running gateway uses. A gateway
of Consul (--consul) has no server with the snapshot, so it needs this option.

Servers and Datacenters are the numbers of destinations. Age is the time since
the older of the two lists was confirmed. Envoy is the state of an Envoy that is
connected to this server: ok, or rejected if it rejected its last configuration. An
Envoy that is disconnected uses its last configuration, or is connected to another
server of the datacenter.
With --output wide, Source names the place that the data comes from. With --output
json, everything is printed.`,
		Example: `  wanfed gateway snapshot
  wanfed gateway snapshot gw1 --output json
  wanfed gateway snapshot --admin-addr 127.0.0.1:9102 --output wide`,
		Args:              optionalArg("NAME"),
		ValidArgsFunction: completeArgs(completeGateways),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		all, err := gatewaySnapshots(cmd, cl)
		if err != nil {
			return err
		}
		if len(args) > 0 {
			i := slices.IndexFunc(all, func(g api.GatewaySnapshot) bool { return g.Gateway == args[0] })
			if i < 0 {
				var names []string
				for _, g := range all {
					names = append(names, g.Gateway)
				}
				return fmt.Errorf("gateway %q is not registered; see: wanfed gateway snapshot%s", args[0],
					didYouMean(names, args[0]))
			}
			all = all[i : i+1]
		}
		return out.Print(all, func() error { return out.Table(snapshotRows(all, time.Now(), out.IsWide())) })
	})
	cmd.Flags().String("admin-addr", "", "host:port of the admin address of a gateway (default: a server responds)")
	return cmd
}

// gatewaySnapshots returns the snapshot of a running gateway, or the snapshots
// of a server.
func gatewaySnapshots(cmd *cobra.Command, cl client) ([]api.GatewaySnapshot, error) {
	if !cmd.Flags().Changed("admin-addr") {
		return cl.GatewaySnapshots(cmd.Context(), cl.opts)
	}
	s := gatewayd.Settings{AdminAddr: cmd.Flag("admin-addr").Value.String()}
	if err := s.CheckAdminAddr(); err != nil {
		return nil, usageError{err}
	}
	one, err := gatewayd.FetchSnapshot(cmd.Context(), s.AdminAddr)
	return []api.GatewaySnapshot{one}, err
}

func snapshotRows(all []api.GatewaySnapshot, now time.Time, wide bool) [][]string {
	rows := [][]string{{"Gateway", "LAN", "WAN", "Servers", "Datacenters", "Age", "Envoy"}}
	if wide {
		rows[0] = append(rows[0], "Source")
	}
	for _, g := range all {
		var oldest time.Duration
		for _, p := range g.Parts {
			oldest = max(oldest, now.Sub(p.Updated))
		}
		age := oldest.Truncate(time.Second).String()
		if !g.Complete {
			age = "incomplete"
		}
		row := []string{g.Gateway, g.LAN, g.WAN, strconv.Itoa(len(g.Servers)), strconv.Itoa(len(g.Datacenters)), age,
			envoyState(g, now)}
		if wide {
			source := "-"
			if len(g.Parts) > 0 {
				source = g.Parts[0].Origin
			}
			row = append(row, source)
		}
		rows = append(rows, row)
	}
	return rows
}

func envoyState(g api.GatewaySnapshot, now time.Time) string {
	switch {
	case len(g.Envoys) > 0:
	case g.EnvoyDisconnected.IsZero():
		return "-"
	default:
		return "disconnected for " + now.Sub(g.EnvoyDisconnected).Truncate(time.Second).String()
	}
	var faults []string
	for _, e := range g.Envoys {
		for _, t := range e.Types {
			if t.Rejected != "" {
				faults = append(faults, "rejected: "+t.Rejected)
			}
		}
	}
	if len(faults) == 0 {
		return "ok"
	}
	return strings.Join(faults, "; ")
}
