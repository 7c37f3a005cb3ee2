// SPDX-License-Identifier: MPL-2.0

package main

import (
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newMembers() *cobra.Command {
	var wan, detailed bool
	c := newRead(&cobra.Command{
		Use:   "members",
		Short: "List the servers that gossip knows",
		Long: `List the servers of a datacenter, or, with --wan, those of all datacenters, as gossip knows them.

A server is alive, failed (it does not answer) or left (it stopped cleanly). An address is one inside the server's own
datacenter.`,
		Example: `  wanfed members --wan
  wanfed members --at dc2
  wanfed members --wan --format json | jq -r '.[] | select(.Status != 1).Name'`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, ask asker, out printer) error {
		members, err := ask.Members(cmd.Context(), wan, ask.opts)
		if err != nil {
			return err
		}
		return out.print(members, func(w io.Writer) error { return writeTable(w, memberRows(members, detailed)) })
	})
	c.Flags().BoolVar(&wan, "wan", false, "the servers of all datacenters")
	addDetailed(c, &detailed, "every tag, in place of the columns made of some")
	return c
}

func memberRows(members []api.Member, detailed bool) [][]string {
	rows := [][]string{{"Node", "Address", "Status", "Type", "Build", "Protocol", "DC"}}
	if detailed {
		rows = [][]string{{"Node", "Address", "Status", "Tags"}}
	}
	for _, m := range members {
		row := []string{m.Name, net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port))), m.Status.String()}
		if detailed {
			row = append(row, tags(m.Tags))
		} else {
			row = append(row, m.Type(), m.Build(), strconv.Itoa(int(m.ProtocolCur)), m.Datacenter())
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
