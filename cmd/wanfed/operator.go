// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func newOperator() *cobra.Command {
	raft := newGroup("raft", "Look at the Raft group of a datacenter, or change it",
		newListPeers(), newRemovePeer(), newTransferLeader())
	raft.Long = `Look at the Raft group of a datacenter, or change it. The group is the servers that keep the datacenter's records: the
leader writes, a majority of the voters must have what is written.

It takes care of itself: new servers join it, without a vote at first; a server that has been down for ten minutes
(dead_server_after) is taken out of it, if those that remain are enough. One that was stopped cleanly stays in it.`
	raft.Example = `  wanfed operator raft list-peers --dc dc1 --server 10.0.0.5:8300
  wanfed operator raft transfer-leader srv2 --dc dc1 --server 10.0.0.5:8300
  wanfed operator raft remove-peer srv3 --dc dc1 --server 10.0.0.5:8300`
	c := newGroup("operator", "Look after the servers of a datacenter", raft)
	c.Long = `Look after the servers of a datacenter. This takes an operator's certificate of that datacenter, made with:
wanfed tls cert create --cli --dc DC.`
	c.Example = raft.Example
	return c
}

func newListPeers() *cobra.Command {
	var o operatorCall
	var f format = formatTable
	var stale, detailed bool
	c := &cobra.Command{
		Use:   "list-peers",
		Short: "List the servers of the Raft group",
		Long: `List the servers of the Raft group, as the leader sees them.

Voter is false for a server that is new: it gets a vote when it has been alive and level for ten seconds. Member is what
gossip says. Contact is how long ago the leader heard of it, and Trailing how many entries of the leader's log it lacks;
with --detailed, Last Index is how far its log is the leader's, and ID what Raft calls it.

Where there is no leader, --stale shows what the server that is called knows.`,
		Example: `  wanfed operator raft list-peers --dc dc1 --server 10.0.0.5:8300
  wanfed operator raft list-peers --dc dc1 --server 10.0.0.5:8300 --stale --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.ask(cmd, "list-peers", "", func(ctx context.Context, c pb.OperatorServiceClient) error {
				list := c.ListPeers
				if stale {
					list = c.ListPeersHere
				}
				resp, err := list(ctx, &pb.ListPeersRequest{})
				if status.Code(err) == codes.Unavailable && !stale {
					return status.Errorf(codes.Unavailable, "%s; to see what this server knows, add --stale", status.Convert(err).Message())
				}
				if err != nil {
					return err
				}
				peers := raftPeers(resp)
				return printer{cmd.OutOrStdout(), f}.print(peers, func(w io.Writer) error { return writeTable(w, peerRows(peers, detailed)) })
			})
		},
	}
	o.addFlags(c, "the `datacenter`")
	c.Flags().BoolVar(&stale, "stale", false, "as the server that is called sees them, which need not be the leader")
	addDetailed(c, &detailed, "Last Index and ID too")
	addFormat(c, &f)
	return c
}

func addFormat(c *cobra.Command, f *format) {
	c.Flags().Var(f, "format", "table or json")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
}

// addDetailed is for a command whose table has more columns than fit a terminal; what says which.
func addDetailed(c *cobra.Command, detailed *bool, what string) {
	c.Flags().BoolVar(detailed, "detailed", false, what)
}

// raftPeer is a server of the Raft group as JSON.
type raftPeer struct {
	Node    string `json:"node"`
	ID      string `json:"id"`
	Address string `json:"address"`
	State   string `json:"state"` // leader or follower
	Voter   bool   `json:"voter"`
	Member  string `json:"member"`
	// LastContact in seconds; null if it is not known.
	LastContact *float64 `json:"last_contact"`
	LastIndex   uint64   `json:"last_index"`
	Trailing    uint64   `json:"trailing"`
}

func raftPeers(resp *pb.ListPeersResponse) []raftPeer {
	out := []raftPeer{}
	for _, p := range resp.Peers {
		r := raftPeer{
			Node: p.Node, ID: p.Id, Address: p.Address, State: "follower", Voter: p.Voter, Member: p.Member,
			LastIndex: p.LastIndex, Trailing: p.Trailing,
		}
		if p.Leader {
			r.State = "leader"
		}
		if p.LastContact != nil {
			s := p.LastContact.AsDuration().Seconds()
			r.LastContact = &s
		}
		out = append(out, r)
	}
	return out
}

func peerRows(peers []raftPeer, detailed bool) [][]string {
	rows := [][]string{{"Node", "Address", "State", "Voter", "Member", "Contact", "Trailing"}}
	if detailed {
		rows[0] = append(rows[0], "Last Index", "ID")
	}
	for _, p := range peers {
		last, trailing := "-", "-"
		if p.LastIndex > 0 {
			last, trailing = index(p.LastIndex), index(p.Trailing)
		}
		row := []string{p.Node, cmp.Or(p.Address, "-"), p.State, strconv.FormatBool(p.Voter), p.Member, age(p.LastContact), trailing}
		if detailed {
			row = append(row, last, cmp.Or(p.ID, "-"))
		}
		rows = append(rows, row)
	}
	return rows
}

// oneNode demands the name of a server; or, if it is optional, takes none too.
func oneNode(optional bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && optional:
			return nil
		case len(args) == 0:
			return usagef("say which server: %s; see: %s --help", cmd.UseLine(), cmd.CommandPath())
		case len(args) > 1:
			return usagef("unexpected argument %q: one server at a time; see: %s --help", args[1], cmd.CommandPath())
		}
		if err := tlsutil.CheckLabel(args[0]); err != nil {
			return usagef("node: %w", err)
		}
		return nil
	}
}

func newRemovePeer() *cobra.Command {
	var o operatorCall
	var force bool
	c := &cobra.Command{
		Use:   "remove-peer NODE",
		Short: "Take a server out of the Raft group",
		Long: `Take server NODE out of the Raft group, when it is gone for good and shall not count any more: at once, and not only after
dead_server_after. Stop it first; one that is alive is removed only with --force, and is added again as a new server when
it is still running after ten minutes, or when another server leads.

Refused are the leader (transfer leadership first), the only voter, and a removal after which there would be no quorum.`,
		Example:           `  wanfed operator raft remove-peer srv3 --dc dc1 --server 10.0.0.5:8300`,
		Args:              oneNode(false),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var resp *pb.RemovePeerResponse
			err := o.ask(cmd, "remove "+args[0], "it may be removed or not: see wanfed operator raft list-peers", func(ctx context.Context, c pb.OperatorServiceClient) (err error) {
				resp, err = c.RemovePeer(ctx, &pb.RemovePeerRequest{Node: args[0], Force: force})
				return err
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "removed %s from the Raft group of %s\n", args[0], o.dc)
			if resp.Running {
				fmt.Fprintf(cmd.OutOrStdout(), "%s is running: stop it within ten minutes, or it will be added again\n", args[0])
			}
			return nil
		},
	}
	o.addFlags(c, "the `datacenter`")
	c.Flags().BoolVar(&force, "force", false, "remove it although it is alive")
	return c
}

func newTransferLeader() *cobra.Command {
	var o operatorCall
	c := &cobra.Command{
		Use:   "transfer-leader [NODE]",
		Short: "Make another server the leader",
		Long: `Make server NODE the leader of the Raft group, or, without one, the voter whose log is furthest; before the machine of the
leader is to go down, say. Writes wait for some milliseconds meanwhile. It says who leads afterwards.`,
		Example: `  wanfed operator raft transfer-leader --dc dc1 --server 10.0.0.5:8300
  wanfed operator raft transfer-leader srv2 --dc dc1 --server 10.0.0.5:8300`,
		Args:              oneNode(true),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var resp *pb.TransferLeaderResponse
			err := o.ask(cmd, "transfer-leader", "see who leads: wanfed operator raft list-peers", func(ctx context.Context, c pb.OperatorServiceClient) (err error) {
				resp, err = c.TransferLeader(ctx, &pb.TransferLeaderRequest{Node: append(args, "")[0]})
				return err
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s leads %s\n", printable(resp.Leader), o.dc)
			return nil
		},
	}
	o.addFlags(c, "the `datacenter`")
	return c
}
