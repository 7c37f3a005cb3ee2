// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/logtail"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
)

// successorTimeout bounds the time that TransferLeader waits until the new
// leader is known.
const successorTimeout = 10 * time.Second

// TagExpect is the name of the LAN pool tag that contains the Config.Expect of
// a member.
const TagExpect = "expect"

// TagJoining is the name of the LAN pool tag of a member whose store is not
// admitted: see raftstore.Store.Admitted.
const TagJoining = "joining"

// Config configures a Service. All fields are required unless documented
// otherwise.
type Config struct {
	// DC and Node name this server.
	DC, Node string
	Store    *raftstore.Store
	LAN      *gossip.Pool
	// Expect is the number of servers that the datacenter was set up for
	// (bootstrap_expect).
	Expect int
	// DeadAfter returns the time that a server must be down before it is
	// removed from the group.
	DeadAfter func() time.Duration
	// TakeOver makes the datacenter the primary. The leader calls it.
	TakeOver func(ctx context.Context, req *pb.TakeOverRequest) (*pb.TakeOverResponse, error)
	// Connect returns the connection to another server of the datacenter.
	Connect func(node string) (grpc.ClientConnInterface, error)
	// CheckpointInterval is the time between two comparisons of the servers'
	// states. 0: five minutes.
	CheckpointInterval time.Duration
	// Describe describes the server. The service adds its Raft group.
	Describe func() *pb.DescribeServerResponse
	// LogTail has the log of the process. nil: WatchLog is refused.
	LogTail *logtail.Tail
	Logger  *slog.Logger
}

// Service serves the OperatorService and keeps the Raft group up to date.
type Service struct {
	pb.UnimplementedOperatorServiceServer
	Config
	saves chan struct{} // has a token for each save of a snapshot in progress

	mu         sync.Mutex
	comparison Comparison
	holds      map[string]time.Time // removed servers that run, with the ends of their holds
}

// New returns a Service.
func New(cfg Config) *Service {
	return &Service{Config: cfg, holds: map[string]time.Time{}, saves: make(chan struct{}, maxSaves)}
}

// ListPeers implements pb.OperatorServiceServer. The leader responds.
func (s *Service) ListPeers(ctx context.Context, req *pb.ListPeersRequest) (*pb.ListPeersResponse, error) {
	return s.ListPeersHere(ctx, req)
}

// ListPeersHere implements pb.OperatorServiceServer. Any server responds.
func (s *Service) ListPeersHere(context.Context, *pb.ListPeersRequest) (*pb.ListPeersResponse, error) {
	servers, err := s.Store.Members()
	if err != nil {
		return nil, resource.StatusError(err)
	}
	members, last := s.LAN.Members(), s.Store.LastIndex()
	out := &pb.ListPeersResponse{}
	for _, v := range servers {
		p := &pb.RaftPeer{Node: v.Node, Leader: v.Leader, Voter: v.Voter, Member: "unknown", LastIndex: v.LastIndex}
		if m := find(members, v.Node); m != nil {
			p.Id, p.Address, p.Member = m.Tags[federation.TagNodeID], m.Addr, m.Status.String()
		}
		if v.LastContact >= 0 {
			p.LastContact = durationpb.New(v.LastContact)
		}
		if v.LastIndex > 0 && last > v.LastIndex {
			p.Trailing = last - v.LastIndex
		}
		out.Peers = append(out.Peers, p)
	}
	return out, nil
}

