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
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// ServiceConfig configures a Service.
type ServiceConfig struct {
	Backend resource.Backend
	// DC is this datacenter, PrimaryDC the one that owns federation states.
	DC, PrimaryDC string
	// Writable says why states cannot be written here now. Nil: they can in PrimaryDC.
	Writable func() error
	// Peer tells who calls, from the verified certificate.
	Peer func(ctx context.Context) (tlsutil.Peer, error)
	// Alive says whether any server of a datacenter is alive in the WAN pool.
	Alive func(dc string) bool
	// Ask returns a client of any server of another datacenter.
	Ask    func(dc string) (pb.FederationServiceClient, error)
	Logger *slog.Logger
}

// Service answers for federation states. Writes happen on the primary's leader; the server forwards them there before it
// calls Apply.
type Service struct {
	pb.UnimplementedFederationServiceServer
	cfg ServiceConfig
}

// NewService checks cfg.
func NewService(cfg ServiceConfig) (*Service, error) {
	if cfg.Backend == nil || cfg.DC == "" || cfg.PrimaryDC == "" || cfg.Peer == nil || cfg.Alive == nil || cfg.Ask == nil || cfg.Logger == nil {
		return nil, errors.New("federation: every field of ServiceConfig is required")
	}
	return &Service{cfg: cfg}, nil
}

// Apply implements pb.FederationServiceServer.
func (s *Service) Apply(ctx context.Context, req *pb.ApplyFederationStateRequest) (*pb.ApplyFederationStateResponse, error) {
	peer, err := s.cfg.Peer(ctx)
	if err != nil {
		return nil, err
	}
	dc := req.GetState().GetDatacenter()
	if err := s.writable(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := tlsutil.CheckLabel(dc); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "state.datacenter: %v", err)
	}
	switch req.Op {
	case pb.ApplyFederationStateRequest_OP_UPSERT:
		if err := CheckWriteAccess(peer, dc); err != nil {
			return nil, status.Error(codes.PermissionDenied, err.Error())
		}
		return s.upsert(ctx, req.State)
	case pb.ApplyFederationStateRequest_OP_DELETE:
		if err := mayDelete(peer, s.cfg.DC); err != nil {
			return nil, status.Error(codes.PermissionDenied, err.Error())
		}
		return s.remove(ctx, dc, req.Force, peer)
	}
	return nil, status.Errorf(codes.InvalidArgument, "op is %v: not an upsert, not a delete", req.Op)
}

// writable says why states cannot be written here.
func (s *Service) writable() error {
	switch {
	case s.cfg.Writable == nil && s.cfg.DC == s.cfg.PrimaryDC:
		return nil
	case s.cfg.Writable != nil:
		if err := s.cfg.Writable(); err == nil || s.cfg.DC == s.cfg.PrimaryDC {
			return err
		}
	}
	return fmt.Errorf("%s is not the primary: federation states are written in %s; call a server there, directly or through a gateway", s.cfg.DC, s.cfg.PrimaryDC)
}

func mayDelete(p tlsutil.Peer, primary string) error {
	if p.Role == tlsutil.RoleOperator || (p.Role == tlsutil.RoleServer && p.DC == primary) {
		return nil
	}
	return fmt.Errorf("%v may not delete federation states: make an operator's certificate with: wanfed tls cert create --cli --dc %s", p, p.DC)
}

func (s *Service) upsert(ctx context.Context, want *pb.FederationState) (*pb.ApplyFederationStateResponse, error) {
	if err := ValidateState(want); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	stored, changed, err := Upsert(ctx, s.cfg.Backend, want)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	if changed {
		s.cfg.Logger.Info("federation state written", "datacenter", want.Datacenter, "gateways", len(want.MeshGateways))
	}
	return &pb.ApplyFederationStateResponse{Changed: changed, State: stored}, nil
}

