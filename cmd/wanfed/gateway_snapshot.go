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
)

func newGatewaySnapshot() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "snapshot [NAME]",
		Short: "Show the configuration that a server has for gateways",
		Long: `Show the configuration that a server has for the gateways of its datacenter, or
for the gateway NAME.

Servers and Datacenters are the numbers of destinations. Age is the time since
the older of the two lists was confirmed. Envoy is the state of an Envoy that is
connected to this server: ok, or rejected if it rejected its last configuration.
With --output json, everything is printed.`,
		Example: `  wanfed gateway snapshot
  wanfed gateway snapshot gw1 --output json`,
		Args: cobra.MaximumNArgs(1),
	}, func(cmd *cobra.Command, args []string, cl client, out printer) error {
		all, err := cl.GatewaySnapshots(cmd.Context(), cl.opts)
		if err != nil {
			return err
		}
		if len(args) > 0 {
			i := slices.IndexFunc(all, func(g api.GatewaySnapshot) bool { return g.Gateway == args[0] })
			if i < 0 {
				return fmt.Errorf("gateway %s is not registered; list the gateways with: wanfed gateway snapshot", args[0])
			}
			all = all[i : i+1]
		}
		return out.print(all, func() error { return out.table(snapshotRows(all, time.Now())) })
	})
}

func snapshotRows(all []api.GatewaySnapshot, now time.Time) [][]string {
	rows := [][]string{{"Gateway", "LAN", "WAN", "Servers", "Datacenters", "Age", "Envoy"}}
	for _, g := range all {
		var oldest time.Duration
		for _, p := range g.Parts {
			oldest = max(oldest, now.Sub(p.Updated))
		}
		age := oldest.Truncate(time.Second).String()
		if !g.Complete {
			age = "incomplete"
		}
		rows = append(rows, []string{g.Gateway, g.LAN, g.WAN, strconv.Itoa(len(g.Servers)),
			strconv.Itoa(len(g.Datacenters)), age, envoyState(g.Envoys)})
	}
	return rows
}

func envoyState(envoys []api.EnvoyConnection) string {
	if len(envoys) == 0 {
		return "-"
	}
	var faults []string
	for _, e := range envoys {
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
