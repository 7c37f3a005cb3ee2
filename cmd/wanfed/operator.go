// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func newOperator() *cobra.Command {
	raft := newGroup("raft", "Read or change the Raft group of a datacenter",
		newListPeers(), newRemovePeer(), newTransferLeader())
	raft.Long = `Read or change the Raft group of a datacenter: the servers that store its
resources. The leader writes; a majority of the voters must store each write.

The group maintains itself. New servers join it, first without a vote. A server
that failed is removed after dead_server_after (10 minutes), if the remaining
voters have a quorum. A server that stopped cleanly stays in the group.`
	raft.Example = `  wanfed operator raft list-peers
  wanfed operator raft transfer-leader srv2
  wanfed operator raft remove-peer srv3 --datacenter dc1 --server 10.0.0.5:8300`
	c := newGroup("operator", "Maintain the servers of a datacenter", raft)
	c.Long = `Maintain the servers of a datacenter. This needs the certificate of an operator
of that datacenter: wanfed tls cert create --operator --datacenter DC.`
	c.Example = raft.Example
	return c
}

func newListPeers() *cobra.Command {
	var o operator
	var stale bool
	c := &cobra.Command{
		Use:   "list-peers",
		Short: "List the servers of the Raft group",
		Long: `List the servers of the Raft group, as the leader knows them.

Voter is false for a new server: it gets a vote when it has been alive and up to
date for ten seconds. Member is its status in the gossip pool. Contact is the
time since the leader received a message from it. Trailing is the number of log
entries that it lacks. With --output wide, Last Index is its last log entry and
ID its Raft server id.

If there is no leader, --stale shows what the called server knows.`,
		Example: `  wanfed operator raft list-peers
  wanfed operator raft list-peers --datacenter dc1 --server 10.0.0.5:8300 --stale`,
		Args: noArgs,
	}
	o.addFlags(c)
	format := addOutput(c)
	c.Flags().BoolVar(&stale, "stale", false, "what the called server knows, without the leader")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.call(cmd, "list-peers", "", func(ctx context.Context, cc *grpc.ClientConn) error {
			c := pb.NewOperatorServiceClient(cc)
			list := c.ListPeers
			if stale {
				list = c.ListPeersHere
			}
			resp, err := list(ctx, &pb.ListPeersRequest{})
			if status.Code(err) == codes.Unavailable && !stale {
				return status.Errorf(codes.Unavailable, "%s; to see what this server knows, add --stale",
					status.Convert(err).Message())
			}
			if err != nil {
				return err
			}
			peers := raftPeers(resp)
			out := printer{cmd.OutOrStdout(), *format}
			return out.print(peers, func() error { return out.table(peerRows(peers, out.wide())) })
		})
	}
	return c
}

// raftPeer is a server of the Raft group as JSON.
type raftPeer struct {
	Node    string `json:"node"`
	ID      string `json:"id"`
	Address string `json:"address"`
	State   string `json:"state"` // leader or follower
	Voter   bool   `json:"voter"`
	Member  string `json:"member"`
	// LastContact is in seconds; null if unknown.
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
			r.LastContact = new(p.LastContact.AsDuration().Seconds())
		}
		out = append(out, r)
	}
	return out
}

func peerRows(peers []raftPeer, wide bool) [][]string {
	rows := [][]string{{"Node", "Address", "State", "Voter", "Member", "Contact", "Trailing"}}
	if wide {
		rows[0] = append(rows[0], "Last Index", "ID")
	}
	for _, p := range peers {
		last, trailing := "-", "-"
		if p.LastIndex > 0 {
			last, trailing = index(p.LastIndex), index(p.Trailing)
		}
		row := []string{
			p.Node, cmp.Or(p.Address, "-"), p.State, strconv.FormatBool(p.Voter), p.Member, age(p.LastContact),
			trailing,
		}
		if wide {
			row = append(row, last, cmp.Or(p.ID, "-"))
		}
		rows = append(rows, row)
	}
	return rows
}

// nodeArg requires one argument, the name of a server. If optional is true, the
// argument may be absent.
func nodeArg(optional bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if optional && len(args) == 0 {
			return nil
		}
		if err := exactArgs("NODE")(cmd, args); err != nil {
			return err
		}
		if err := tlsutil.CheckLabel(args[0]); err != nil {
			return usagef("node: %w", err)
		}
		return nil
	}
}

func newRemovePeer() *cobra.Command {
	var o operator
	var force bool
	c := &cobra.Command{
		Use:   "remove-peer NODE",
		Short: "Remove a server from the Raft group",
		Long: `Remove server NODE from the Raft group at once, before dead_server_after. Stop it
first. A server that is alive is removed only with --force. If it still runs
after ten minutes, or when the leader changes, it is added again as a new server.

The removal is refused for the leader (transfer the leadership first), for the
only voter, and if the remaining voters would have no quorum.`,
		Example:           `  wanfed operator raft remove-peer srv3`,
		Args:              nodeArg(false),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var resp *pb.RemovePeerResponse
			err := o.call(cmd, "remove "+args[0], "the outcome is unknown: see wanfed operator raft list-peers",
				func(ctx context.Context, cc *grpc.ClientConn) (err error) {
					resp, err = pb.NewOperatorServiceClient(cc).RemovePeer(ctx,
						&pb.RemovePeerRequest{Node: args[0], Force: force})
					return err
				})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "removed %s from the Raft group of %s\n", args[0], o.dc)
			if resp.Running {
				fmt.Fprintf(cmd.OutOrStdout(),
					"%s is running: stop it within ten minutes, or it will be added again\n", args[0])
			}
			return nil
		},
	}
	o.addFlags(c)
	c.Flags().BoolVar(&force, "force", false, "remove it although it is alive")
	return c
}

func newTransferLeader() *cobra.Command {
	var o operator
	c := &cobra.Command{
		Use:   "transfer-leader [NODE]",
		Short: "Transfer the leadership of the Raft group",
		Long: `Make server NODE the leader of the Raft group, for example before maintenance of
the current leader. Without NODE it is the voter with the longest log. Writes
wait for some milliseconds. The command prints the new leader.`,
		Example: `  wanfed operator raft transfer-leader
  wanfed operator raft transfer-leader srv2`,
		Args:              nodeArg(true),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			var resp *pb.TransferLeaderResponse
			err := o.call(cmd, "transfer-leader", "the outcome is unknown: see wanfed operator raft list-peers",
				func(ctx context.Context, cc *grpc.ClientConn) (err error) {
					req := &pb.TransferLeaderRequest{Node: append(args, "")[0]}
					resp, err = pb.NewOperatorServiceClient(cc).TransferLeader(ctx, req)
					return err
				})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s leads %s\n", printable(resp.Leader), o.dc)
			return nil
		},
	}
	o.addFlags(c)
	return c
}
