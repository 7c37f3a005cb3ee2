// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/tlsutil"
)

func newOperatorPrimary() *cobra.Command {
	c := newGroup("primary", "Change the primary datacenter", newTakeOver())
	c.Long = `Change the primary datacenter. A planned move needs no command: the setting
primary_datacenter of all servers selects the primary, and the old primary hands
over. See docs/primary.md.`
	c.Example = `  wanfed operator primary take-over --from dc1`
	return c
}

func newTakeOver() *cobra.Command {
	var o operator
	var from string
	var confirm confirmation
	c := &cobra.Command{
		Use:   "take-over --from DC",
		Short: "Make a datacenter the primary without the consent of the old one",
		Long: `Make the called datacenter the primary in place of DC, which is lost or does not
respond. First set primary_datacenter to the new primary on all of its servers,
and restart them.

Writes that DC acknowledged and the called datacenter has not received are lost.
If DC runs, it stops to acknowledge writes of federated resources as soon as it
reaches any server that knows of the take-over. When it later becomes a
secondary, it first writes what it must discard to a file.

The command signs the take-over with the key of its certificate, which must be
that of an operator of the new primary. DC stops only for this signature together
with that of a server of the new primary.

The command shows the state of both datacenters, and requires a confirmation.`,
		Example: `  wanfed operator primary take-over --from dc1
  wanfed operator primary take-over --from dc1 --yes --datacenter dc2 --server 10.2.0.5:8300`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return usagef("--from is required: write the name of the old primary")
			}
			if err := tlsutil.CheckLabel(from); err != nil {
				return usagef("--from: %v; write the name of the old primary", err)
			}
			if err := confirm.check(cmd); err != nil {
				return err
			}
			state, err := takeOver(cmd, &o, &pb.TakeOverRequest{From: from, Check: true})
			if err != nil {
				return err
			}
			if err := confirm.require(cmd, takeOverText(from, state)); err != nil {
				return fmt.Errorf("%w; nothing was changed", err)
			}
			id, err := loadIdentity(cmd, cmd.CommandPath())
			if err != nil {
				return err
			}
			next := replication.Epoch{Number: state.NextEpoch, Datacenter: state.Datacenter}
			proof, err := replication.SignEpoch(id, next, "")
			if err != nil {
				return fmt.Errorf("sign the take-over: %w", err)
			}
			resp, err := takeOver(cmd, &o, &pb.TakeOverRequest{From: from, Proof: proof})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is the primary, in epoch %d\n", output.Printable(resp.Datacenter), resp.Epoch)
			return nil
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&from, "from", "", "`name` of the old primary")
	confirm.addFlag(c)
	_ = c.RegisterFlagCompletionFunc("from", completeDatacenters)
	return c
}

// takeOver calls TakeOver.
func takeOver(cmd *cobra.Command, o *operator, req *pb.TakeOverRequest) (*pb.TakeOverResponse, error) {
	return callServer(cmd, o, "take over from "+req.From, "wanfed status",
		func(ctx context.Context, cc *grpc.ClientConn) (*pb.TakeOverResponse, error) {
			return pb.NewOperatorServiceClient(cc).TakeOver(ctx, req)
		})
}

// takeOverText describes the state on which the operator decides.
func takeOverText(from string, s *pb.TakeOverResponse) string {
	var w strings.Builder
	dc := output.Printable(s.Datacenter)
	fmt.Fprintf(&w, "%s is to be the primary in place of %s.\n", dc, from)
	if s.Unreachable == "" {
		fmt.Fprintf(&w, "%s responds. To lose no write, set primary_datacenter = %q on its servers instead, "+
			"and restart them.\n", from, dc)
	} else {
		fmt.Fprintf(&w, "%s does not respond: %s\n", from, output.Printable(s.Unreachable))
	}
	last := "none since the leader started"
	if s.LastContact != nil {
		last = s.LastContact.AsDuration().Round(time.Second).String() + " ago"
	}
	fmt.Fprintf(&w, "%s has changes of %s up to index %d. Last contact: %s.\n", dc, from, s.Index, last)
	if !s.Complete {
		fmt.Fprintf(&w, "%s has not received all resources: some are missing or old.\n", dc)
	}
	fmt.Fprintf(&w, "Later writes that %s acknowledged are lost, unless it returns as a secondary and saves "+
		"them in a file.", from)
	return w.String()
}
