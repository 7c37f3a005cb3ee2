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
	"github.com/wanfed/wanfed/internal/output"
)

func newOperator() *cobra.Command {
	raft := newGroup("raft", "Read or change the Raft group of a datacenter",
		newListPeers(), newRemovePeer(), newTransferLeader())
	raft.Long = `Read or change the Raft group of a datacenter: the servers that store its
resources. The leader writes, and a majority of the voters must store each write.

A new server joins the group, first without a vote. A failed server is removed
after dead_server_after (10 minutes), if the remaining voters have a quorum. A
server that stopped cleanly stays in the group.`
	raft.Example = `  wanfed operator raft list-peers
  wanfed operator raft transfer-leader srv2
  wanfed operator raft remove-peer srv3 --datacenter dc1 --server 10.0.0.5:8300`
	c := newGroup("operator", "Maintain the servers of a datacenter", raft, newOperatorPrimary())
	c.Long = `Maintain the servers of a datacenter. The commands need the certificate of an
operator of that datacenter: wanfed tls cert create --operator --datacenter DC.`
	c.Example = raft.Example
	return c
}

func newListPeers() *cobra.Command {
	var stale bool
	c := addOperatorRead(&cobra.Command{
		Use:   "list-peers",
		Short: "List the servers of the Raft group",
		Long: `List the servers of the Raft group, as the leader knows them.

Voter is false for a new server. The server gets a vote when it has been alive
and up to date for ten seconds. Member is the status in the gossip pool. Contact
is the time since the leader received a message from the server. Trailing is the
number of log entries that the server lacks. With --output wide, Last Index is
the last log entry of the server, and ID its Raft server id.

Without a leader, use --stale to list the servers that the called server knows.`,
		Example: `  wanfed operator raft list-peers
  wanfed operator raft list-peers --datacenter dc1 --server 10.0.0.5:8300 --stale`,
	}, new(operator), "list-peers", func(ctx context.Context, cc *grpc.ClientConn) (*pb.ListPeersResponse, error) {
		service := pb.NewOperatorServiceClient(cc)
		if stale {
			return service.ListPeersHere(ctx, &pb.ListPeersRequest{})
		}
		resp, err := service.ListPeers(ctx, &pb.ListPeersRequest{})
		if status.Code(err) == codes.Unavailable {
			err = status.Errorf(codes.Unavailable, "%s; to see what this server knows, add --stale",
				status.Convert(err).Message())
		}
		return resp, err
	}, func(out output.Printer, resp *pb.ListPeersResponse) error {
		peers := raftPeers(resp)
		return out.Print(peers, func() error { return out.Table(peerRows(peers, out.IsWide())) })
	})
	c.Flags().BoolVar(&stale, "stale", false, "list the servers that the called server knows, without the leader")
	return c
}

// raftPeer is the JSON of a server of the Raft group.
type raftPeer struct {
	Node        string   `json:"node"`
	ID          string   `json:"id"`
	Address     string   `json:"address"`
	State       string   `json:"state"` // leader or follower
	Voter       bool     `json:"voter"`
	Member      string   `json:"member"`
	LastContact *float64 `json:"last_contact"` // seconds; null if unknown
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
			p.Node, cmp.Or(p.Address, "-"), p.State, strconv.FormatBool(p.Voter), p.Member, output.Age(p.LastContact),
			trailing,
		}
		if wide {
			row = append(row, last, cmp.Or(p.ID, "-"))
		}
		rows = append(rows, row)
	}
	return rows
}

func newRemovePeer() *cobra.Command {
	var o operator
	var force bool
	c := &cobra.Command{
		Use:   "remove-peer NODE",
		Short: "Remove a server from the Raft group",
		Long: `Remove server NODE from the Raft group at once, before dead_server_after. Stop it
first. A server that is alive is removed only with --force. A removed server
that still runs is added again as a new server after ten minutes, or when the
leader changes.

The removal is refused for the leader (transfer the leadership first), for the
only voter, and if the remaining voters would have no quorum.`,
		Example:           `  wanfed operator raft remove-peer srv3`,
		Args:              labelArg("NODE", "node"),
		ValidArgsFunction: completeArgs(completeServers),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := callServer(cmd, &o, "remove "+args[0], "wanfed operator raft list-peers",
				func(ctx context.Context, cc *grpc.ClientConn) (*pb.RemovePeerResponse, error) {
					req := &pb.RemovePeerRequest{Node: args[0], Force: force}
					return pb.NewOperatorServiceClient(cc).RemovePeer(ctx, req)
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
	c.Flags().BoolVar(&force, "force", false, "remove the server although it is alive")
	return c
}

func newTransferLeader() *cobra.Command {
	var o operator
	c := &cobra.Command{
		Use:   "transfer-leader [NODE]",
		Short: "Transfer the leadership of the Raft group",
		Long: `Make server NODE the leader of the Raft group, for example before maintenance of
the current leader. The default is the voter with the longest log. Writes wait
for some milliseconds. The command prints the new leader.`,
		Example: `  wanfed operator raft transfer-leader
  wanfed operator raft transfer-leader srv2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return labelArg("NODE", "node")(cmd, args)
		},
		ValidArgsFunction: completeArgs(completeServers),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := callServer(cmd, &o, "transfer-leader", "wanfed operator raft list-peers",
				func(ctx context.Context, cc *grpc.ClientConn) (*pb.TransferLeaderResponse, error) {
					req := &pb.TransferLeaderRequest{Node: append(args, "")[0]}
					return pb.NewOperatorServiceClient(cc).TransferLeader(ctx, req)
				})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s leads %s\n", output.Printable(resp.Leader), o.dc)
			return nil
		},
	}
	o.addFlags(c)
	return c
}
