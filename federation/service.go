// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// ServiceConfig configures a Service. All fields except Primary, Writable,
// Claims, Clones and ReplacePrimary are required.
type ServiceConfig struct {
	Backend   resource.Backend
	DC        string // the local datacenter
	PrimaryDC string // the datacenter that owns federation states
	// Primary returns the datacenter that owns federation states now. Default:
	// PrimaryDC.
	Primary func() string
	// Writable returns nil if states can be written here, otherwise the reason.
	// Default: states can be written in PrimaryDC.
	Writable func() error
	// Decide returns an ErrDenied unless the caller of ctx may do a:
	// policy.Engine.Decide.
	Decide func(ctx context.Context, a resource.Access) error
	// Peer returns the identity in the caller's verified certificate.
	Peer func(ctx context.Context) (tlsutil.Peer, error)
	// Claims decides the claims of servers. Default: a new Claims.
	Claims *Claims
	// Clones finds clones of servers of the primary, in a secondary. Default: a
	// new Clones.
	Clones *Clones
	// Alive reports whether any server of a datacenter is alive in the WAN
	// pool.
	Alive func(dc string) bool
	// ReplacePrimary accepts a Raft group as the primary of the local datacenter,
	// and returns the id of the previous one. Nil: not supported.
	ReplacePrimary func(ctx context.Context, id string) (previous string, err error)
	// Connect returns a client of any server of another datacenter.
	Connect func(dc string) (pb.FederationServiceClient, error)
	Logger  *slog.Logger
}

// Service implements pb.FederationServiceServer. Only the leader of the primary
// accepts Apply.
type Service struct {
	pb.UnimplementedFederationServiceServer
	cfg     ServiceConfig
	refused *ratelog.Logger[string] // logs refused claims and clones, by peer
}

// NewService checks cfg.
func NewService(cfg ServiceConfig) (*Service, error) {
	if cfg.Backend == nil || cfg.DC == "" || cfg.PrimaryDC == "" || cfg.Peer == nil || cfg.Decide == nil || cfg.Alive == nil ||
		cfg.Connect == nil || cfg.Logger == nil {
		return nil, errors.New(
			"federation: every field of ServiceConfig except Primary, Writable, Claims, Clones and ReplacePrimary " +
				"is required")
	}
	if cfg.Claims == nil {
		cfg.Claims = &Claims{}
	}
	if cfg.Clones == nil {
		cfg.Clones = &Clones{}
	}
	return &Service{cfg: cfg, refused: ratelog.New[string](cfg.Logger)}, nil
}

// Apply implements pb.FederationServiceServer.
func (s *Service) Apply(
	ctx context.Context, req *pb.ApplyFederationStateRequest,
) (*pb.ApplyFederationStateResponse, error) {
	peer, err := s.cfg.Peer(ctx)
	if err != nil {
		return nil, err
	}
	dc := req.GetState().GetDatacenter()
	if err := s.writable(); err != nil {
		return nil, err
	}
	if err := tlsutil.CheckLabel(dc); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "state.datacenter: %v", err)
	}
	switch req.Op {
	case pb.ApplyFederationStateRequest_OP_UPSERT:
		if err := s.allow(ctx, peer, resource.VerbWrite, dc); err != nil {
			return nil, resource.StatusError(err)
		}
		return s.upsert(ctx, req.State)
	case pb.ApplyFederationStateRequest_OP_DELETE:
		if err := s.allow(ctx, peer, resource.VerbDelete, dc); err != nil {
			return nil, resource.StatusError(err)
		}
		return s.remove(ctx, dc, req.Force, peer)
	}
	return nil, status.Errorf(codes.InvalidArgument, "op is %v, not OP_UPSERT or OP_DELETE", req.Op)
}

