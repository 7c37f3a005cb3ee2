// SPDX-License-Identifier: MPL-2.0

package main

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/output"
)

func newMembers() *cobra.Command {
	var wan bool
	c := addReadFlags(&cobra.Command{
		Use:   "members",
		Short: "List the members of a gossip pool",
		Long: `List the servers of a datacenter, or with --wan of all datacenters, as members
of their gossip pool.

Status is alive, failed (the server does not respond) or left (the server
stopped cleanly). Address is valid inside the datacenter of the server. With
--output wide all tags of a member are printed.`,
		Example: `  wanfed members --wan
  wanfed members --datacenter dc2
  wanfed members --wan --output json | jq -r '.[] | select(.Status != 1).Name'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		members, err := cl.Members(cmd.Context(), wan, cl.opts)
		if err != nil {
			return err
		}
		return out.Print(members, func() error { return out.Table(memberRows(members, out.IsWide())) })
	})
	c.Flags().BoolVar(&wan, "wan", false, "servers of all datacenters")
	return c
}

func memberRows(members []api.Member, wide bool) [][]string {
	rows := [][]string{{"Node", "Address", "Status", "Type", "Build", "Protocol", "DC"}}
	if wide {
		rows[0] = append(rows[0], "Tags")
	}
	for _, m := range members {
		row := []string{
			m.Name, net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port))), m.Status.String(),
			m.Type(), m.Build(), strconv.Itoa(int(m.ProtocolCur)), m.Datacenter(),
		}
		if wide {
			row = append(row, tags(m.Tags))
		}
		rows = append(rows, row)
	}
	return rows
}

func tags(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, ",")
}
