// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/output"
)

func newControllers() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "controllers",
		Short: "List the controllers of a server",
		Long: `List the controllers of the server that responds: control loops that react to
changed resources.

A controller with the placement "leader" runs at the leader of the datacenter.
Queued is the number of resources that wait for a reconcile. Rate is the number
of reconciles per second, averaged over about a minute. Errors is the number of
reconciles that failed since the server started. With --output wide the managed
and the watched types and the time of the last error are printed.`,
		Example: `  wanfed controllers
  wanfed controllers --output json | jq -r '.[] | select(.last_error).name'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		all, err := cl.Controllers(cmd.Context(), cl.opts)
		if err != nil {
			return err
		}
		return out.Print(all, func() error { return out.Table(controllerRows(all, out.IsWide())) })
	})
}

func controllerRows(all []api.Controller, wide bool) [][]string {
	rows := [][]string{{"Name", "Placement", "Running", "Queued", "Rate", "Errors", "Last Error"}}
	if wide {
		rows[0] = append(rows[0], "At", "Managed", "Watches")
	}
	for _, c := range all {
		row := []string{
			c.Name, c.Placement, strconv.FormatBool(c.Running), strconv.Itoa(c.Queued),
			fmt.Sprintf("%.1f/s", c.Rate), strconv.FormatUint(c.Errors, 10), cmp.Or(c.LastError, "-"),
		}
		if wide {
			row = append(row, output.Timestamp(c.LastErrorAt), c.Managed, cmp.Or(strings.Join(c.Watches, ","), "-"))
		}
		rows = append(rows, row)
	}
	return rows
}
