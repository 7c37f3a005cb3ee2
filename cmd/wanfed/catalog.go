// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/output"
)

func newServices() *cobra.Command {
	c := addReadFlags(&cobra.Command{
		Use:   "services [NAME]",
		Short: "List the services of a datacenter, or the instances of one",
		Long: `List the services of a datacenter and their tags. With NAME, list the instances of
that service. Health is the worst status of the checks of the instance and of its
node: passing, warning or critical.`,
		Example: `  wanfed services
  wanfed services web --datacenter dc2
  wanfed services web --output json | jq -r '.[].Service.Address'`,
		Args: optionalArg("NAME"),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		if len(args) > 0 {
			return printInstances(cmd.Context(), args[0], cl, out)
		}
		services, _, err := cl.ServiceNames(cmd.Context(), nil, cl.opts)
		if err != nil {
			return refusalText(err)
		}
		return out.Print(services, func() error {
			rows := [][]string{{"Service", "Tags"}}
			for _, name := range slices.Sorted(maps.Keys(services)) {
				rows = append(rows, []string{name, listText(services[name])})
			}
			return out.Table(rows)
		})
	})
	c.ValidArgsFunction = completeArgs(completeServices)
	return c
}

func printInstances(ctx context.Context, service string, cl client, out output.Printer) error {
	instances, _, err := cl.ServiceHealth(ctx, service, cl.opts)
	switch {
	case err != nil:
		return refusalText(err)
	case len(instances) == 0:
		return fmt.Errorf("service %q has no instances; see: wanfed services", service)
	}
	return out.Print(instances, func() error {
		rows := [][]string{{"Instance", "Node", "Address", "Health", "Tags"}}
		for _, i := range instances {
			addr := net.JoinHostPort(cmp.Or(i.Service.Address, i.Node.Address), strconv.Itoa(i.Service.Port))
			rows = append(rows, []string{i.Service.ID, i.Node.Node, addr, i.Status(), listText(i.Service.Tags)})
		}
		return out.Table(rows)
	})
}

func newNodes() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of a datacenter",
		Long: `List the nodes of the catalog of a datacenter. See "wanfed members" for the servers
of a gossip pool.`,
		Example: `  wanfed nodes
  wanfed nodes --datacenter dc2 --output wide`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		nodes, _, err := cl.Nodes(cmd.Context(), cl.opts)
		if err != nil {
			return refusalText(err)
		}
		return out.Print(nodes, func() error {
			rows := [][]string{{"Node", "Address", "Datacenter", "Metadata"}}
			for _, n := range nodes {
				rows = append(rows, []string{n.Node, n.Address, n.Datacenter, cmp.Or(tags(n.Meta), "-")})
			}
			return out.Table(rows)
		})
	})
}

func listText(list []string) string { return cmp.Or(strings.Join(list, ", "), "-") }
