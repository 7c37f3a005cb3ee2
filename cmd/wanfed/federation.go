// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/output"
)

func newFederation() *cobra.Command {
	c := newGroup("federation", "Read or delete federation states",
		newFederationList(), newFederationRead(), newFederationGateways(), newFederationDelete(),
		newFederationReplace())
	c.Long = `Read or delete federation states. The federation state of a datacenter has its
gateways. The primary datacenter owns all states, and the other datacenters have
replicas. Each server reads from its own store.`
	c.Example = `  wanfed federation list
  wanfed federation read dc2
  wanfed federation gateways --only dc2`
	return c
}

func newFederationList() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "list",
		Short: "List the federation states",
		Long: `List the federation state of each datacenter: the number of healthy gateways and
the time of the last change.

Primary Index is the index of that change in the store of the primary. The
primary itself prints "-". Two secondaries with equal numbers have equal
replicas.`,
		Example: `  wanfed federation list
  wanfed federation list --datacenter dc2
  wanfed federation list --output json`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		states, _, err := cl.FederationStates(cmd.Context(), cl.opts)
		if err != nil {
			return err
		}
		return out.Print(states, func() error {
			rows := [][]string{{"Datacenter", "Gateways", "Updated", "Primary Index", "Index"}}
			for _, s := range states {
				rows = append(rows, []string{
					s.Datacenter, healthSummary(s.MeshGateways), output.Timestamp(s.UpdatedAt), primaryIndex(s),
					index(s.ModifyIndex),
				})
			}
			return out.Table(rows)
		})
	})
}

func newFederationRead() *cobra.Command {
	return addReadFlags(&cobra.Command{
		Use:   "read DC",
		Short: "Show one federation state",
		Long:  `Show the federation state of datacenter DC with all its gateways.`,
		Example: `  wanfed federation read dc2
  wanfed federation read dc2 --datacenter dc1 --output json`,
		Args:              labelArg("DC", "datacenter"),
		ValidArgsFunction: completeArgs(completeDatacenters),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		s, _, err := cl.FederationState(cmd.Context(), args[0], cl.opts)
		if errors.Is(err, api.ErrNotFound) {
			err = checkDatacenter(cmd.Context(), cl.Client, args[0], err)
		}
		if err != nil {
			return err
		}
		return out.Print(s, func() error {
			err := output.WriteFields(out.W, [][]string{
				{"Datacenter:", s.Datacenter},
				{"Gateways:", healthSummary(s.MeshGateways)},
				{"Updated:", output.Timestamp(s.UpdatedAt)},
				{"Primary index:", primaryIndex(s)},
				{"Index:", index(s.ModifyIndex)},
			})
			if err != nil || len(s.MeshGateways) == 0 {
				return err
			}
			fmt.Fprintln(out.W)
			return out.Table(append([][]string{gatewayColumns}, gatewayRows(s.MeshGateways)...))
		})
	})
}

func newFederationGateways() *cobra.Command {
	var only string
	c := addReadFlags(&cobra.Command{
		Use:   "gateways",
		Short: "List the gateways of all datacenters",
		Long: `List the gateways of all datacenters with health and addresses. LAN is the
address for servers of the same datacenter, WAN for other datacenters. Critical
gateways are not used.`,
		Example: `  wanfed federation gateways
  wanfed federation gateways --only dc2
  wanfed federation gateways --output json`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, cl client, out output.Printer) error {
		gateways, _, err := cl.MeshGateways(cmd.Context(), cl.opts)
		if err != nil {
			return err
		}
		if only != "" {
			if len(gateways[only]) == 0 {
				return fmt.Errorf("datacenter %q has no known gateway; see: wanfed federation list%s", only,
					didYouMean(slices.Sorted(maps.Keys(gateways)), only))
			}
			gateways = map[string][]api.MeshGateway{only: gateways[only]}
		}
		return out.Print(gateways, func() error {
			rows := [][]string{append([]string{"Datacenter"}, gatewayColumns...)}
			for _, dc := range slices.Sorted(maps.Keys(gateways)) {
				for _, row := range gatewayRows(gateways[dc]) {
					rows = append(rows, append([]string{dc}, row...))
				}
			}
			return out.Table(rows)
		})
	})
	c.Flags().StringVar(&only, "only", "", "`name` of the datacenter to list (default: all)")
	_ = c.RegisterFlagCompletionFunc("only", completeDatacenters)
	return c
}

var gatewayColumns = []string{"Gateway", "Node", "Health", "LAN", "WAN"}