// Claim implements pb.FederationServiceServer.
func (s *Service) Claim(ctx context.Context, req *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	peer, err := s.cfg.Peer(ctx)
	if err != nil {
		return nil, err
	}
	if peer.Role != tlsutil.RoleServer || peer.DC != req.Datacenter || peer.Node != req.Node {
		return nil, status.Errorf(codes.PermissionDenied,
			"%v may not claim the name %s: its certificate has another name",
			peer, WANName(req.Node, req.Datacenter))
	}
	ofPrimary := peer.DC == s.primary() && peer.DC != s.cfg.DC
	if !ofPrimary {
		if err := s.writable(); err != nil {
			return nil, err
		}
	}
	if err := checkClaim(req); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if ofPrimary {
		resp := s.cfg.Clones.Claim(req, time.Now())
		if len(resp.Rivals) > 0 {
			name := WANName(req.Node, req.Datacenter)
			s.refused.Log(name, slog.LevelError, "a server of the primary runs twice",
				"peer", peer.String(), "reason", DescribeClones(name, s.cfg.Clones.List(time.Now())[name]))
		}
		return resp, nil
	}
	have, _, err := ReadState(ctx, s.cfg.Backend, req.Datacenter)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	resp := s.cfg.Claims.Claim(req, have.GetGroupId(), time.Now())
	if resp.Reason != "" {
		s.refused.Log(peer.String(), slog.LevelWarn, "claim refused",
			"peer", peer.String(), "addr", req.ServerAddress, "reason", resp.Reason)
	}
	return resp, nil
}

// Limits of a claim.
const (
	maxClaimText     = 128 // bytes of each text
	maxClaimGateways = 16
)

// checkClaim returns the first fault of a claim, or nil.
func checkClaim(req *pb.ClaimRequest) error {
	for _, f := range []struct{ name, text string }{
		{"group_id", req.GroupId}, {"instance", req.Instance}, {"previous_instance", req.PreviousInstance},
		{"server_address", req.ServerAddress}, {"nonce", req.Nonce},
	} {
		if len(f.text) > maxClaimText {
			return fmt.Errorf("%s has %d bytes: more than %d", f.name, len(f.text), maxClaimText)
		}
	}
	if req.GroupId == "" || req.Instance == "" {
		return errors.New("group_id or instance is empty")
	}
	if len(req.Gateways) > maxClaimGateways {
		return fmt.Errorf("%d gateways: more than %d", len(req.Gateways), maxClaimGateways)
	}
	for _, addr := range req.Gateways {
		if err := netaddr.CheckHostPort(addr); err != nil {
			return fmt.Errorf("gateways: %w", err)
		}
	}
	return nil
}

// Replace implements pb.FederationServiceServer.
func (s *Service) Replace(ctx context.Context, req *pb.ReplaceGroupRequest) (*pb.ReplaceGroupResponse, error) {
	peer, err := s.cfg.Peer(ctx)
	if err != nil {
		return nil, err
	}
	if peer.Role != tlsutil.RoleOperator {
		return nil, status.Errorf(codes.PermissionDenied, "%v may not replace a datacenter: only operators may", peer)
	}
	if req.GroupId == "" || len(req.GroupId) > maxClaimText {
		return nil, status.Error(codes.InvalidArgument,
			"group_id is empty or too long: use the id in the status of the new datacenter")
	}
	if req.Datacenter == s.primary() && req.Datacenter != s.cfg.DC && s.cfg.ReplacePrimary != nil {
		return s.replacePrimary(ctx, req.GroupId, peer)
	}
	if err := s.writable(); err != nil {
		return nil, err
	}
	have, _, err := ReadState(ctx, s.cfg.Backend, req.Datacenter)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	if have == nil {
		return nil, status.Errorf(codes.NotFound, "%s has no federation state, so any group may take the name",
			req.Datacenter)
	}
	if have.GroupId == req.GroupId {
		return &pb.ReplaceGroupResponse{PreviousGroupId: have.GroupId}, nil
	}
	// The new state has no gateways until the new datacenter writes them.
	next := &pb.FederationState{Datacenter: req.Datacenter, GroupId: req.GroupId}
	if _, _, err := Upsert(ctx, s.cfg.Backend, next); err != nil {
		return nil, resource.StatusError(err)
	}
	s.cfg.Claims.Remove(req.Datacenter)
	s.cfg.Logger.Warn("datacenter replaced",
		"state_dc", req.Datacenter, "peer", peer.String(), "group", req.GroupId, "previous_group", have.GroupId)
	return &pb.ReplaceGroupResponse{PreviousGroupId: have.GroupId}, nil
}

// primary returns the datacenter that owns federation states now.
func (s *Service) primary() string {
	if s.cfg.Primary != nil {
		return s.cfg.Primary()
	}
	return s.cfg.PrimaryDC
}