// RemovePeer implements pb.OperatorServiceServer.
func (s *Service) RemovePeer(ctx context.Context, req *pb.RemovePeerRequest) (*pb.RemovePeerResponse, error) {
	servers, err := s.Store.Members()
	if err != nil {
		return nil, resource.StatusError(err)
	}
	members := s.LAN.Members()
	running := alive(members, req.Node)
	if err := checkRemoval(s.DC, s.Node, req, servers, members); err != nil {
		return nil, err
	}
	if running { // before the removal, because RunMembership would add the server again at once
		s.setHold(req.Node, time.Now().Add(holdTime))
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := s.Store.RemoveServer(ctx, req.Node); err != nil {
		s.setHold(req.Node, time.Time{})
		return nil, resource.StatusError(err)
	}
	s.Logger.Info("server removed from the Raft group", "peer", req.Node,
		"reason", "request of an operator", "operator", operatorName(ctx))
	return &pb.RemovePeerResponse{Running: running}, nil
}

// checkRemoval returns the reason why an operator may not remove a server, as a
// gRPC status.
func checkRemoval(
	dc, leader string, req *pb.RemovePeerRequest, servers []raftstore.Member, members []gossip.Member,
) error {
	refuse := func(format string, args ...any) error {
		return status.Errorf(codes.FailedPrecondition, format, args...)
	}
	i := slices.IndexFunc(servers, func(v raftstore.Member) bool { return v.Node == req.Node })
	if i < 0 {
		var names []string
		for _, v := range servers {
			names = append(names, v.Node)
		}
		return status.Errorf(codes.NotFound, "%q is not in the Raft group of %s; its servers are %s",
			req.Node, dc, strings.Join(names, ", "))
	}
	s := servers[i]
	rest, up := otherVoters(s.Node, leader, servers, members)
	running := alive(members, s.Node) || s.LastContact >= 0 && s.LastContact < recentContact
	switch {
	case s.Voter && rest == 0:
		return refuse("%s is the only voter of %s: without a voter there is no leader, and writes fail", s.Node, dc)
	case s.Node == leader:
		return refuse("%s leads %s: transfer leadership first, with: wanfed operator raft transfer-leader", s.Node, dc)
	case running && !req.Force:
		return refuse("%s is alive; stop it first, or remove it all the same with --force", s.Node)
	case s.Voter && up < rest/2+1:
		return refuse("without %s only %d of the %d voters that remain would be up: no quorum; "+
			"bring one of the others back first", s.Node, up, rest)
	}
	return nil
}

// TransferLeader implements pb.OperatorServiceServer.
func (s *Service) TransferLeader(ctx context.Context,
	req *pb.TransferLeaderRequest) (*pb.TransferLeaderResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	if req.Node == s.Node { // only the leader serves the call
		return &pb.TransferLeaderResponse{Leader: s.Node}, nil
	}
	var err error
	if req.Node == "" {
		err = s.Store.TransferLeadership(ctx)
	} else {
		err = s.Store.TransferLeadershipTo(ctx, req.Node)
	}
	if errors.Is(err, resource.ErrNotLeader) || errors.Is(err, context.DeadlineExceeded) {
		return nil, resource.StatusError(err)
	}
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	for {
		changed := s.Store.LeaderChanged()
		if leader, ok := s.Store.Leader(); ok && leader != s.Node {
			s.Logger.Info("leadership transferred", "leader", leader, "operator", operatorName(ctx))
			return &pb.TransferLeaderResponse{Leader: leader}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.Errorf(codes.DeadlineExceeded, "%s is no longer the leader, "+
				"and the new leader is not known yet; see: wanfed operator raft list-peers", s.Node)
		}
	}
}

// TakeOver implements pb.OperatorServiceServer.
func (s *Service) TakeOver(ctx context.Context, req *pb.TakeOverRequest) (*pb.TakeOverResponse, error) {
	if err := tlsutil.CheckLabel(req.From); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "from: %v", err)
	}
	if !req.Check {
		s.Logger.Warn("take-over requested", "former", req.From, "operator", operatorName(ctx))
	}
	return s.Config.TakeOver(ctx, req)
}

// operatorName returns the name of the operator that makes a call, for the log.
func operatorName(ctx context.Context) string {
	p, err := rpc.Peer(ctx)
	if err != nil {
		return "unknown"
	}
	return p.String()
}