func gatewayRows(gateways []api.MeshGateway) [][]string {
	var rows [][]string
	for _, g := range gateways {
		rows = append(rows, []string{
			g.Service.ID, g.Node.Node, g.Status(),
			cmp.Or(g.Service.Addr("lan"), "-"), cmp.Or(g.Service.Addr("wan"), "-"),
		})
	}
	return rows
}

func healthSummary(gateways []api.MeshGateway) string {
	if len(gateways) == 0 {
		return "none"
	}
	healthy := 0
	for _, g := range gateways {
		if g.Healthy() {
			healthy++
		}
	}
	return fmt.Sprintf("%d/%d healthy", healthy, len(gateways))
}

func primaryIndex(s api.FederationState) string {
	if s.PrimaryModifyIndex == 0 {
		return "-"
	}
	return index(s.PrimaryModifyIndex)
}

func index(i uint64) string { return strconv.FormatUint(i, 10) }

func newFederationDelete() *cobra.Command {
	o := operator{inPrimary: true}
	var force bool
	c := &cobra.Command{
		Use:   "delete DC",
		Short: "Delete the federation state of a datacenter that no longer exists",
		Long: `Delete the federation state of datacenter DC. Other datacenters then stop dialing
its gateways. Stop the servers of DC first, because a running datacenter writes
its state again. Without --force, the deletion is refused while a server of DC is
alive.

A server of the primary deletes the state. The command needs the certificate of
an operator.`,
		Example: `  wanfed tls cert create --operator --datacenter dc1
  wanfed federation delete dc3 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-operator-wanfed-0.pem \
    --key-file dc1-operator-wanfed-0-key.pem`,
		Args:              labelArg("DC", "datacenter"),
		ValidArgsFunction: completeArgs(completeDatacenters),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := callServer(cmd, &o, "delete federation state of "+args[0], "wanfed federation list",
				func(ctx context.Context, cc *grpc.ClientConn) (*pb.ApplyFederationStateResponse, error) {
					return pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
						Op:    pb.ApplyFederationStateRequest_OP_DELETE,
						State: &pb.FederationState{Datacenter: args[0]}, Force: force,
					})
				})
			if err != nil {
				return err
			}
			text := "deleted the federation state of %s\n"
			if !resp.Changed {
				text = "%s had no federation state\n"
			}
			fmt.Fprintf(cmd.OutOrStdout(), text, args[0])
			return nil
		},
	}
	o.addFlags(c)
	c.Flags().BoolVar(&force, "force", false, "delete the state although servers of DC are alive")
	return c
}

func newFederationReplace() *cobra.Command {
	o := operator{inPrimary: true}
	var id string
	c := &cobra.Command{
		Use:   "replace DC --id ID",
		Short: "Accept a datacenter that was rebuilt under the same name",
		Long: `Accept the Raft group ID as datacenter DC, in place of the group that had the
name before. The primary refuses a second datacenter with the name of another
one, because it cannot distinguish a rebuilt datacenter from a copied
configuration. "wanfed status" shows the id of the refused group.

A server of the primary stores the new id. From then on, the servers of the
earlier group are refused. The command needs the certificate of an operator.

If the primary itself was rebuilt without a snapshot, each secondary must accept
its new id. Run the command once per secondary, with DC the primary,
--datacenter the secondary, and the certificate of an operator of that
secondary.`,
		Example: `  wanfed status
  wanfed federation replace dc2 --id 9f86d081884c7d65 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-operator-wanfed-0.pem \
    --key-file dc1-operator-wanfed-0-key.pem`,
		Args:              labelArg("DC", "datacenter"),
		ValidArgsFunction: completeArgs(completeDatacenters),
		RunE: func(cmd *cobra.Command, args []string) error {
			if id == "" {
				return usagef("the id of the new Raft group is missing: set --id (see: wanfed status)")
			}
			resp, err := callServer(cmd, &o, "replace "+args[0], "wanfed status",
				func(ctx context.Context, cc *grpc.ClientConn) (*pb.ReplaceGroupResponse, error) {
					return pb.NewFederationServiceClient(cc).Replace(ctx,
						&pb.ReplaceGroupRequest{Datacenter: args[0], GroupId: id})
				})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is the group %s (before: %s)\n", args[0], id,
				cmp.Or(resp.PreviousGroupId, "unknown"))
			return nil
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&id, "id", "", "`id` of the Raft group that takes the name (required)")
	return c
}