// replacePrimary accepts a group as the primary of this datacenter, a secondary.
func (s *Service) replacePrimary(ctx context.Context, id string, peer tlsutil.Peer) (*pb.ReplaceGroupResponse, error) {
	if peer.DC != s.cfg.DC {
		return nil, status.Errorf(codes.PermissionDenied,
			"%v may not replace the primary of %s: only operators of %[2]s may", peer, s.cfg.DC)
	}
	previous, err := s.cfg.ReplacePrimary(ctx, id)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	s.cfg.Logger.Warn("primary replaced", "peer", peer.String(), "group", id, "previous_group", previous)
	return &pb.ReplaceGroupResponse{PreviousGroupId: previous}, nil
}

// writable returns nil if states can be written here. Otherwise it returns the
// reason as a gRPC status.
func (s *Service) writable() error {
	switch {
	case s.cfg.Writable == nil && s.cfg.DC == s.cfg.PrimaryDC:
		return nil
	case s.cfg.Writable != nil:
		switch err := s.cfg.Writable(); {
		case err == nil:
			return nil
		case errors.Is(err, resource.ErrNoPrimary):
			return resource.StatusError(err)
		case s.cfg.DC == s.cfg.PrimaryDC:
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	return status.Errorf(codes.FailedPrecondition, "%s is not the primary: federation states are written in %s; "+
		"call a server there, directly or through a gateway", s.cfg.DC, s.cfg.PrimaryDC)
}

// allow returns an ErrDenied unless peer, the caller of ctx, may use verb on the
// state of dc. A server writes the state of its own datacenter. A server of this
// datacenter, which owns the states, deletes any. For all others, the policy
// decides.
func (s *Service) allow(ctx context.Context, peer tlsutil.Peer, verb resource.Verb, dc string) error {
	switch {
	case peer.Role != tlsutil.RoleServer:
		return s.cfg.Decide(ctx, resource.Access{Verb: verb, Type: StateType, Name: dc, Federated: true})
	case verb == resource.VerbDelete && peer.DC == s.cfg.DC:
		return nil
	case verb == resource.VerbDelete:
		return fmt.Errorf("%w: %v may not delete federation states: create an operator's certificate with: "+
			"wanfed tls cert create --operator --datacenter %s", resource.ErrDenied, peer, s.cfg.DC)
	}
	if err := authorize(peer, verb, &pb.Resource{Id: resource.ID(StateType, dc)}); err != nil {
		return fmt.Errorf("%w: %w", resource.ErrDenied, err)
	}
	return nil
}

// upsert writes a state unless the store has an equal one. It refuses a state
// of another Raft group than the accepted one.
func (s *Service) upsert(ctx context.Context, want *pb.FederationState) (*pb.ApplyFederationStateResponse, error) {
	if err := ValidateState(want); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	have, _, err := ReadState(ctx, s.cfg.Backend, want.Datacenter)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	if id := have.GetGroupId(); id != "" && want.GroupId != "" && want.GroupId != id {
		return nil, status.Errorf(codes.AlreadyExists, "another datacenter is called %s too: the accepted one has the "+
			"group id %s, and this one has %s", want.Datacenter, id, want.GroupId)
	}
	stored, changed, err := Upsert(ctx, s.cfg.Backend, want)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	if changed {
		s.cfg.Logger.Info("federation state written", "state_dc", want.Datacenter, "count", len(want.MeshGateways))
	}
	return &pb.ApplyFederationStateResponse{Changed: changed, State: stored}, nil
}

// Upsert writes a state to the primary's store unless the store has an equal
// state. Unlike Apply, it does not check the access of a peer.
func Upsert(
	ctx context.Context, b resource.Backend, want *pb.FederationState,
) (stored *pb.FederationState, changed bool, err error) {
	for {
		have, r, err := ReadState(ctx, b, want.Datacenter)
		if err != nil {
			return nil, false, err
		}
		if have.GetGroupId() != "" && want.GroupId == "" { // a server of an older version sends no group id
			want = proto.Clone(want).(*pb.FederationState)
			want.GroupId = have.GroupId
		}
		if have != nil && SameContent(have, want) {
			return have, false, nil
		}
		data := proto.Clone(want).(*pb.FederationState)
		data.PrimaryModifyIndex, data.CreateIndex, data.ModifyIndex = 0, 0, 0
		if data.UpdatedAt == nil {
			data.UpdatedAt = timestamppb.New(time.Now())
		}
		expect := r.GetVersion() // "" if the resource does not exist
		if r == nil {
			r, err = resource.New(StateType, want.Datacenter, data)
		} else {
			r, err = resource.WithData(r, data)
		}
		if err != nil {
			return nil, false, err
		}
		out, err := b.Commit(ctx, resource.PutOp(r, expect))
		if errors.Is(err, resource.ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("write federation state of %s: %w", want.Datacenter, err)
		}
		stored, err = FromResource(out[0])
		return stored, true, err
	}
}

// remove deletes the state of dc. Without force it refuses a datacenter with
// alive servers, which would write the state again.
func (s *Service) remove(
	ctx context.Context, dc string, force bool, by tlsutil.Peer,
) (*pb.ApplyFederationStateResponse, error) {
	if !force && s.cfg.Alive(dc) {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is alive in the WAN pool and would write its "+
			"federation state again; stop its servers first, or delete the state anyway with --force", dc)
	}
	have, _, err := ReadState(ctx, s.cfg.Backend, dc)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	if have == nil {
		return &pb.ApplyFederationStateResponse{}, nil
	}
	_, err = s.cfg.Backend.Commit(ctx, resource.RemoveOp(resource.ID(StateType, dc), resource.AnyVersion))
	if err != nil {
		return nil, resource.StatusError(err)
	}
	s.cfg.Logger.Info("federation state deleted", "state_dc", dc, "peer", by.String(), "force", force)
	return &pb.ApplyFederationStateResponse{Changed: true, State: have}, nil
}

// Get implements pb.FederationServiceServer.
func (s *Service) Get(
	ctx context.Context, req *pb.GetFederationStateRequest,
) (*pb.GetFederationStateResponse, error) {
	if remote, err := s.remote(req.Query); err != nil {
		return nil, err
	} else if remote != nil {
		return remote.Get(ctx, req)
	}
	states, index, err := s.read(ctx, req.Query)
	out := &pb.GetFederationStateResponse{Index: index}
	for _, st := range states {
		if st.Datacenter == req.Datacenter {
			out.State = st
		}
	}
	return out, err
}

// List implements pb.FederationServiceServer.
func (s *Service) List(
	ctx context.Context, req *pb.ListFederationStatesRequest,
) (*pb.ListFederationStatesResponse, error) {
	if remote, err := s.remote(req.Query); err != nil {
		return nil, err
	} else if remote != nil {
		return remote.List(ctx, req)
	}
	states, index, err := s.read(ctx, req.Query)
	return &pb.ListFederationStatesResponse{States: states, Index: index}, err
}

// ListMeshGateways implements pb.FederationServiceServer.
func (s *Service) ListMeshGateways(
	ctx context.Context, req *pb.ListMeshGatewaysRequest,
) (*pb.ListMeshGatewaysResponse, error) {
	if remote, err := s.remote(req.Query); err != nil {
		return nil, err
	} else if remote != nil {
		return remote.ListMeshGateways(ctx, req)
	}
	states, index, err := s.read(ctx, req.Query)
	out := &pb.ListMeshGatewaysResponse{Index: index, Datacenters: map[string]*pb.ListMeshGatewaysResponse_Gateways{}}
	for _, st := range states {
		if len(st.MeshGateways) > 0 {
			out.Datacenters[st.Datacenter] = &pb.ListMeshGatewaysResponse_Gateways{MeshGateways: st.MeshGateways}
		}
	}
	return out, err
}

// remote returns a client of the datacenter that the query names, or nil if
// that is the local datacenter.
func (s *Service) remote(q *pb.QueryOptions) (pb.FederationServiceClient, error) {
	dc := q.GetTargetDatacenter()
	if dc == "" || dc == s.cfg.DC {
		return nil, nil
	}
	c, err := s.cfg.Connect(dc)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return c, nil
}

// maxWait limits the wait of a blocking query.
const maxWait = 10 * time.Minute

// read returns all states. A blocking query first waits until the index of the
// states exceeds the index of the query, or until the wait of the query ends.
func (s *Service) read(ctx context.Context, q *pb.QueryOptions) ([]*pb.FederationState, uint64, error) {
	if q.GetMinIndex() > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, min(q.GetWait().AsDuration(), maxWait))
		err := s.cfg.Backend.Wait(waitCtx, resource.Query{Type: StateType}, q.MinIndex)
		cancel()
		if err != nil && waitCtx.Err() == nil {
			return nil, 0, resource.StatusError(err)
		}
		if ctx.Err() != nil {
			return nil, 0, status.FromContextError(ctx.Err()).Err()
		}
	}
	states, index, err := ListStates(ctx, s.cfg.Backend)
	if err != nil {
		return nil, 0, resource.StatusError(err)
	}
	return states, index, nil
}
