// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/rpc"
)

// successorTimeout bounds how long TransferLeader waits to learn who leads.
const successorTimeout = 10 * time.Second

// operatorService answers operators. Rules have it called on the leader, where that is meant.
type operatorService struct {
	pb.UnimplementedOperatorServiceServer
	dc, node string
	store    *raftstore.Store
	members  func() []gossip.Member // of the LAN pool
	holds    *holds
	saves    chan struct{} // has a place for each snapshot that is being saved
	logger   *slog.Logger
}

// ListPeers implements pb.OperatorServiceServer.
func (o *operatorService) ListPeers(ctx context.Context, req *pb.ListPeersRequest) (*pb.ListPeersResponse, error) {
	return o.ListPeersHere(ctx, req)
}

// ListPeersHere implements pb.OperatorServiceServer.
func (o *operatorService) ListPeersHere(context.Context, *pb.ListPeersRequest) (*pb.ListPeersResponse, error) {
	servers, err := o.store.Members()
	if err != nil {
		return nil, resource.StatusError(err)
	}
	members, last := o.members(), o.store.LastIndex()
	out := &pb.ListPeersResponse{}
	for _, s := range servers {
		p := &pb.RaftPeer{Node: s.Node, Leader: s.Leader, Voter: s.Voter, Member: "unknown", LastIndex: s.LastIndex}
		if m := find(members, s.Node); m != nil {
			p.Id, p.Address, p.Member = m.Tags[federation.TagNodeID], m.Addr, m.Status.String()
		}
		if s.LastContact >= 0 {
			p.LastContact = durationpb.New(s.LastContact)
		}
		if s.LastIndex > 0 && last > s.LastIndex {
			p.Trailing = last - s.LastIndex
		}
		out.Peers = append(out.Peers, p)
	}
	return out, nil
}

// RemovePeer implements pb.OperatorServiceServer.
func (o *operatorService) RemovePeer(ctx context.Context, req *pb.RemovePeerRequest) (*pb.RemovePeerResponse, error) {
	servers, err := o.store.Members()
	if err != nil {
		return nil, resource.StatusError(err)
	}
	members := o.members()
	m := find(members, req.Node)
	running := m != nil && m.Alive()
	if err := mayRemovePeer(o.dc, o.node, req, servers, members); err != nil {
		return nil, err
	}
	if running {
		o.holds.add(req.Node, time.Now().Add(holdFor)) // before, so that it is not added again at once
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := o.store.RemoveServer(ctx, req.Node); err != nil {
		o.holds.drop(req.Node)
		return nil, resource.StatusError(err)
	}
	o.logger.Info("server removed from the Raft group", "peer", req.Node, "why", "an operator asked for it", "by", caller(ctx))
	return &pb.RemovePeerResponse{Running: running}, nil
}

// mayRemovePeer says, as a status, why an operator's wish is not done. It is pure.
func mayRemovePeer(dc, self string, req *pb.RemovePeerRequest, servers []raftstore.Member, members []gossip.Member) error {
	refuse := func(format string, args ...any) error {
		return status.Errorf(codes.FailedPrecondition, format, args...)
	}
	i := slices.IndexFunc(servers, func(s raftstore.Member) bool { return s.Node == req.Node })
	if i < 0 {
		var names []string
		for _, s := range servers {
			names = append(names, s.Node)
		}
		return status.Errorf(codes.NotFound, "%q is not in the Raft group of %s; its servers are %s", req.Node, dc, strings.Join(names, ", "))
	}
	s := servers[i]
	rest, up := 0, 0
	for _, v := range servers {
		if !v.Voter || v.Node == s.Node {
			continue
		}
		rest++
		if m := find(members, v.Node); v.Node == self || m != nil && m.Alive() {
			up++
		}
	}
	m := find(members, s.Node)
	alive := m != nil && m.Alive() || s.LastContact >= 0 && s.LastContact < levelContact
	switch {
	case s.Voter && rest == 0:
		return refuse("%s is the only voter of %s: without it nobody could write, or lead", s.Node, dc)
	case s.Node == self:
		return refuse("%s leads %s: hand leadership over first, with: wanfed operator raft transfer-leader", s.Node, dc)
	case alive && !req.Force:
		return refuse("%s is alive; stop it first, or remove it all the same with --force", s.Node)
	case s.Voter && up < rest/2+1:
		return refuse("without %s only %d of the %d voters that remain would be up: no quorum; bring one of the others back first", s.Node, up, rest)
	}
	return nil
}

// TransferLeader implements pb.OperatorServiceServer.
func (o *operatorService) TransferLeader(ctx context.Context, req *pb.TransferLeaderRequest) (*pb.TransferLeaderResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	if req.Node == o.node { // done already
		return &pb.TransferLeaderResponse{Leader: o.node}, nil
	}
	var err error
	if req.Node == "" {
		err = o.store.TransferLeadership(ctx)
	} else {
		err = o.store.TransferLeadershipTo(ctx, req.Node)
	}
	if errors.Is(err, resource.ErrNotLeader) || errors.Is(err, context.DeadlineExceeded) {
		return nil, resource.StatusError(err)
	}
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	for {
		changed := o.store.LeaderChanged()
		if leader, ok := o.store.Leader(); ok && leader != o.node {
			o.logger.Info("leadership handed over", "leader", leader, "by", caller(ctx))
			return &pb.TransferLeaderResponse{Leader: leader}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.Error(codes.DeadlineExceeded, fmt.Sprintf("leadership was given up, and %s does not know yet who has it; see: wanfed operator raft list-peers", o.node))
		}
	}
}

// caller is the operator, for the log.
func caller(ctx context.Context) string {
	p, err := rpc.Peer(ctx)
	if err != nil {
		return "unknown"
	}
	return p.String()
}
