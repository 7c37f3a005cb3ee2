// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// maxRenewals bounds the renewals of one call.
	maxRenewals = 10000
	// maxTries bounds the attempts of one write while concurrent writes of the
	// same lease cause conflicts.
	maxTries = 8
)

// ServiceConfig configures a Service. All fields are required.
type ServiceConfig struct {
	// Backend is the store of this server.
	Backend resource.Backend
	// Confirm returns nil if this server has led at a time after the call.
	Confirm func(ctx context.Context) error
	// Allow authorizes the caller of each call.
	Allow  AllowFunc
	Logger *slog.Logger
}

// Service acquires, renews, releases and expires leases. It serves calls while
// Run runs, at the leader.
type Service struct {
	pb.UnimplementedLeaseServiceServer
	cfg       ServiceConfig
	deadlines *Deadlines
}

// NewService returns a Service.
func NewService(cfg ServiceConfig) (*Service, error) {
	if cfg.Allow == nil {
		return nil, errors.New("lease: all fields of ServiceConfig are required")
	}
	s := &Service{cfg: cfg}
	var err error
	s.deadlines, err = NewDeadlines(DeadlinesConfig{
		Type: Type, Backend: cfg.Backend, Duration: durationOf, Confirm: cfg.Confirm, Logger: cfg.Logger,
		Expire: s.expire,
	})
	return s, err
}

// durationOf returns the duration of a held lease, and 0 for a free lease.
func durationOf(r *pb.Resource) time.Duration {
	l, err := resource.Decode[*pb.Lease](r)
	if err != nil || l.Holder == "" {
		return 0
	}
	return max(l.GetDuration().AsDuration(), MinDuration)
}

// Run expires leases until ctx ends. Call Run while this server leads.
func (s *Service) Run(ctx context.Context) error { return s.deadlines.Run(ctx) }

// Acquire implements pb.LeaseServiceServer. It returns at once if another
// holder has the lease. It blocks for one commit, or for a confirmation of
// leadership.
func (s *Service) Acquire(ctx context.Context, req *pb.AcquireLeaseRequest) (*pb.AcquireLeaseResponse, error) {
	err := s.cfg.Allow.authorize(ctx, req.GetName())
	if err == nil {
		err = checkAcquire(req.GetHolder(), req.GetDuration().AsDuration())
	}
	if err == nil {
		err = resource.CheckName(req.GetName())
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	for try := 1; ; try++ {
		r, token, err := s.acquire(ctx, req)
		if err == nil {
			return &pb.AcquireLeaseResponse{Lease: r, Token: token}, nil
		}
		if !errors.Is(err, resource.ErrConflict) || try == maxTries {
			return nil, resource.StatusError(fmt.Errorf("acquire lease %s: %w", req.GetName(), err))
		}
	}
}

// acquire makes one attempt. It returns the lease as it is stored afterwards,
// and token 0 if another holder has it. It fails with resource.ErrConflict if
// the lease changed during the attempt.
func (s *Service) acquire(ctx context.Context, req *pb.AcquireLeaseRequest) (_ *pb.Resource, token uint64, err error) {
	next := &pb.Lease{Holder: req.GetHolder(), Duration: req.GetDuration(), AcquiredAt: timestamppb.Now()}
	stored, err := s.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(Type, req.GetName()))
	var r *pb.Resource
	switch {
	case errors.Is(err, resource.ErrNotFound):
		next.Transitions = 1
		r, err = resource.New(Type, req.GetName(), next)
	case err == nil:
		var l *pb.Lease
		if l, err = resource.Decode[*pb.Lease](stored); err != nil {
			return nil, 0, err
		}
		switch l.Holder {
		case "":
		case req.GetHolder(): // a retry after a lost response
			token = stored.GetModifyIndex()
			lost, err := s.deadlines.Renew(ctx, Renewal{req.GetName(), token})
			if err == nil && lost != nil {
				err = fmt.Errorf("%w: the lease is about to expire", resource.ErrConflict)
			}
			return stored, token, err
		default:
			return stored, 0, nil
		}
		next.Transitions = l.Transitions + 1
		r, err = resource.WithData(stored, next)
	}
	if err != nil {
		return nil, 0, err
	}
	if r, err = s.put(ctx, r, stored.GetVersion()); err != nil {
		return nil, 0, err
	}
	s.deadlines.Set(r)
	return r, r.GetModifyIndex(), nil
}

