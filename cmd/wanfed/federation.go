// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
)

func newFederation() *cobra.Command {
	c := newGroup("federation", "Look at federation states, or delete one",
		newFederationList(), newFederationRead(), newFederationGateways(), newFederationDelete())
	c.Long = `Look at federation states: which gateways each datacenter has. The primary datacenter owns them, all others have copies;
each server answers from its own store.`
	c.Example = `  wanfed federation list
  wanfed federation read dc2
  wanfed federation gateways --dc dc2`
	return c
}

func newFederationList() *cobra.Command {
	return newRead(&cobra.Command{
		Use:   "list",
		Short: "List the federation states",
		Long: `List the federation state of each datacenter: how many of its gateways are healthy, and when it last changed.

Primary Index is the primary's index of that change; "-" where the primary itself was asked. Equal numbers in two
secondaries mean equal copies.`,
		Example: `  wanfed federation list
  wanfed federation list --at dc2
  wanfed federation list --format json`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, ask asker, out printer) error {
		states, _, err := ask.FederationStates(cmd.Context(), ask.opts)
		if err != nil {
			return err
		}
		return out.print(states, func(w io.Writer) error {
			rows := [][]string{{"Datacenter", "Gateways", "Updated", "Primary Index", "Index"}}
			for _, s := range states {
				rows = append(rows, []string{s.Datacenter, healthyOf(s.MeshGateways), stamp(s.UpdatedAt), primaryIndex(s), index(s.ModifyIndex)})
			}
			return writeTable(w, rows)
		})
	})
}

func newFederationRead() *cobra.Command {
	return newRead(&cobra.Command{
		Use:   "read DC",
		Short: "Show one federation state",
		Long:  `Show the federation state of datacenter DC with all its gateways, as the server that answers has it.`,
		Example: `  wanfed federation read dc2
  wanfed federation read dc2 --at dc1 --format json`,
		Args:              oneDatacenter,
		ValidArgsFunction: completeOneDatacenter,
	}, func(cmd *cobra.Command, args []string, ask asker, out printer) error {
		s, _, err := ask.FederationState(cmd.Context(), args[0], ask.opts)
		if err != nil {
			return err
		}
		return out.print(s, func(w io.Writer) error {
			err := writeTable(w, [][]string{
				{"Datacenter:", s.Datacenter},
				{"Gateways:", healthyOf(s.MeshGateways)},
				{"Updated:", stamp(s.UpdatedAt)},
				{"Primary index:", primaryIndex(s)},
				{"Index:", index(s.ModifyIndex)},
			})
			if err != nil || len(s.MeshGateways) == 0 {
				return err
			}
			fmt.Fprintln(w)
			return writeTable(w, append([][]string{gatewayColumns}, gatewayRows(s.MeshGateways)...))
		})
	})
}

func newFederationGateways() *cobra.Command {
	var dc string
	c := newRead(&cobra.Command{
		Use:   "gateways",
		Short: "List the gateways of all datacenters",
		Long: `List the gateways of all datacenters with their health and addresses: LAN for servers of their own datacenter, WAN for
other datacenters. A gateway that is critical is not used.`,
		Example: `  wanfed federation gateways
  wanfed federation gateways --dc dc2
  wanfed federation gateways --format json`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, ask asker, out printer) error {
		gateways, _, err := ask.MeshGateways(cmd.Context(), ask.opts)
		if err != nil {
			return err
		}
		if dc != "" {
			if len(gateways[dc]) == 0 {
				return fmt.Errorf("no gateway of datacenter %q is known; see: wanfed federation list", dc)
			}
			gateways = map[string][]api.MeshGateway{dc: gateways[dc]}
		}
		return out.print(gateways, func(w io.Writer) error {
			rows := [][]string{append([]string{"Datacenter"}, gatewayColumns...)}
			for _, dc := range slices.Sorted(maps.Keys(gateways)) {
				for _, row := range gatewayRows(gateways[dc]) {
					rows = append(rows, append([]string{dc}, row...))
				}
			}
			return writeTable(w, rows)
		})
	})
	c.Flags().StringVar(&dc, "dc", "", "only those of datacenter `DC`")
	_ = c.RegisterFlagCompletionFunc("dc", completeDatacenters)
	return c
}

var gatewayColumns = []string{"Gateway", "Node", "Health", "LAN", "WAN"}

func gatewayRows(gateways []api.MeshGateway) [][]string {
	var rows [][]string
	for _, g := range gateways {
		rows = append(rows, []string{g.Service.ID, g.Node.Node, health(g), addrOf(g.Service, "lan"), addrOf(g.Service, "wan")})
	}
	return rows
}

// addrOf is the service's address with that tag, or else its plain one.
func addrOf(s api.Service, tag string) string {
	a, ok := s.TaggedAddresses[tag]
	if !ok {
		a = api.ServiceAddress{Address: s.Address, Port: s.Port}
	}
	if a.Address == "" {
		return "-"
	}
	return net.JoinHostPort(a.Address, strconv.Itoa(a.Port))
}

// health is the worst of a gateway's checks.
func health(g api.MeshGateway) string {
	worst := api.CheckPassing
	for _, c := range g.Checks {
		switch c.Status {
		case api.CheckCritical:
			return api.CheckCritical
		case api.CheckWarning:
			worst = api.CheckWarning
		}
	}
	return worst
}

func healthyOf(gateways []api.MeshGateway) string {
	healthy := 0
	for _, g := range gateways {
		if g.Healthy() {
			healthy++
		}
	}
	if len(gateways) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d/%d healthy", healthy, len(gateways))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func primaryIndex(s api.FederationState) string {
	if s.PrimaryModifyIndex == 0 {
		return "-"
	}
	return index(s.PrimaryModifyIndex)
}

func index(i uint64) string { return strconv.FormatUint(i, 10) }