// Upsert stores a state in the primary's store unless the same one is there. It is what Apply does, without the caller's
// rights checked: for the primary's own anti-entropy.
func Upsert(ctx context.Context, b resource.Backend, want *pb.FederationState) (stored *pb.FederationState, changed bool, err error) {
	for {
		have, r, err := ReadState(ctx, b, want.Datacenter)
		if err != nil {
			return nil, false, err
		}
		if have != nil && SameContent(have, want) {
			return have, false, nil
		}
		data := proto.Clone(want).(*pb.FederationState)
		data.PrimaryModifyIndex, data.CreateIndex, data.ModifyIndex = 0, 0, 0
		if data.UpdatedAt == nil {
			data.UpdatedAt = timestamppb.New(time.Now())
		}
		expect := r.GetVersion() // "" when there is none
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

func (s *Service) remove(ctx context.Context, dc string, force bool, by tlsutil.Peer) (*pb.ApplyFederationStateResponse, error) {
	if !force && s.cfg.Alive(dc) {
		return nil, status.Errorf(codes.FailedPrecondition,
			"%s is alive in the WAN pool and would write its federation state again; stop its servers first, or delete it all the same with --force", dc)
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
	s.cfg.Logger.Info("federation state deleted", "datacenter", dc, "peer", by.String(), "force", force)
	return &pb.ApplyFederationStateResponse{Changed: true, State: have}, nil
}

// Get implements pb.FederationServiceServer.
func (s *Service) Get(ctx context.Context, req *pb.GetFederationStateRequest) (*pb.GetFederationStateResponse, error) {
	if far, q, err := s.elsewhere(req.Query); err != nil {
		return nil, err
	} else if far != nil {
		return far.Get(ctx, &pb.GetFederationStateRequest{Datacenter: req.Datacenter, Query: q})
	}
	states, index, err := s.read(ctx, req.Query)
	if err != nil {
		return nil, err
	}
	out := &pb.GetFederationStateResponse{Index: index}
	for _, st := range states {
		if st.Datacenter == req.Datacenter {
			out.State = st
		}
	}
	return out, nil
}

// List implements pb.FederationServiceServer.
func (s *Service) List(ctx context.Context, req *pb.ListFederationStatesRequest) (*pb.ListFederationStatesResponse, error) {
	if far, q, err := s.elsewhere(req.Query); err != nil {
		return nil, err
	} else if far != nil {
		return far.List(ctx, &pb.ListFederationStatesRequest{Query: q})
	}
	states, index, err := s.read(ctx, req.Query)
	return &pb.ListFederationStatesResponse{States: states, Index: index}, err
}

// ListMeshGateways implements pb.FederationServiceServer.
func (s *Service) ListMeshGateways(ctx context.Context, req *pb.ListMeshGatewaysRequest) (*pb.ListMeshGatewaysResponse, error) {
	if far, q, err := s.elsewhere(req.Query); err != nil {
		return nil, err
	} else if far != nil {
		return far.ListMeshGateways(ctx, &pb.ListMeshGatewaysRequest{Query: q})
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

// elsewhere returns a client when the query names another datacenter, and the query to send there.
func (s *Service) elsewhere(q *pb.QueryOptions) (pb.FederationServiceClient, *pb.QueryOptions, error) {
	dc := q.GetTargetDatacenter()
	if dc == "" || dc == s.cfg.DC {
		return nil, nil, nil
	}
	c, err := s.cfg.Ask(dc)
	if err != nil {
		return nil, nil, status.Error(codes.Unavailable, err.Error())
	}
	q = proto.Clone(q).(*pb.QueryOptions)
	q.TargetDatacenter = dc // the far server sees its own name and answers itself
	return c, q, nil
}

// MaxWait bounds how long a blocking query waits.
const MaxWait = 10 * time.Minute

// read returns all states once their index is above the query's, or its wait is over.
func (s *Service) read(ctx context.Context, q *pb.QueryOptions) ([]*pb.FederationState, uint64, error) {
	if q.GetMinIndex() > 0 {
		wait := min(q.GetWait().AsDuration(), MaxWait)
		wctx, cancel := context.WithTimeout(ctx, wait)
		err := s.cfg.Backend.Wait(wctx, resource.Query{Type: StateType}, q.MinIndex)
		cancel()
		if err != nil && wctx.Err() == nil {
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