func (s *Service) put(ctx context.Context, r *pb.Resource, expect string) (*pb.Resource, error) {
	out, err := s.cfg.Backend.Commit(ctx, resource.PutOp(r, expect))
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// expire frees leases by one commit.
func (s *Service) expire(ctx context.Context, rs []*pb.Resource) error {
	if err := s.free(ctx, rs...); err != nil {
		return err
	}
	for _, r := range rs {
		l, _ := resource.Decode[*pb.Lease](r) // free has decoded it
		s.cfg.Logger.Info("lease expired", "lease", r.GetId().GetName(), "holder", l.GetHolder())
	}
	return nil
}

// free removes the holders of stored leases, by one commit.
func (s *Service) free(ctx context.Context, rs ...*pb.Resource) error {
	var ops []*pb.Op
	for _, r := range rs {
		l, err := resource.Decode[*pb.Lease](r)
		if err != nil {
			return err
		}
		if l.Holder == "" {
			continue
		}
		next := proto.CloneOf(l)
		next.Holder = ""
		free, err := resource.WithData(r, next)
		if err != nil {
			return err
		}
		ops = append(ops, resource.PutOp(free, r.GetVersion()))
	}
	if len(ops) == 0 {
		return nil
	}
	_, err := s.cfg.Backend.Commit(ctx, ops...)
	return err
}

// Renew implements pb.LeaseServiceServer. It blocks until a majority has
// confirmed this server as the leader, and writes nothing.
func (s *Service) Renew(ctx context.Context, req *pb.RenewLeasesRequest) (*pb.RenewLeasesResponse, error) {
	err := checkRenewals(req.GetRenewals())
	if err == nil {
		err = s.cfg.Allow.authorizeRenewals(ctx, req.GetRenewals())
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	renewals := make([]Renewal, len(req.GetRenewals()))
	for i, r := range req.GetRenewals() {
		renewals[i] = Renewal{r.GetName(), r.GetToken()}
	}
	lost, err := s.deadlines.Renew(ctx, renewals...)
	if err != nil {
		return nil, resource.StatusError(fmt.Errorf("renew leases: %w", err))
	}
	out := &pb.RenewLeasesResponse{}
	for _, i := range lost {
		out.Lost = append(out.Lost, uint32(i))
	}
	return out, nil
}

// Release implements pb.LeaseServiceServer. It does nothing if the lease does
// not have the token.
func (s *Service) Release(ctx context.Context, req *pb.ReleaseLeaseRequest) (*pb.ReleaseLeaseResponse, error) {
	err := s.cfg.Allow.authorize(ctx, req.GetName())
	if err == nil {
		err = s.release(ctx, req)
	}
	if err != nil {
		return nil, resource.StatusError(fmt.Errorf("release lease %s: %w", req.GetName(), err))
	}
	return &pb.ReleaseLeaseResponse{}, nil
}

func (s *Service) release(ctx context.Context, req *pb.ReleaseLeaseRequest) error {
	r, err := s.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(Type, req.GetName()))
	if errors.Is(err, resource.ErrNotFound) {
		return nil
	}
	if err != nil || r.GetModifyIndex() != req.GetToken() {
		return err
	}
	err = s.free(ctx, r)
	if errors.Is(err, resource.ErrConflict) || errors.Is(err, resource.ErrNotFound) {
		return nil // another write ended the holding
	}
	return err
}
